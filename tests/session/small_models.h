// Models large enough that their matrices are streamed (over 64 KiB each) and small
// enough for a test: a few MiB of random weights in a GGUF file with a vocabulary of its
// own.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "headrace/session/session.h"
#include "tests/model/scratch.h"
#include "tests/model/tiny_models.h"

namespace headrace::test {

inline testing::TinyShape streamed_llama() {
  testing::TinyShape s;
  s.layers = 6;
  s.embd = 128;
  s.ff = 384;
  s.head_dim = 32;
  s.vocab = 320;
  return s;
}
inline testing::TinyShape streamed_qwen3_q8() {
  testing::TinyShape s = streamed_llama();
  s.architecture = "qwen3";
  s.embd = 256;
  s.ff = 512;
  s.tied = false;
  s.type = s.down_type = s.v_type = testing::kGgmlQ8_0;
  return s;
}
inline testing::TinyShape streamed_gemma3_q4k() {
  testing::TinyShape s = streamed_llama();
  s.architecture = "gemma3";
  s.embd = 512;
  s.ff = 768;
  s.heads = 8;
  s.head_dim = 64;
  s.window = 24;
  s.type = s.v_type = testing::kGgmlQ4_K;
  s.down_type = testing::kGgmlQ5_0;
  return s;
}

// Writes the model with tokens "t0", "t1", ...; the last one ends a text.
inline void write_model(const testing::TinyShape& shape, const std::string& path) {
  testing::GgufWriter out = testing::tiny_gguf(shape);
  std::vector<std::string> tokens;
  for (int64_t i = 0; i < shape.vocab; ++i) tokens.push_back("t" + std::to_string(i));
  out.text("tokenizer.ggml.model", "gpt2");
  out.text("tokenizer.ggml.pre", "gpt-2");
  out.strings("tokenizer.ggml.tokens", tokens);
  out.strings("tokenizer.ggml.merges", {});
  out.u32("tokenizer.ggml.eos_token_id", static_cast<uint32_t>(shape.vocab - 1));
  out.write(path);
}

class SmallModel {
 public:
  explicit SmallModel(const testing::TinyShape& shape) {
    write_model(shape, scratch_.path("model.gguf"));
    auto loaded = load_model(scratch_.path("model.gguf"));
    EXPECT_TRUE(loaded.ok()) << loaded.status().message();
    model = std::move(loaded).value();
  }
  std::string path() const { return scratch_.path("model.gguf"); }
  std::unique_ptr<Model> model;

 private:
  testing::Scratch scratch_;
};

struct Setting {
  double share = 1;  // of the way from the least budget to one that holds everything
  int64_t chunk = 0;
  int threads = 1;
  bool all_logits = false;
};

inline SessionOptions session_options(const Model& model, const Setting& setting,
                                      int64_t prompt = 40, int64_t generated = 16) {
  SessionOptions o;
  o.threads = setting.threads;
  o.prompt_tokens = prompt;
  o.new_tokens = generated;
  o.chunk = setting.chunk;
  o.all_logits = setting.all_logits;
  o.machine = Machine::defaults(setting.threads);
  (void)least_memory(model, o);  // what the first question leaves in the allocator is no growth
  const auto least = least_memory(model, o);
  EXPECT_TRUE(least.ok()) << least.status().message();
  // What the process holds is rounded up to a MiB, and it grows a little between the
  // questions.
  o.memory_bytes =
      *least + 3 * kMiB / 2 +
      static_cast<Bytes>(setting.share *
                         static_cast<double>(2 * weight_bytes(model.file) + 8 * kMiB));
  return o;
}

inline std::unique_ptr<Session> start_session(const Model& model,
                                              const SessionOptions& options) {
  auto plan = plan_session(model, options);
  // This process grows between the question for the least and the plan, under a sanitizer
  // by MiB.
  SessionOptions more = options;
  for (int i = 0; i < 64 && plan.status().code() == Code::kDoesNotFit; ++i) {
    more.memory_bytes += 256 * kKiB;
    plan = plan_session(model, more);
  }
  EXPECT_TRUE(plan.ok()) << plan.status().message();
  if (!plan.ok()) return nullptr;
  auto session = Session::start(model, std::move(*plan));
  EXPECT_TRUE(session.ok()) << session.status().message();
  return session.ok() ? std::move(*session) : nullptr;
}

// What the session answers, copied.
inline std::vector<float> logits_of(Session& session, std::span<const int32_t> tokens) {
  const auto logits = session.append(tokens);
  EXPECT_TRUE(logits.ok()) << logits.status().message();
  return logits.ok() ? std::vector<float>(logits->begin(), logits->end()) : std::vector<float>();
}

// The same bits, and some.
inline bool same(const std::vector<float>& a, const std::vector<float>& b) {
  return !a.empty() && a.size() == b.size() &&
         std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

inline std::vector<int32_t> prompt_of(int64_t n, int64_t vocab, uint64_t seed = 9) {
  std::vector<int32_t> out;
  for (int64_t i = 0; i < n; ++i) {
    out.push_back(
        static_cast<int32_t>(testing::tiny::next(&seed) % static_cast<uint64_t>(vocab)));
  }
  return out;
}

}  // namespace headrace::test
