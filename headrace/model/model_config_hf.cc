// ModelConfig from config.json, with the defaults that transformers' configuration
// classes give to members that a file leaves out.
#include <cmath>

#include "headrace/model/file_reader.h"
#include "headrace/model/model_config_parts.h"

namespace headrace {
namespace {

// What the configuration class of a family says of members that are not in the file; 0:
// needed.
struct Defaults {
  const char* model_type;
  Family family;
  int64_t heads, kv_heads, head_dim;  // kv_heads 0: heads; head_dim 0: hidden / heads
  int64_t context;
  int64_t window;  // -1: the family has no windows
  double rope_base;
  const char* activation;
  bool tied;
};

constexpr Defaults kDefaults[] = {
    {"llama", Family::kLlama, 0, 0, 0, 2048, -1, 1e4, "silu", false},
    {"mistral", Family::kMistral, 0, 8, 0, 131072, 4096, 1e4, "silu", false},
    {"qwen2", Family::kQwen2, 0, 32, 0, 32768, 4096, 1e4, "silu", false},
    {"qwen3", Family::kQwen3, 0, 32, 128, 32768, 4096, 1e4, "silu", false},
    {"gemma3_text", Family::kGemma3, 8, 4, 256, 131072, 4096, 1e6, "gelu_pytorch_tanh",
     true},
    {"gemma3", Family::kGemma3, 8, 4, 256, 131072, 4096, 1e6, "gelu_pytorch_tanh", true},
};

// The members of the text model: at the top, or below "text_config" in multimodal files.
struct Members {
  const ModelFile& model;
  std::string prefix;
  const Defaults& usual;

