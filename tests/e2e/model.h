// Models that the end-to-end tests run: one written by the tests themselves, large enough
// to be streamed, and a real one where the machine has it.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "tests/model/tiny_models.h"

namespace headrace::testing {

// GPT-2's alphabet: the character that each byte is written as.
inline std::string byte_letter(int byte) {
  const auto shown = [](int b) {
    return (b >= '!' && b <= '~') || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE;
  };
  int code = byte;
  if (!shown(byte)) {
    code = 256;
    for (int b = 0; b < byte; ++b) code += shown(b) ? 0 : 1;
  }
  if (code < 128) return std::string(1, static_cast<char>(code));
  return {static_cast<char>(0xC0 | code >> 6), static_cast<char>(0x80 | (code & 63))};
}

// A byte-level tokenizer without merges: 256 bytes, then begin and end, then `more`.
inline void add_byte_tokenizer(GgufWriter* gguf, const std::vector<std::string>& more = {}) {
  std::vector<std::string> tokens;
  std::vector<int32_t> kinds(258 + more.size(), 1);
  for (int b = 0; b < 256; ++b) tokens.push_back(byte_letter(b));
  for (const char* name : {"<|begin|>", "<|end|>"}) tokens.push_back(name);
  tokens.insert(tokens.end(), more.begin(), more.end());
  kinds[256] = kinds[257] = 3;
  gguf->text("tokenizer.ggml.model", "gpt2");
  gguf->text("tokenizer.ggml.pre", "gpt-2");
  gguf->strings("tokenizer.ggml.tokens", tokens);
  gguf->array("tokenizer.ggml.token_type", kGgufI32, kinds);
  gguf->strings("tokenizer.ggml.merges", {});
  gguf->u32("tokenizer.ggml.bos_token_id", 256);
  gguf->u32("tokenizer.ggml.eos_token_id", 257);
  gguf->boolean("tokenizer.ggml.add_bos_token", true);
  gguf->text("tokenizer.chat_template",
             "{{ bos_token }}{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n"
             "{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}");
}

// 27 MB of Q8_0 in 16 layers.
inline TinyShape streamed_shape() {
  TinyShape s;
  s.layers = 16;
  s.embd = 384;
  s.ff = 1024;
  s.heads = 6;
  s.kv_heads = 3;
  s.head_dim = 64;
  s.vocab = 258;
  s.type = s.down_type = s.v_type = kGgmlQ8_0;
  return s;
}

inline void write_streamed_model(const std::string& path) {
  GgufWriter gguf = tiny_gguf(streamed_shape());
  add_byte_tokenizer(&gguf);
  gguf.write(path);
}

// The real model; empty when HEADRACE_MODELS names no folder that holds it.
inline std::string real_model() {
  const char* folder = std::getenv("HEADRACE_MODELS");
  if (folder == nullptr) return "";
  const std::string path = std::string(folder) + "/SmolLM2-135M-Instruct.Q4_1.gguf";
  return std::filesystem::exists(path) ? path : "";
}

}  // namespace headrace::testing
