// ModelConfig from the keys of a GGUF header (ggml's docs/gguf.md, and the keys that
// llama.cpp's conversion writes for these families).
#include <algorithm>
#include <cmath>

#include "headrace/model/file_reader.h"
#include "headrace/model/model_config_parts.h"

namespace headrace {
namespace {

// The keys of one architecture: "llama." + name.
struct Keys {
  const ModelFile& model;
  std::string prefix;

  std::string key(const char* name) const { return prefix + name; }
  const MetaValue* find(const char* name) const { return model.find(key(name)); }
  Result<int64_t> width(const char* name) const {
    return model.need_int(key(name), 1, kMaxWidth);
  }
  Result<int64_t> width_or(const char* name, int64_t otherwise) const {
    return model.int_or(key(name), 1, kMaxWidth, otherwise);
  }
  Result<double> number_or(const char* name, double otherwise) const {
    return model.number_or(key(name), otherwise);
  }
};

Result<Family> family_of(const std::string& architecture) {
  for (const Family family : {Family::kLlama, Family::kMistral, Family::kQwen2,
                              Family::kQwen3, Family::kGemma3}) {
    if (architecture == name_of(family)) return family;
  }
  return error(
      Code::kUnsupported,
      "architecture '%s' is not supported; llama, mistral, qwen2, qwen3 and gemma3 are",
      printable(architecture).c_str());
}

// One integer, or an array with the same integer for each layer.
Result<int64_t> per_layer(const Keys& keys, const char* name, int64_t otherwise) {
  const MetaValue* value = keys.find(name);
  if (value == nullptr || !value->is_array()) return keys.width_or(name, otherwise);
  int64_t first = 0;
  bool same = value->size() > 0;
  if (const auto* narrow = value->as<std::vector<int32_t>>()) {
    for (const int32_t n : *narrow) same = same && n == narrow->front();
    first = same ? narrow->front() : 0;
  } else if (const auto* wide = value->as<std::vector<int64_t>>()) {
    for (const int64_t n : *wide) same = same && n == wide->front();
    first = same ? wide->front() : 0;
  } else {
    return ModelFile::wrong_type(keys.key(name), *value, "an integer");
  }
  if (!same || first < 1 || first > kMaxWidth) {
    return error(Code::kUnsupported,
                 "key '%s' differs between layers, which is not supported",
                 keys.key(name).c_str());
  }
  return first;
}

// What we know to change the result and do not do.
Status refuse_unsupported(const Keys& keys) {
  for (const char* name : {"expert_count", "expert_used_count"}) {
    HR_ASSIGN(const int64_t n, keys.model.int_or(keys.key(name), 0, kMaxWidth, 0));
    if (n > 0) {
      return error(Code::kUnsupported,
                   "key '%s' is %lld: mixtures of experts are not supported",
                   keys.key(name).c_str(), static_cast<long long>(n));
    }
  }
  HR_ASSIGN(const double yarn_log, keys.number_or("rope.scaling.yarn_log_multiplier", 0));
  if (yarn_log != 0) {
    return error(Code::kUnsupported, "key '%s' is not supported",
                 keys.key("rope.scaling.yarn_log_multiplier").c_str());
  }
  for (const char* name : {"logit_scale", "residual_scale", "embedding_scale"}) {
    if (keys.find(name) != nullptr) {
      return error(Code::kUnsupported, "key '%s' is not supported",
                   keys.key(name).c_str());
    }
  }
  HR_ASSIGN(const bool causal, keys.model.bool_or(keys.key("attention.causal"), true));
  if (!causal) {
    return error(Code::kUnsupported,
                 "key '%s' is false: only causal attention is supported",
                 keys.key("attention.causal").c_str());
  }
  return {};
}

Status read_scaling(const Keys& keys, RopeConfig* rope) {
  HR_ASSIGN(const double legacy, keys.number_or("rope.scale_linear", 1));
  HR_ASSIGN(rope->factor, keys.number_or("rope.scaling.factor", legacy));
  if (rope->factor == 0) rope->factor = 1;
  HR_ASSIGN(const std::string kind,
            keys.model.string_or(keys.key("rope.scaling.type"),
                                 rope->factor != 1 ? "linear" : "none"));
  if (kind == "none") {
    rope->factor = 1;
  } else if (kind == "linear") {
    rope->scaling = RopeScaling::kLinear;
  } else if (kind == "yarn") {
    rope->scaling = RopeScaling::kYarn;
    HR_ASSIGN(rope->beta_fast, keys.number_or("rope.scaling.yarn_beta_fast", 32));
    HR_ASSIGN(rope->beta_slow, keys.number_or("rope.scaling.yarn_beta_slow", 1));
    HR_ASSIGN(const double extra, keys.number_or("rope.scaling.attn_factor", 1));
    HR_ASSIGN(const double older, keys.number_or("rope.scaling.yarn_attn_factor", 1));
    // The file's factor multiplies the paper's temperature.
    rope->attention_factor =
        extra * older * (rope->factor <= 1 ? 1 : 0.1 * std::log(rope->factor) + 1);
  } else {
    return error(Code::kUnsupported,
                 "key '%s' is '%s'; none, linear and yarn are supported",
                 keys.key("rope.scaling.type").c_str(), printable(kind).c_str());
  }
  return {};
}

Status read_rope(const Keys& keys, ModelConfig* config) {
  const bool gemma = config->family == Family::kGemma3;
  HR_ASSIGN(const int64_t dims, keys.width_or("rope.dimension_count", config->head_dim));
  if (dims != config->head_dim) {
    return error(
        Code::kUnsupported,
        "key '%s' is %lld but heads have %lld dimensions: partial rotation is not "
        "supported",
        keys.key("rope.dimension_count").c_str(), static_cast<long long>(dims),
        static_cast<long long>(config->head_dim));
  }
  RopeConfig& rope = config->rope;
  HR_ASSIGN(rope.base, keys.number_or("rope.freq_base", gemma ? 1e6 : 1e4));
  HR_ASSIGN(rope.original_context,
            keys.number_or("rope.scaling.original_context_length",
                           static_cast<double>(config->trained_context)));
  HR_TRY(read_scaling(keys, &rope));
  config->rope_local = rope;
  if (gemma) {
    // Local layers keep the base and the positions that they were trained with.
    config->rope_local = RopeConfig();
    HR_ASSIGN(config->rope_local.base, keys.number_or("rope.freq_base_swa", 10000));
  }
  // Q and K rows of llama files are stored permuted, so that neighbours form a pair.
  config->rope_half_split =
      config->family != Family::kLlama && config->family != Family::kMistral;
  return {};
}

Status read_window(const Keys& keys, ModelConfig* config) {
  HR_ASSIGN(config->window,
            keys.model.int_or(keys.key("attention.sliding_window"), 0, kMaxContext, 0));
  if (config->window == 0) return {};
  const char* const name = "attention.sliding_window_pattern";
  const MetaValue* pattern = keys.find(name);
  if (pattern != nullptr && pattern->as<std::vector<bool>>() != nullptr) {
    config->local = *pattern->as<std::vector<bool>>();
    if (config->local.size() != static_cast<size_t>(config->layers)) {
      return error(Code::kBadFile, "key '%s' has %zu entries for %lld layers",
                   keys.key(name).c_str(), config->local.size(),
                   static_cast<long long>(config->layers));
    }
    return {};
  }
  const int64_t usual = config->family == Family::kGemma3 ? 6 : 0;
  HR_ASSIGN(const int64_t period,
            keys.model.int_or(keys.key(name), 0, kMaxLayers, usual));
  config->local = local_pattern(config->layers, period);
  return {};
}

Status read_heads(const Keys& keys, ModelConfig* config) {
  HR_ASSIGN(config->heads, per_layer(keys, "attention.head_count", 0));
  if (config->heads == 0) return keys.model.missing(keys.key("attention.head_count"));
  HR_ASSIGN(config->kv_heads, per_layer(keys, "attention.head_count_kv", config->heads));
  const int64_t usual = std::max<int64_t>(config->embd / config->heads, 1);
  HR_ASSIGN(config->head_dim, keys.width_or("attention.key_length", usual));
  HR_ASSIGN(const int64_t value,
            keys.width_or("attention.value_length", config->head_dim));
  if (value != config->head_dim) {
    return error(Code::kUnsupported, "keys of %lld and values of %lld dimensions differ",
                 static_cast<long long>(config->head_dim), static_cast<long long>(value));
  }
  return {};
}

// The scale of q . k that gemma3 files do not say: the 27B model alone, known by its 62
// layers, divides by the width of a head of an evenly cut embedding.
double usual_attention_scale(const ModelConfig& config) {
  if (config.family == Family::kGemma3 && config.layers == 62) {
    return 1 / std::sqrt(static_cast<double>(config.embd) /
                         static_cast<double>(config.heads));
  }
  return 1 / std::sqrt(static_cast<double>(config.head_dim));
}

void family_facts(ModelConfig* config) {
  config->qkv_bias = config->family == Family::kQwen2;
  config->qk_norm = config->family == Family::kQwen3 || config->family == Family::kGemma3;
  if (config->family != Family::kGemma3) return;
  config->post_norms = true;
  config->activation = Activation::kGeluTanh;
  config->embedding_scale = std::sqrt(static_cast<float>(config->embd));
}

}  // namespace

Result<ModelConfig> config_from_gguf(const ModelFile& model) {
  ModelConfig config;
  HR_ASSIGN(config.architecture, model.need_string("general.architecture"));
  HR_ASSIGN(config.family, family_of(config.architecture));
  const Keys keys{model, config.architecture + "."};
  HR_TRY(refuse_unsupported(keys));
  HR_ASSIGN(config.layers, model.need_int(keys.key("block_count"), 1, kMaxLayers));
  HR_ASSIGN(config.embd, keys.width("embedding_length"));
  HR_ASSIGN(config.ff, per_layer(keys, "feed_forward_length", 0));
  if (config.ff == 0) return model.missing(keys.key("feed_forward_length"));
  HR_ASSIGN(config.trained_context,
            model.need_int(keys.key("context_length"), 1, kMaxContext));
  HR_ASSIGN(config.rms_eps,
            model.need_number(keys.key("attention.layer_norm_rms_epsilon")));
  HR_TRY(read_heads(keys, &config));
  family_facts(&config);
  HR_TRY(read_rope(keys, &config));
  HR_TRY(read_window(keys, &config));
  HR_ASSIGN(config.attention_scale,
            keys.number_or("attention.scale", usual_attention_scale(config)));
  if (config.attention_scale == 0) config.attention_scale = usual_attention_scale(config);
  HR_ASSIGN(config.attention_softcap, keys.number_or("attn_logit_softcapping", 0));
  HR_ASSIGN(config.logit_softcap, keys.number_or("final_logit_softcapping", 0));
  return config;
}

}  // namespace headrace
