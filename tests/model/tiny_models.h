// Tiny models of every family with deterministic random weights, as GGUF files and as
// Hugging Face folders. For tests; they compute, but nothing sensible.
#pragma once

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/model/gguf_writer.h"

namespace headrace::testing {

struct TinyShape {
  std::string architecture = "llama";  // llama, qwen2, qwen3, gemma3
  int64_t layers = 2;
  int64_t embd = 64;
  int64_t ff = 96;
  int64_t heads = 4;
  int64_t kv_heads = 2;
  int64_t head_dim = 16;
  int64_t vocab = 80;
  int64_t window = 0;  // gemma3: of local layers
  bool tied = true;
  uint32_t type = kGgmlF32;       // of matrices; their columns must be whole blocks of it
  uint32_t down_type = kGgmlF32;  // of ffn_down
  uint32_t v_type = kGgmlF32;     // of attn_v
  uint64_t seed = 1;
};

// Bytes of `elements` random elements of a tensor type: f32, f16 and bf16 within
// +-`scale`, quantised blocks with scales near 1/128.
std::string random_tensor(uint32_t type, int64_t elements, float scale, uint64_t* seed);

// The model's keys (but no tokenizer) and weights. All GGUF conventions hold: Gemma norms
// are around 1.
GgufWriter tiny_gguf(const TinyShape& shape);

// One tensor of a safetensors file.
struct SafeTensor {
  std::string name;
  std::string dtype;  // "F32"
  std::vector<int64_t> shape;
  std::string data;
};
std::string safetensors_bytes(const std::vector<SafeTensor>& tensors);

// config.json and tensors (all F32) of a tiny model; Gemma norms are around 0.
std::string tiny_config_json(const TinyShape& shape);
std::vector<SafeTensor> tiny_safetensors(const TinyShape& shape);
// Writes config.json and model.safetensors to the folder, which must exist.
void write_tiny_folder(const TinyShape& shape, const std::string& folder);

namespace tiny {

// splitmix64: a named generator, so that files are the same everywhere.
inline uint64_t next(uint64_t* seed) {
  uint64_t z = (*seed += 0x9e3779b97f4a7c15ull);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  return z ^ (z >> 31);
}

inline float uniform(float scale, uint64_t* seed) {
  return scale * (static_cast<float>(next(seed) >> 40) / static_cast<float>(1 << 23) - 1);
}

struct BlockType {
  int elements, bytes;
  std::vector<int> scales;  // byte offsets of the f16 scales of a block
};
inline const BlockType& block_of(uint32_t type) {
  static const std::map<uint32_t, BlockType> kBlocks = {
      {kGgmlQ4_0, {32, 18, {0}}},      {kGgmlQ4_1, {32, 20, {0, 2}}},
      {kGgmlQ5_0, {32, 22, {0}}},      {kGgmlQ5_1, {32, 24, {0, 2}}},
      {kGgmlQ8_0, {32, 34, {0}}},      {kGgmlQ2_K, {256, 84, {80, 82}}},
      {kGgmlQ3_K, {256, 110, {108}}},  {kGgmlQ4_K, {256, 144, {0, 2}}},
      {kGgmlQ5_K, {256, 176, {0, 2}}}, {kGgmlQ6_K, {256, 210, {208}}},
  };
  return kBlocks.at(type);
}

// A weight of a family: GGUF's name, Hugging Face's name, shape.
struct Weight {
  std::string gguf, hf;
  int64_t rows, cols;
  bool norm;
};

inline std::vector<Weight> weights_of(const TinyShape& s) {
  const bool gemma = s.architecture == "gemma3";
  const bool qk_norm = gemma || s.architecture == "qwen3";
  const int64_t q = s.heads * s.head_dim, kv = s.kv_heads * s.head_dim;
  std::vector<Weight> out = {
      {"token_embd.weight", "model.embed_tokens.weight", s.vocab, s.embd, false},
      {"output_norm.weight", "model.norm.weight", 1, s.embd, true}};
  if (!s.tied) out.push_back({"output.weight", "lm_head.weight", s.vocab, s.embd, false});
  for (int64_t layer = 0; layer < s.layers; ++layer) {
    const std::string g = "blk." + std::to_string(layer) + ".";
    const std::string h = "model.layers." + std::to_string(layer) + ".";
    const auto add = [&](const char* gguf, const char* hf, int64_t rows, int64_t cols,
                         bool norm) {
      out.push_back({g + gguf, h + hf, rows, cols, norm});
    };
    add("attn_norm.weight", "input_layernorm.weight", 1, s.embd, true);
    add("attn_q.weight", "self_attn.q_proj.weight", q, s.embd, false);
    add("attn_k.weight", "self_attn.k_proj.weight", kv, s.embd, false);
    add("attn_v.weight", "self_attn.v_proj.weight", kv, s.embd, false);
    if (s.architecture == "qwen2") {
      add("attn_q.bias", "self_attn.q_proj.bias", 1, q, false);
      add("attn_k.bias", "self_attn.k_proj.bias", 1, kv, false);
      add("attn_v.bias", "self_attn.v_proj.bias", 1, kv, false);
    }
    if (qk_norm) {
      add("attn_q_norm.weight", "self_attn.q_norm.weight", 1, s.head_dim, true);
      add("attn_k_norm.weight", "self_attn.k_norm.weight", 1, s.head_dim, true);
    }
    add("attn_output.weight", "self_attn.o_proj.weight", s.embd, q, false);
    if (gemma) {
      add("post_attention_norm.weight", "post_attention_layernorm.weight", 1, s.embd,
          true);
      add("ffn_norm.weight", "pre_feedforward_layernorm.weight", 1, s.embd, true);
      add("post_ffw_norm.weight", "post_feedforward_layernorm.weight", 1, s.embd, true);
    } else {
      add("ffn_norm.weight", "post_attention_layernorm.weight", 1, s.embd, true);
    }
    add("ffn_gate.weight", "mlp.gate_proj.weight", s.ff, s.embd, false);
    add("ffn_up.weight", "mlp.up_proj.weight", s.ff, s.embd, false);
    add("ffn_down.weight", "mlp.down_proj.weight", s.embd, s.ff, false);
  }
  return out;
}

// Norm weights: `centre` plus a little.
inline std::string norm_data(int64_t elements, float centre, uint64_t* seed) {
  std::string out;
  for (int64_t i = 0; i < elements; ++i) put<float>(&out, centre + uniform(0.1f, seed));
  return out;
}

inline uint32_t type_of(const TinyShape& s, const Weight& w) {
  if (w.rows == 1) return kGgmlF32;
  if (w.gguf.ends_with("ffn_down.weight")) return s.down_type;
  if (w.gguf.ends_with("attn_v.weight")) return s.v_type;
  return s.type;
}

}  // namespace tiny

inline std::string random_tensor(uint32_t type, int64_t elements, float scale,
                                 uint64_t* seed) {
  std::string out;
  if (type == kGgmlF32 || type == kGgmlF16 || type == kGgmlBF16) {
    for (int64_t i = 0; i < elements; ++i) {
      const float value = tiny::uniform(scale, seed);
      uint32_t bits;
      std::memcpy(&bits, &value, 4);
      if (type == kGgmlF32) put(&out, value);
      if (type == kGgmlBF16) put(&out, static_cast<uint16_t>(bits >> 16));
      if (type == kGgmlF16) {
        // Truncated; values below 2^-14 become 0, which is as good a random number.
        const int exponent = static_cast<int>((bits >> 23) & 255) - 112;
        const uint32_t sign = (bits >> 16) & 0x8000;
        const uint32_t half =
            exponent <= 0 ? 0
                          : static_cast<uint32_t>(exponent) << 10 | ((bits >> 13) & 1023);
        put(&out, static_cast<uint16_t>(sign | half));
      }
    }
    return out;
  }
  const tiny::BlockType& block = tiny::block_of(type);
  for (int64_t i = 0; i < elements / block.elements; ++i) {
    std::string bytes;
    while (static_cast<int>(bytes.size()) < block.bytes) put(&bytes, tiny::next(seed));
    bytes.resize(static_cast<size_t>(block.bytes));
    for (const int at : block.scales) {
      // An f16 from 2^-8 to 2^-7: exponent 7, a random mantissa.
      const auto half = static_cast<uint16_t>(7 << 10 | (tiny::next(seed) & 1023));
      std::memcpy(bytes.data() + at, &half, 2);
    }
    out += bytes;
  }
  return out;
}

inline GgufWriter tiny_gguf(const TinyShape& s) {
  GgufWriter out;
  const std::string a = s.architecture + ".";
  out.text("general.architecture", s.architecture);
  out.u32(a + "block_count", static_cast<uint32_t>(s.layers));
  out.u32(a + "embedding_length", static_cast<uint32_t>(s.embd));
  out.u32(a + "feed_forward_length", static_cast<uint32_t>(s.ff));
  out.u32(a + "attention.head_count", static_cast<uint32_t>(s.heads));
  out.u32(a + "attention.head_count_kv", static_cast<uint32_t>(s.kv_heads));
  out.u32(a + "attention.key_length", static_cast<uint32_t>(s.head_dim));
  out.u32(a + "attention.value_length", static_cast<uint32_t>(s.head_dim));
  out.u32(a + "context_length", 512);
  out.f32(a + "attention.layer_norm_rms_epsilon", 1e-5f);
  if (s.window > 0)
    out.u32(a + "attention.sliding_window", static_cast<uint32_t>(s.window));
  uint64_t seed = s.seed;
  for (const tiny::Weight& w : tiny::weights_of(s)) {
    const int64_t elements = w.rows * w.cols;
    const uint32_t type = tiny::type_of(s, w);
    std::vector<uint64_t> dims = {static_cast<uint64_t>(w.cols)};
    if (w.rows > 1) dims.push_back(static_cast<uint64_t>(w.rows));
    out.tensor(w.gguf, type, dims,
               w.norm ? tiny::norm_data(elements, 1, &seed)
                      : random_tensor(type, elements, 0.2f, &seed));
  }
  return out;
}

inline std::string safetensors_bytes(const std::vector<SafeTensor>& tensors) {
  nlohmann::json header = {{"__metadata__", {{"format", "pt"}}}};
  std::string data;
  for (const SafeTensor& t : tensors) {
    header[t.name] = {{"dtype", t.dtype},
                      {"shape", t.shape},
                      {"data_offsets", {data.size(), data.size() + t.data.size()}}};
    data += t.data;
  }
  std::string text = header.dump();
  while (text.size() % 8 != 0) text.push_back(' ');
  std::string out;
  put<uint64_t>(&out, text.size());
  return out + text + data;
}

inline std::string tiny_config_json(const TinyShape& s) {
  const bool gemma = s.architecture == "gemma3";
  nlohmann::json out = {
      {"model_type", gemma ? "gemma3_text" : s.architecture},
      {"num_hidden_layers", s.layers},
      {"hidden_size", s.embd},
      {"intermediate_size", s.ff},
      {"num_attention_heads", s.heads},
      {"num_key_value_heads", s.kv_heads},
      {"head_dim", s.head_dim},
      {"vocab_size", s.vocab},
      {"max_position_embeddings", 512},
      {"rms_norm_eps", 1e-5},
      {"rope_theta", gemma ? 1e6 : 1e4},
      {"tie_word_embeddings", s.tied},
      {"sliding_window", nullptr},
  };
  if (s.window > 0) out["sliding_window"] = s.window;
  if (gemma) out["query_pre_attn_scalar"] = s.head_dim;
  return out.dump(2);
}

inline std::vector<SafeTensor> tiny_safetensors(const TinyShape& s) {
  std::vector<SafeTensor> out;
  uint64_t seed = s.seed;
  const float centre = s.architecture == "gemma3" ? 0 : 1;
  for (const tiny::Weight& w : tiny::weights_of(s)) {
    const int64_t elements = w.rows * w.cols;
    std::vector<int64_t> shape = {w.rows, w.cols};
    if (w.rows == 1) shape = {w.cols};
    out.push_back({w.hf, "F32", shape,
                   w.norm ? tiny::norm_data(elements, centre, &seed)
                          : random_tensor(kGgmlF32, elements, 0.2f, &seed)});
  }
  return out;
}

inline void write_tiny_folder(const TinyShape& shape, const std::string& folder) {
  write_file(folder + "/config.json", tiny_config_json(shape));
  write_file(folder + "/model.safetensors", safetensors_bytes(tiny_safetensors(shape)));
}

}  // namespace headrace::testing
