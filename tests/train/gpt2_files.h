// A tiny GPT-2 as a Hugging Face folder: products are [inputs, outputs] there. For tests.
#pragma once

#include <string>
#include <vector>

#include "tests/model/tiny_models.h"

namespace headrace::testing {

struct TinyGpt2 {
  int64_t layers = 2, hidden = 32, heads = 4, positions = 24, vocab = 80;
  std::string prefix = "transformer.";
  bool masks = true;  // the buffers of older files
};

inline std::vector<SafeTensor> tiny_gpt2_tensors(const TinyGpt2& s) {
  std::vector<SafeTensor> out;
  uint64_t seed = 5;
  const auto add = [&](const std::string& name, std::vector<int64_t> shape) {
    int64_t n = 1;
    for (const int64_t dim : shape) n *= dim;
    out.push_back(
        {s.prefix + name, "F32", std::move(shape), random_tensor(kGgmlF32, n, 0.2f, &seed)});
  };
  const int64_t d = s.hidden;
  add("wte.weight", {s.vocab, d});
  add("wpe.weight", {s.positions, d});
  for (int64_t layer = 0; layer < s.layers; ++layer) {
    const std::string h = "h." + std::to_string(layer) + ".";
    for (const char* norm : {"ln_1", "ln_2"}) {
      add(h + norm + ".weight", {d});
      add(h + norm + ".bias", {d});
    }
    if (s.masks) add(h + "attn.bias", {1, 1, s.positions, s.positions});
    const auto product = [&](const char* name, int64_t in, int64_t outputs) {
      add(h + name + ".weight", {in, outputs});
      add(h + name + ".bias", {outputs});
    };
    product("attn.c_attn", d, 3 * d);
    product("attn.c_proj", d, d);
    product("mlp.c_fc", d, 4 * d);
    product("mlp.c_proj", 4 * d, d);
  }
  add("ln_f.weight", {d});
  add("ln_f.bias", {d});
  return out;
}

inline void write_tiny_gpt2(const TinyGpt2& s, const std::string& folder) {
  const nlohmann::json config = {{"model_type", "gpt2"},
                                 {"architectures", {"GPT2LMHeadModel"}},
                                 {"n_layer", s.layers},
                                 {"n_embd", s.hidden},
                                 {"n_head", s.heads},
                                 {"n_positions", s.positions},
                                 {"n_inner", nullptr},
                                 {"vocab_size", s.vocab},
                                 {"activation_function", "gelu_new"},
                                 {"layer_norm_epsilon", 1e-5}};
  write_file(folder + "/config.json", config.dump(2));
  write_file(folder + "/model.safetensors", safetensors_bytes(tiny_gpt2_tensors(s)));
}

}  // namespace headrace::testing
