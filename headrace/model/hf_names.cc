// GGUF's names of the tensors of Hugging Face models.
#include <utility>

#include "headrace/model/hf_folder.h"

namespace headrace {
namespace {

using NamePair = std::pair<std::string_view, std::string_view>;

constexpr NamePair kOutside[] = {
    {"model.embed_tokens.weight", "token_embd.weight"},
    {"model.norm.weight", "output_norm.weight"},
    {"lm_head.weight", "output.weight"},
};
// Below "model.layers.N.", without ".weight" or ".bias".
constexpr NamePair kInLayer[] = {
    {"input_layernorm", "attn_norm"},    {"self_attn.q_proj", "attn_q"},
    {"self_attn.k_proj", "attn_k"},      {"self_attn.v_proj", "attn_v"},
    {"self_attn.o_proj", "attn_output"}, {"self_attn.q_norm", "attn_q_norm"},
    {"self_attn.k_norm", "attn_k_norm"}, {"mlp.gate_proj", "ffn_gate"},
    {"mlp.up_proj", "ffn_up"},           {"mlp.down_proj", "ffn_down"},
};
// Gemma normalises before and after both parts, the others before only: the same name
// means the feed-forward's input norm there.
constexpr NamePair kPlainNorms[] = {{"post_attention_layernorm", "ffn_norm"}};
constexpr NamePair kGemmaNorms[] = {
    {"post_attention_layernorm", "post_attention_norm"},
    {"pre_feedforward_layernorm", "ffn_norm"},
    {"post_feedforward_layernorm", "post_ffw_norm"},
};

template <size_t N>
std::string_view lookup(const NamePair (&table)[N], std::string_view name) {
  for (const auto& [theirs, ours] : table) {
    if (name == theirs) return ours;
  }
  return {};
}

// Multimodal files put the text model one level deeper, in one of two ways.
std::string without_wrapper(std::string_view name) {
  constexpr std::string_view kOld = "language_model.", kNew = "model.language_model.";
  if (name.starts_with(kNew)) return "model." + std::string(name.substr(kNew.size()));
  if (name.starts_with(kOld)) return std::string(name.substr(kOld.size()));
  return std::string(name);
}

}  // namespace

std::string gguf_name(std::string_view model_type, std::string_view name) {
  const bool gemma = model_type.starts_with("gemma");
  const std::string plain = gemma ? without_wrapper(name) : std::string(name);
  if (const auto ours = lookup(kOutside, plain); !ours.empty()) return std::string(ours);
  constexpr std::string_view kLayers = "model.layers.";
  const size_t dot = plain.find('.', kLayers.size());
  const size_t kind = plain.rfind('.');
  if (!plain.starts_with(kLayers) || dot == std::string::npos || kind <= dot) {
    return std::string(name);
  }
  const std::string_view view = plain;
  const std::string_view layer = view.substr(kLayers.size(), dot - kLayers.size());
  const std::string_view part = view.substr(dot + 1, kind - dot - 1);
  std::string_view ours = lookup(kInLayer, part);
  if (ours.empty()) ours = gemma ? lookup(kGemmaNorms, part) : lookup(kPlainNorms, part);
  if (ours.empty()) return std::string(name);
  std::string out = "blk.";
  out.append(layer).append(".").append(ours).append(view.substr(kind));
  return out;
}

}  // namespace headrace
