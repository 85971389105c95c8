// Step configs: presets and the JSON form.
#include <algorithm>
#include <array>

#include "headrace/base/json_fields.h"
#include "headrace/base/json_text.h"
#include "headrace/model/step_graph.h"

namespace headrace {
namespace {

using Json = nlohmann::json;

constexpr std::array<const char*, 5> kFamilies = {"llama", "gpt", "bert", "vit", "moe"};
constexpr std::array<const char*, 3> kPhases = {"train", "prefill", "decode"};

// Llama 3 8B (arXiv 2407.21783).
StepConfig llama_8b() {
  StepConfig c;
  c.family = StepFamily::kLlama;
  c.layers = 32, c.hidden = 4096, c.heads = 32, c.kv_heads = 8, c.head_dim = 128;
  c.ffn = 14336, c.vocab = 128256, c.sequence = 4096;
  return c;
}

// GPT-2 small (Radford et al., 2019).
StepConfig gpt2() {
  StepConfig c;
  c.family = StepFamily::kGpt;
  c.layers = 12, c.hidden = 768, c.heads = 12, c.kv_heads = 12, c.head_dim = 64;
  c.ffn = 3072, c.vocab = 50257, c.positions = 1024, c.sequence = 1024;
  c.gated_ffn = false;
  c.tied_embeddings = true;
  return c;
}

// BERT base (arXiv 1810.04805), with its masked-language head.
StepConfig bert_base() {
  StepConfig c = gpt2();
  c.family = StepFamily::kBert;
  c.vocab = 30522, c.positions = 512, c.sequence = 512;
  return c;
}

// ViT-B/16 at 224 x 224 (arXiv 2010.11929).
StepConfig vit_b16() {
  StepConfig c = gpt2();
  c.family = StepFamily::kVit;
  c.vocab = 1000, c.image_tokens = 197, c.patch_dim = 768;
  c.positions = 197, c.sequence = 0;
  c.tied_embeddings = false;
  return c;
}

// DeepSeek-V3 without its multi-token prediction module (arXiv 2412.19437).
StepConfig deepseek_v3() {
  StepConfig c;
  c.family = StepFamily::kMoe;
  c.layers = 61, c.hidden = 7168, c.heads = 128, c.kv_heads = 128, c.head_dim = 128;
  c.ffn = 18432, c.vocab = 129280, c.sequence = 4096;
  c.experts = 256, c.active_experts = 8, c.shared_experts = 1, c.expert_ffn = 2048;
  c.dense_layers = 3;
  c.q_rank = 1536, c.kv_rank = 512, c.rope_dim = 64, c.v_head_dim = 128;
  return c;
}

template <size_t N>
Status read_name(const JsonFields& f, const char* key, const std::array<const char*, N>& names,
                 size_t* out) {
  std::string name = names[*out];
  HR_TRY(f.text(key, &name));
  const auto at = std::find(names.begin(), names.end(), name);
  if (at == names.end()) {
    std::string known;
    for (const char* n : names) known += std::string(known.empty() ? "" : ", ") + n;
    return f.bad(key, ("is '" + printable(name) + "', not one of " + known).c_str());
  }
  *out = static_cast<size_t>(at - names.begin());
  return {};
}

Status read_dtype(const JsonFields& f, const char* key, DType* out) {
  std::string name = name_of(*out);
  HR_TRY(f.text(key, &name));
  const auto dtype = dtype_from_name(name);
  if (!dtype.ok()) return f.bad(key, ("is '" + printable(name) + "', not a type").c_str());
  *out = *dtype;
  return {};
}

struct IntegerKey {
  const char* name;
  int64_t StepConfig::*member;
};
constexpr std::array<IntegerKey, 23> kIntegers = {{
    {"layers", &StepConfig::layers},
    {"hidden", &StepConfig::hidden},
    {"heads", &StepConfig::heads},
    {"kv_heads", &StepConfig::kv_heads},
    {"head_dim", &StepConfig::head_dim},
    {"ffn", &StepConfig::ffn},
    {"vocab", &StepConfig::vocab},
    {"positions", &StepConfig::positions},
    {"batch", &StepConfig::batch},
    {"sequence", &StepConfig::sequence},
    {"experts", &StepConfig::experts},
    {"active_experts", &StepConfig::active_experts},
    {"shared_experts", &StepConfig::shared_experts},
    {"expert_ffn", &StepConfig::expert_ffn},
    {"dense_layers", &StepConfig::dense_layers},
    {"q_rank", &StepConfig::q_rank},
    {"kv_rank", &StepConfig::kv_rank},
    {"rope_dim", &StepConfig::rope_dim},
    {"v_head_dim", &StepConfig::v_head_dim},
    {"image_tokens", &StepConfig::image_tokens},
    {"patch_dim", &StepConfig::patch_dim},
    {"kv_segment", &StepConfig::kv_segment},
    {"shards", &StepConfig::shards},
}};

Result<StepConfig> read_step(const Json& object) {
  const JsonFields f(object, "the step");
  HR_TRY(f.only({"preset",
                 "name",
                 "family",
                 "phase",
                 "layers",
                 "hidden",
                 "heads",
                 "kv_heads",
                 "head_dim",
                 "ffn",
                 "vocab",
                 "positions",
                 "batch",
                 "sequence",
                 "experts",
                 "active_experts",
                 "shared_experts",
                 "expert_ffn",
                 "dense_layers",
                 "q_rank",
                 "kv_rank",
                 "rope_dim",
                 "v_head_dim",
                 "image_tokens",
                 "patch_dim",
                 "kv_segment",
                 "flash_attention",
                 "gated_ffn",
                 "tied_embeddings",
                 "weight_dtype",
                 "activation_dtype",
                 "optimizer_bytes",
                 "f32_gradients",
                 "shards"}));
  StepConfig c;
  std::string preset;
  HR_TRY(f.text("preset", &preset));
  if (!preset.empty()) {
    auto known = step_preset(preset);
    if (!known.ok()) return f.bad("preset", ("says: " + known.status().message()).c_str());
    c = std::move(known).value();
  } else if (f.find("family") == nullptr) {
    return f.bad("family", "is missing, and so is 'preset'");
  }
  HR_TRY(f.text("name", &c.name));
  size_t family = static_cast<size_t>(c.family), phase = static_cast<size_t>(c.phase);
  HR_TRY(read_name(f, "family", kFamilies, &family));
  HR_TRY(read_name(f, "phase", kPhases, &phase));
  c.family = static_cast<StepFamily>(family);
  c.phase = static_cast<StepPhase>(phase);
  for (const IntegerKey& key : kIntegers) {
    HR_TRY(f.integer(key.name, 0, int64_t{1} << 40, &(c.*key.member)));
  }
  HR_TRY(f.integer("optimizer_bytes", 0, 64, &c.optimizer_bytes));
  HR_TRY(f.flag("flash_attention", &c.flash_attention));
  HR_TRY(f.flag("gated_ffn", &c.gated_ffn));
  HR_TRY(f.flag("tied_embeddings", &c.tied_embeddings));
  HR_TRY(f.flag("f32_gradients", &c.f32_gradients));
  HR_TRY(read_dtype(f, "weight_dtype", &c.weight_dtype));
  HR_TRY(read_dtype(f, "activation_dtype", &c.activation_dtype));
  return c;
}

}  // namespace

const char* name_of(StepFamily family) { return kFamilies[static_cast<size_t>(family)]; }
const char* name_of(StepPhase phase) { return kPhases[static_cast<size_t>(phase)]; }

const std::vector<std::string>& step_presets() {
  static const std::vector<std::string> kNames = {"llama-8b", "deepseek-v3", "bert-base", "vit-b16",
                                                  "gpt2"};
  return kNames;
}

Result<StepConfig> step_preset(std::string_view name) {
  StepConfig c;
  if (name == "llama-8b") {
    c = llama_8b();
  } else if (name == "deepseek-v3") {
    c = deepseek_v3();
  } else if (name == "bert-base") {
    c = bert_base();
  } else if (name == "vit-b16") {
    c = vit_b16();
  } else if (name == "gpt2") {
    c = gpt2();
  } else {
    std::string known;
    for (const std::string& n : step_presets()) known += (known.empty() ? "" : ", ") + n;
    return error(Code::kUsage, "there is no preset '%s' (%s)", printable(name).c_str(),
                 known.c_str());
  }
  c.name = name;
  return c;
}

Result<StepConfig> parse_step_config(std::string_view json) {
  const Json document = Json::parse(json, nullptr, /*allow_exceptions=*/false);
  if (document.is_discarded()) return json_error(json);
  const JsonFields f(document, "the step config");
  HR_TRY(f.only({"step", "comment"}));
  if (f.find("step") == nullptr) return f.bad("step", "is missing");
  return read_step(*f.find("step"));
}

}  // namespace headrace