  std::string key(const std::string& name) const { return prefix + name; }
  const MetaValue* find(const std::string& name) const { return model.find(key(name)); }
  Result<int64_t> width(const char* name, int64_t otherwise) const {
    if (otherwise == 0) return model.need_int(key(name), 1, kMaxWidth);
    return model.int_or(key(name), 1, kMaxWidth, otherwise);
  }
  Result<double> number_or(const std::string& name, double otherwise) const {
    return model.number_or(key(name), otherwise);
  }
};

Result<const Defaults*> defaults_of(const std::string& model_type) {
  for (const Defaults& row : kDefaults) {
    if (model_type == row.model_type) return &row;
  }
  return error(
      Code::kUnsupported,
      "model_type '%s' is not supported; llama, mistral, qwen2, qwen3, gemma3 and "
      "gemma3_text are",
      printable(model_type).c_str());
}

Status refuse_unsupported(const ModelFile& model, const Members& in) {
  const auto below = model.metadata.lower_bound("quantization_config");
  if (below != model.metadata.end() && below->first.starts_with("quantization_config")) {
    return error(Code::kUnsupported,
                 "config.json has 'quantization_config': quantised safetensors are not "
                 "supported");
  }
  HR_ASSIGN(const int64_t pretraining,
            model.int_or(in.key("pretraining_tp"), 0, kMaxWidth, 1));
  (void)pretraining;  // changes the order of sums at most
  HR_ASSIGN(const bool both_ways,
            model.bool_or(in.key("use_bidirectional_attention"), false));
  if (both_ways) {
    return error(Code::kUnsupported, "'use_bidirectional_attention' is not supported");
  }
  HR_ASSIGN(const double part, in.number_or("partial_rotary_factor", 1));
  if (part != 1) {
    return error(Code::kUnsupported,
                 "'partial_rotary_factor' is %g: partial rotation is not "
                 "supported",
                 part);
  }
  return {};
}

Status read_scaling(const Members& in, const std::string& at, RopeConfig* rope) {
  const ModelFile& model = in.model;
  const std::string kind_key =
      in.find(at + ".rope_type") != nullptr ? "rope_type" : "type";
  HR_ASSIGN(const std::string kind,
            model.string_or(in.key(at + "." + kind_key), "default"));
  if (kind == "default") return {};
  HR_ASSIGN(rope->factor, model.need_number(in.key(at + ".factor")));
  HR_ASSIGN(rope->original_context, in.number_or(at + ".original_max_position_embeddings",
                                                 rope->original_context));
  if (kind == "linear") {
    rope->scaling = RopeScaling::kLinear;
  } else if (kind == "llama3") {
    rope->scaling = RopeScaling::kLlama3;
    HR_ASSIGN(rope->low_freq_factor, model.need_number(in.key(at + ".low_freq_factor")));
    HR_ASSIGN(rope->high_freq_factor,
              model.need_number(in.key(at + ".high_freq_factor")));
  } else if (kind == "yarn") {
    rope->scaling = RopeScaling::kYarn;
    HR_ASSIGN(rope->beta_fast, in.number_or(at + ".beta_fast", 32));
    HR_ASSIGN(rope->beta_slow, in.number_or(at + ".beta_slow", 1));
    HR_ASSIGN(rope->attention_factor, in.number_or(at + ".attention_factor", 0));
    for (const char* name : {".mscale", ".mscale_all_dim", ".truncate"}) {
      if (in.find(at + name) == nullptr) continue;
      return error(Code::kUnsupported, "'%s' is not supported",
                   in.key(at + name).c_str());
    }
  } else {
    return error(Code::kUnsupported,
                 "'%s' is '%s'; default, linear, llama3 and yarn are supported",
                 in.key(at + "." + kind_key).c_str(), printable(kind).c_str());
  }
  return {};
}

// One table. Files of transformers 5 say everything in "rope_parameters", by kind of
// layer where there are two; older ones have "rope_theta" and "rope_scaling".
Status read_table(const Members& in, const std::string& layers, double base, bool scaled,
                  RopeConfig* rope) {
  const std::string nested = "rope_parameters." + layers;
  if (in.find(nested + ".rope_theta") != nullptr) {
    HR_ASSIGN(rope->base, in.number_or(nested + ".rope_theta", base));
    return read_scaling(in, nested, rope);
  }
  if (in.find("rope_parameters.rope_theta") != nullptr) {
    HR_ASSIGN(rope->base, in.number_or("rope_parameters.rope_theta", base));
    return read_scaling(in, "rope_parameters", rope);
  }
  rope->base = base;
  return scaled ? read_scaling(in, "rope_scaling", rope) : Status();
}

Status read_rope(const Members& in, ModelConfig* config) {
  HR_ASSIGN(const double base, in.number_or("rope_theta", in.usual.rope_base));
  config->rope.original_context = static_cast<double>(config->trained_context);
  HR_TRY(read_table(in, "full_attention", base, true, &config->rope));
  config->rope_local = config->rope;
  if (config->family == Family::kGemma3) {
    config->rope_local = RopeConfig();
    HR_ASSIGN(const double local, in.number_or("rope_local_base_freq", 10000));
    if (in.find("rope_parameters.rope_theta") != nullptr) {
      return error(
          Code::kUnsupported,
          "'rope_parameters' of gemma3 without full_attention and sliding_attention");
    }
    HR_TRY(read_table(in, "sliding_attention", local, false, &config->rope_local));
  }
  config->rope_half_split = true;
  return {};
}

// By layer from "layer_types"; kUnsupported for kinds of attention that we do not know.
Status read_layer_types(const Members& in, const StringList& types, ModelConfig* config) {
  if (types.size() != static_cast<size_t>(config->layers)) {
    return error(Code::kBadFile, "'%s' has %zu entries for %lld layers",
                 in.key("layer_types").c_str(), types.size(),
                 static_cast<long long>(config->layers));
  }
  bool any = false;
  for (size_t i = 0; i < types.size(); ++i) {
    const bool local = types[i] == "sliding_attention";
    if (!local && types[i] != "full_attention") {
      return error(Code::kUnsupported, "'%s' has '%s', which is not supported",
                   in.key("layer_types").c_str(), printable(types[i]).c_str());
    }
    config->local.push_back(local);
    any = any || local;
  }
  if (!any) config->window = 0;
  return {};
}

Status read_window(const Members& in, ModelConfig* config) {
  const std::string key = in.key("sliding_window");
  if (in.usual.window < 0 || in.model.is_null(key)) return {};
  HR_ASSIGN(config->window, in.model.int_or(key, 0, kMaxContext, in.usual.window));
  const bool qwen = config->family == Family::kQwen2 || config->family == Family::kQwen3;
  if (qwen) {
    HR_ASSIGN(const bool used, in.model.bool_or(in.key("use_sliding_window"), false));
    if (!used) config->window = 0;
  }
  if (config->window == 0) return {};
  if (const MetaValue* types = in.find("layer_types")) {
    const auto* list = types->as<StringList>();
    if (list == nullptr) {
      return ModelFile::wrong_type(in.key("layer_types"), *types, "an array of strings");
    }
    return read_layer_types(in, *list, config);
  }
  if (qwen) {
    HR_ASSIGN(const int64_t first,
              in.model.int_or(in.key("max_window_layers"), 0, kMaxLayers, 28));
    for (int64_t layer = 0; layer < config->layers; ++layer) {
      config->local.push_back(layer >= first);
    }
    return {};
  }
  int64_t period = 0;
  if (config->family == Family::kGemma3) {
    HR_ASSIGN(period,
              in.model.int_or(in.key("sliding_window_pattern"), 1, kMaxLayers, 6));
  }
  config->local = local_pattern(config->layers, period);
  return {};
}

Status read_activation(const Members& in, ModelConfig* config) {
  const bool gemma = config->family == Family::kGemma3;
  const char* const name = gemma ? "hidden_activation" : "hidden_act";
  HR_ASSIGN(const std::string kind,
            in.model.string_or(in.key(name), in.usual.activation));
  if (kind == "silu") {
    config->activation = Activation::kSilu;
  } else if (kind == "gelu_pytorch_tanh") {
    config->activation = Activation::kGeluTanh;
  } else {
    return error(Code::kUnsupported,
                 "'%s' is '%s'; silu and gelu_pytorch_tanh are supported",
                 in.key(name).c_str(), printable(kind).c_str());
  }
  return {};
}

Status read_family(const Members& in, ModelConfig* config) {
  config->qkv_bias = config->family == Family::kQwen2;
  config->qk_norm = config->family == Family::kQwen3 || config->family == Family::kGemma3;
  double divisor = static_cast<double>(config->head_dim);
  if (config->family == Family::kGemma3) {
    config->post_norms = true;
    config->norm_add_one = true;
    config->embedding_scale = std::sqrt(static_cast<float>(config->embd));
    HR_ASSIGN(divisor, in.number_or("query_pre_attn_scalar", 256));
    if (!(divisor > 0)) {
      return error(Code::kBadFile, "'query_pre_attn_scalar' is %g, not above 0", divisor);
    }
  }
  config->attention_scale = 1 / std::sqrt(divisor);
  HR_ASSIGN(config->attention_softcap, in.number_or("attn_logit_softcapping", 0));
  HR_ASSIGN(config->logit_softcap, in.number_or("final_logit_softcapping", 0));
  return {};
}

}  // namespace

Result<ModelConfig> config_from_hf(const ModelFile& model) {
  ModelConfig config;
  HR_ASSIGN(config.architecture, model.need_string("model_type"));
  HR_ASSIGN(const Defaults* usual, defaults_of(config.architecture));
  config.family = usual->family;
  const bool nested = model.find("text_config.hidden_size") != nullptr;
  const Members in{model, nested ? "text_config." : "", *usual};
  HR_TRY(refuse_unsupported(model, in));
  HR_ASSIGN(config.layers, model.need_int(in.key("num_hidden_layers"), 1, kMaxLayers));
  HR_ASSIGN(config.embd, in.width("hidden_size", 0));
  HR_ASSIGN(config.ff, in.width("intermediate_size", 0));
  HR_ASSIGN(config.heads, in.width("num_attention_heads", usual->heads));
  HR_ASSIGN(config.kv_heads,
            in.width("num_key_value_heads",
                     usual->kv_heads > 0 ? usual->kv_heads : config.heads));
  const int64_t even = std::max<int64_t>(config.embd / config.heads, 1);
  HR_ASSIGN(config.head_dim,
            in.width("head_dim", usual->head_dim > 0 ? usual->head_dim : even));
  HR_ASSIGN(config.trained_context, model.int_or(in.key("max_position_embeddings"), 1,
                                                 kMaxContext, usual->context));
  HR_ASSIGN(config.rms_eps, in.number_or("rms_norm_eps", 1e-6));
  // Multimodal files say it at the top.
  HR_ASSIGN(const bool top, model.bool_or("tie_word_embeddings", usual->tied));
  HR_ASSIGN(config.tied_embeddings, model.bool_or(in.key("tie_word_embeddings"), top));
  HR_TRY(read_activation(in, &config));
  HR_TRY(read_family(in, &config));
  HR_TRY(read_rope(in, &config));
  HR_TRY(read_window(in, &config));
  return config;
}

}  // namespace headrace
