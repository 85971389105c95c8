#include "headrace/model/model_config.h"

#include <cmath>
#include <cstring>

#include "headrace/model/file_reader.h"
#include "headrace/model/model_config_parts.h"

namespace headrace {
namespace {

float half_to_float(uint16_t half) {
  const float sign = (half & 0x8000) != 0 ? -1.0f : 1.0f;
  const int exponent = (half >> 10) & 31;
  const auto mantissa = static_cast<float>(half & 1023);
  if (exponent == 31) return mantissa == 0 ? sign * HUGE_VALF : NAN;
  if (exponent == 0) return sign * std::ldexp(mantissa, -24);
  return sign * std::ldexp(1024.0f + mantissa, exponent - 25);
}

float bf16_to_float(uint16_t bits) {
  const uint32_t wide = static_cast<uint32_t>(bits) << 16;
  float out;
  std::memcpy(&out, &wide, sizeof(out));
  return out;
}

// llama3 scaling in a GGUF file is a tensor of divisors.
Status read_divisors(const ModelFile& model, ModelConfig* config) {
  const WeightInfo* freqs = model.weight("rope_freqs.weight");
  if (freqs == nullptr) return {};
  HR_ASSIGN(config->rope.divisors, read_small_weight(model, *freqs));
  return {};
}

Status check_shapes(const ModelConfig& c) {
  if (c.heads % c.kv_heads != 0) {
    return error(Code::kBadFile, "%lld heads are not a multiple of %lld key/value heads",
                 static_cast<long long>(c.heads), static_cast<long long>(c.kv_heads));
  }
  if (c.head_dim % 2 != 0) {
    return error(Code::kUnsupported, "heads of %lld dimensions, an odd number",
                 static_cast<long long>(c.head_dim));
  }
  if (!(c.rms_eps >= 0 && c.rms_eps < 1)) {
    return error(Code::kBadFile, "the norms' epsilon is %g, not within 0 and 1",
                 c.rms_eps);
  }
  if (!(c.attention_scale > 0)) {
    return error(Code::kBadFile, "the attention scale is %g, not above 0",
                 c.attention_scale);
  }
  if (c.attention_softcap < 0 || c.logit_softcap < 0) {
    return error(Code::kBadFile, "a soft cap is below 0 (%g, %g)", c.attention_softcap,
                 c.logit_softcap);
  }
  return {};
}

Status read_embedding(const ModelFile& model, ModelConfig* config) {
  const WeightInfo* table = model.weight("token_embd.weight");
  if (table == nullptr) {
    return error(Code::kBadFile, "tensor 'token_embd.weight' is missing");
  }
  if (table->cols != config->embd) {
    return error(Code::kBadFile, "tensor 'token_embd.weight' has rows of %lld, not %lld",
                 static_cast<long long>(table->cols),
                 static_cast<long long>(config->embd));
  }
  if (table->rows > kMaxContext) {
    return error(Code::kBadFile, "tensor 'token_embd.weight' has %lld rows",
                 static_cast<long long>(table->rows));
  }
  config->vocab = table->rows;
  if (model.format == ModelFormat::kGguf) {
    config->tied_embeddings = model.weight("output.weight") == nullptr;
  }
  return {};
}

}  // namespace

const char* name_of(Family family) {
  switch (family) {
    case Family::kLlama: return "llama";
    case Family::kMistral: return "mistral";
    case Family::kQwen2: return "qwen2";
    case Family::kQwen3: return "qwen3";
    case Family::kGemma3: return "gemma3";
  }
  return "?";
}

std::vector<bool> local_pattern(int64_t layers, int64_t period) {
  std::vector<bool> out;
  for (int64_t layer = 0; layer < layers; ++layer) {
    out.push_back(period == 0 || (layer + 1) % period != 0);
  }
  return out;
}

Result<std::vector<float>> read_small_weight(const ModelFile& model,
                                             const WeightInfo& weight) {
  const std::string name = printable(weight.name);
  if (weight.source.bytes > 16 * kMiB) {
    return error(Code::kBadFile, "tensor '%s' has %lld bytes; a small one was expected",
                 name.c_str(), static_cast<long long>(weight.source.bytes));
  }
  const DType type = weight.dtype;
  if (type != DType::kF32 && type != DType::kF16 && type != DType::kBF16) {
    return error(Code::kUnsupported, "tensor '%s' has type %s, not f32, f16 or bf16",
                 name.c_str(), name_of(type));
  }
  HR_ASSIGN(FileReader in,
            FileReader::open(model.paths[static_cast<size_t>(weight.source.file)]));
  if (weight.source.offset > in.size()) {
    return error(Code::kIo, "%s: became shorter than %lld bytes", in.path().c_str(),
                 static_cast<long long>(weight.source.offset));
  }
  in.seek(weight.source.offset);
  std::vector<float> out(static_cast<size_t>(weight.rows * weight.cols));
  for (float& value : out) {
    if (type == DType::kF32) {
      HR_ASSIGN(value, in.number<float>(name.c_str()));
    } else {
      HR_ASSIGN(const uint16_t bits, in.number<uint16_t>(name.c_str()));
      value = type == DType::kF16 ? half_to_float(bits) : bf16_to_float(bits);
    }
  }
  return out;
}

Result<ModelConfig> read_config(const ModelFile& model) {
  HR_ASSIGN(ModelConfig config, model.format == ModelFormat::kGguf
                                    ? config_from_gguf(model)
                                    : config_from_hf(model));
  HR_TRY(read_embedding(model, &config));
  HR_TRY(read_divisors(model, &config));
  HR_TRY(check_shapes(config));
  // Their parameters are checked where the frequencies are computed.
  for (const RopeConfig* rope : {&config.rope, &config.rope_local}) {
    HR_ASSIGN(const auto unused, inverse_frequencies(*rope, config.head_dim));
    (void)unused;
  }
  return config;
}

}  // namespace headrace
