#include "headrace/train/model_source.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <set>

#include "headrace/base/json_text.h"
#include "headrace/model/hf_folder.h"
#include "headrace/model/model_config.h"

namespace headrace {
namespace {

constexpr int64_t kMost = 1 << 24;

Status not_trained(const std::string& what) {
  return error(Code::kUnsupported, "%s cannot be trained here", what.c_str());
}

// What inference does and training does not.
Status refuse_features(const ModelConfig& c) {
  if (c.family == Family::kQwen3 || c.family == Family::kGemma3) {
    return error(Code::kUnsupported,
                 "models of family %s cannot be trained here; llama, mistral, qwen2 and gpt2 can",
                 name_of(c.family));
  }
  if (c.activation != Activation::kSilu) return not_trained("a gated activation other than SiLU");
  if (c.qk_norm) return not_trained("a model with norms of q and k");
  if (c.post_norms || c.norm_add_one) return not_trained("a model with further norms");
  if (c.embedding_scale != 1) return not_trained("a model that scales its embeddings");
  if (c.attention_softcap > 0 || c.logit_softcap > 0) return not_trained("a model with soft caps");
  const double usual = 1 / std::sqrt(static_cast<double>(c.head_dim));
  if (std::abs(c.attention_scale / usual - 1) > 1e-6) {
    return not_trained(text_of("an attention scale of %g instead of %g", c.attention_scale, usual));
  }
  for (int64_t layer = 0; layer < c.layers; ++layer) {
    if (c.is_local(layer)) {
      return not_trained(
          text_of("a sliding window of %lld positions", static_cast<long long>(c.window)));
    }
  }
  if (rope_mscale(c.rope) != 1) return not_trained("YaRN's scale of attention");
  return {};
}

Status read_llama(const ModelFile& file, ModelSource* out) {
  HR_ASSIGN(const ModelConfig c, read_config(file));
  HR_TRY(refuse_features(c));
  TrainModelConfig& s = out->shape;
  s.family = c.family == Family::kQwen2 ? ModelFamily::kQwen2 : ModelFamily::kLlama;
  s.layers = c.layers, s.hidden = c.embd, s.heads = c.heads, s.kv_heads = c.kv_heads;
  s.head_dim = c.head_dim, s.ffn = c.ff, s.vocab = c.vocab, s.positions = c.trained_context;
  s.tied_embeddings = c.tied_embeddings;
  s.norm_eps = c.rms_eps;
  s.rope_base = c.rope.base;
  out->rope = c.rope;
  out->qkv_bias = c.qkv_bias || file.weight("blk.0.attn_q.bias") != nullptr;
  out->paired_rows = !c.rope_half_split;
  return {};
}

// Integers of a GPT-2 header, under the names of either format.
struct Gpt2Keys {
  const char *layers, *hidden, *heads, *positions, *ffn, *eps;
};
constexpr Gpt2Keys kHfKeys = {"n_layer",     "n_embd",  "n_head",
                              "n_positions", "n_inner", "layer_norm_epsilon"};
constexpr Gpt2Keys kGgufKeys = {"gpt2.block_count",          "gpt2.embedding_length",
                                "gpt2.attention.head_count", "gpt2.context_length",
                                "gpt2.feed_forward_length",  "gpt2.attention.layer_norm_epsilon"};

Status refuse_gpt2_features(const ModelFile& file) {
  HR_ASSIGN(const std::string act, file.string_or("activation_function", "gelu_new"));
  if (act != "gelu_new" && act != "gelu_pytorch_tanh") {
    return not_trained("'activation_function' '" + printable(act) + "'");
  }
  HR_ASSIGN(const bool scaled, file.bool_or("scale_attn_weights", true));
  HR_ASSIGN(const bool by_layer, file.bool_or("scale_attn_by_inverse_layer_idx", false));
  if (!scaled || by_layer) return not_trained("GPT-2 with another attention scale");
  HR_ASSIGN(const bool tied, file.bool_or("tie_word_embeddings", true));
  if (!tied) return not_trained("GPT-2 without tied embeddings");
  return {};
}

Status read_gpt2(const ModelFile& file, ModelSource* out) {
  const bool hf = file.format == ModelFormat::kHuggingFace;
  const Gpt2Keys& keys = hf ? kHfKeys : kGgufKeys;
  HR_TRY(refuse_gpt2_features(file));
  TrainModelConfig& s = out->shape;
  s.family = ModelFamily::kGpt2;
  HR_ASSIGN(s.layers, file.need_int(keys.layers, 1, 10000));
  HR_ASSIGN(s.hidden, file.need_int(keys.hidden, 1, kMost));
  HR_ASSIGN(s.heads, file.need_int(keys.heads, 1, kMost));
  HR_ASSIGN(s.positions, file.need_int(keys.positions, 1, kMost));
  HR_ASSIGN(s.ffn, file.int_or(keys.ffn, 1, kMost, 4 * s.hidden));
  HR_ASSIGN(s.norm_eps, file.number_or(keys.eps, 1e-5));
  if (s.hidden % s.heads != 0) {
    return error(Code::kBadFile, "%s %lld is not a multiple of %s %lld", keys.hidden,
                 static_cast<long long>(s.hidden), keys.heads, static_cast<long long>(s.heads));
  }
  s.kv_heads = s.heads;
  s.head_dim = s.hidden / s.heads;
  s.tied_embeddings = true;
  out->transposed = hf;
  const WeightInfo* table = source_weight(*out, "transformer.wte.weight");
  if (table == nullptr) return error(Code::kBadFile, "tensor 'wte.weight' is missing");
  s.vocab = table->rows;
  return {};
}

using Pair = std::pair<std::string_view, std::string_view>;
constexpr std::array<Pair, 4> kGpt2Outside = {{{"transformer.wte", "token_embd"},
                                               {"transformer.wpe", "position_embd"},
                                               {"transformer.ln_f", "output_norm"},
                                               {"lm_head", "output"}}};
constexpr std::array<Pair, 6> kGpt2Layer = {{{"ln_1", "attn_norm"},
                                             {"attn.c_attn", "attn_qkv"},
                                             {"attn.c_proj", "attn_output"},
                                             {"ln_2", "ffn_norm"},
                                             {"mlp.c_fc", "ffn_up"},
                                             {"mlp.c_proj", "ffn_down"}}};

std::string gpt2_gguf_name(const std::string& name) {
  const size_t kind = name.rfind('.');
  const std::string_view stem = std::string_view(name).substr(0, kind);
  const std::string_view end = std::string_view(name).substr(kind);
  for (const auto& [theirs, ours] : kGpt2Outside) {
    if (stem == theirs) return std::string(ours) + std::string(end);
  }
  constexpr std::string_view kLayers = "transformer.h.";
  const size_t dot = stem.find('.', kLayers.size());
  if (!stem.starts_with(kLayers) || dot == std::string_view::npos) return name;
  for (const auto& [theirs, ours] : kGpt2Layer) {
    if (stem.substr(dot + 1) != theirs) continue;
    return "blk." + std::string(stem.substr(kLayers.size(), dot - kLayers.size())) + "." +
           std::string(ours) + std::string(end);
  }
  return name;
}

// What a file may have beside the parameters: GPT-2's causal masks, frequencies, the copy of a tied
// table.
bool may_be_left(const ModelSource& source, const std::string& name) {
  if (name == "rope_freqs.weight") return true;
  if (source.shape.tied_embeddings && (name == "output.weight" || name == "lm_head.weight")) {
    return true;
  }
  return source.transposed && (name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias"));
}

bool readable(DType type) {
  return type != DType::kI8 && type != DType::kI32 && type != DType::kActQ8;
}

}  // namespace

Result<ModelSource> open_model_source(const TrainConfig& config) {
  ModelSource out;
  out.shape = config.model;
  if (config.model.from.empty()) {
    out.rope.base = out.shape.rope_base;
    out.qkv_bias = out.shape.family == ModelFamily::kQwen2;
    return out;
  }
  const std::string path = path_of(config, config.model.from);
  HR_ASSIGN(ModelFile opened, open_model(path));
  out.file = std::make_unique<ModelFile>(std::move(opened));
  // One entry a token; who needs the tokenizer opens it by itself.
  std::erase_if(out.file->metadata,
                [](const auto& entry) { return entry.first.starts_with("tokenizer."); });
  const ModelFile& file = *out.file;
  const bool gguf = file.format == ModelFormat::kGguf;
  HR_ASSIGN(const std::string type, file.need_string(gguf ? "general.architecture" : "model_type"));
  const Status status = type == "gpt2" ? read_gpt2(file, &out) : read_llama(file, &out);
  if (!status.ok()) return status.within(path);
  if (config.sequence > out.shape.positions) {
    return error(Code::kBadFile, "'sequence' is %lld, but %s has %lld positions",
                 static_cast<long long>(config.sequence), path.c_str(),
                 static_cast<long long>(out.shape.positions));
  }
  return out;
}

std::string gguf_parameter_name(ModelFamily family, const std::string& name) {
  return family == ModelFamily::kGpt2 ? gpt2_gguf_name(name) : gguf_name("llama", name);
}

const WeightInfo* source_weight(const ModelSource& source, const std::string& name) {
  const ModelFile& file = *source.file;
  if (source.shape.family == ModelFamily::kGpt2 && file.format == ModelFormat::kHuggingFace) {
    // The files of the first release leave the prefix out.
    const WeightInfo* found = file.weight(name);
    const std::string_view prefix = "transformer.";
    return found != nullptr || !name.starts_with(prefix) ? found
                                                         : file.weight(name.substr(prefix.size()));
  }
  return file.weight(gguf_parameter_name(source.shape.family, name));
}

bool has_rotated_rows(const std::string& name) {
  return name.find(".self_attn.q_proj.") != std::string::npos ||
         name.find(".self_attn.k_proj.") != std::string::npos;
}

int64_t paired_row(int64_t row, int64_t head_dim) {
  const int64_t head = row / head_dim, within = row % head_dim, half = head_dim / 2;
  return head * head_dim + (within % half) * 2 + within / half;
}

int64_t source_row(const ModelSource& source, const StepModel& model, const Parameter& p,
                   int64_t row) {
  if (!source.paired_rows || p.kind != ParameterKind::kMatrix || !has_rotated_rows(p.name)) {
    return row;
  }
  return paired_row(row, model.head_dim);
}

Status check_source(const ModelSource& source, const StepModel& model) {
  std::set<std::string_view> used;
  for (const Parameter& p : parameters_of(model)) {
    if (p.row_begin > 0 || p.kind == ParameterKind::kLoraA || p.kind == ParameterKind::kLoraB) {
      continue;
    }
    const WeightInfo* w = source_weight(source, p.name);
    if (w == nullptr) return error(Code::kBadFile, "tensor '%s' is missing", p.name.c_str());
    const bool turned = p.transposed && source.transposed;
    const int64_t rows = turned ? p.cols : p.rows, cols = turned ? p.rows : p.cols;
    if (w->rows != rows || w->cols != cols) {
      return error(Code::kBadFile, "tensor '%s' is %lld x %lld, but the model needs %lld x %lld",
                   printable(w->name).c_str(), static_cast<long long>(w->rows),
                   static_cast<long long>(w->cols), static_cast<long long>(rows),
                   static_cast<long long>(cols));
    }
    if (!readable(w->dtype)) {
      return error(Code::kUnsupported, "tensor '%s' has type %s, which holds no weights",
                   printable(w->name).c_str(), name_of(w->dtype));
    }
    if (source.paired_rows && p.kind == ParameterKind::kVector && has_rotated_rows(p.name)) {
      return not_trained("'" + p.name + "': biases of q and k with neighbours as pairs");
    }
    used.insert(w->name);
  }
  for (const WeightInfo& w : source.file->weights) {
    if (used.contains(w.name) || may_be_left(source, w.name)) continue;
    return error(Code::kUnsupported, "tensor '%s' is no part of a model that can be trained here",
                 printable(w.name).c_str());
  }
  return {};
}

}  // namespace headrace
