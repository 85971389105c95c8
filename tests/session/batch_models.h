// Batch sessions of small models, and what a Session alone answers to the same tokens.
#pragma once

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "headrace/session/batch_session.h"
#include "tests/session/small_models.h"

namespace headrace::test {

// Beside the folder that the model lies in.
class BlockFolder {
 public:
  BlockFolder() : folder_(::testing::TempDir() + "headrace_blocks_" + std::to_string(::getpid())) {
    std::filesystem::create_directories(folder_);
  }
  ~BlockFolder() { std::filesystem::remove_all(folder_); }
  const std::string& folder() const { return folder_; }

 private:
  std::string folder_;
};

struct BatchSetting {
  Bytes above = 3 * kMiB;  // the least budget
  WrapTier wrap_weights = nullptr, wrap_blocks = nullptr;
  const std::atomic<bool>* cancel = nullptr;
};

inline std::unique_ptr<BatchSession> start_batch(const Model& model, BatchOptions o,
                                                 const BatchSetting& setting = {}) {
  o.machine = Machine::defaults(o.threads);
  const auto least = least_batch_memory(model, o);
  EXPECT_TRUE(least.ok()) << least.status().message();
  if (!least.ok()) return nullptr;
  // This process grows between the question for the least and the plan.
  Result<BatchPlan> plan = error(Code::kDoesNotFit, "not tried");
  for (int i = 0; i < 64 && plan.status().code() == Code::kDoesNotFit; ++i) {
    o.memory_bytes = *least + setting.above + i * 256 * kKiB;
    plan = plan_batch(model, o);
  }
  EXPECT_TRUE(plan.ok()) << plan.status().message();
  if (!plan.ok()) return nullptr;
  const Status good = verify(plan->step);
  EXPECT_TRUE(good.ok()) << good.message();
  EXPECT_LE(plan->ledger.reserved(), o.memory_bytes);
  auto session = BatchSession::start(model, std::move(*plan), setting.cancel,
                                     setting.wrap_weights, setting.wrap_blocks);
  EXPECT_TRUE(session.ok()) << session.status().message();
  return session.ok() ? std::move(*session) : nullptr;
}

// Texts that begin alike for different lengths, and what a Session answers after each of their
// tokens.
class Texts {
 public:
  // Text i goes its own way from `shared[i]` on; text 0 has none before it.
  Texts(const Model& model, KvFormat format, int64_t length, const std::vector<int64_t>& shared)
      : vocab_(static_cast<size_t>(model.config.vocab)) {
    constexpr int64_t kChunk = 64;
    SessionOptions o;
    o.context = length;
    o.prompt_tokens = length - 1;
    o.new_tokens = 1;
    o.chunk = kChunk;
    o.all_logits = true;
    o.kv_format = format;
    o.machine = Machine::defaults(1);
    o.memory_bytes = *least_memory(model, o) + 64 * kMiB;
    const auto session = start_session(model, o);
    for (size_t i = 0; i < shared.size(); ++i) {
      std::vector<int32_t> text = prompt_of(length, model.config.vocab, 100 + i);
      if (i > 0) std::copy_n(texts_[0].begin(), shared[i], text.begin());
      std::vector<float> all;
      session->reset();
      for (size_t at = 0; at < text.size(); at += kChunk) {
        const auto part = std::span(text).subspan(at, std::min(text.size() - at, size_t{kChunk}));
        const auto some = logits_of(*session, part);
        all.insert(all.end(), some.begin(), some.end());
      }
      EXPECT_EQ(all.size(), text.size() * vocab_);
      texts_.push_back(std::move(text));
      logits_.push_back(std::move(all));
    }
  }

  size_t size() const { return texts_.size(); }
  std::span<const int32_t> tokens(size_t text, int64_t begin, int64_t count) const {
    return std::span(texts_[text]).subspan(static_cast<size_t>(begin), static_cast<size_t>(count));
  }
  // Both begin with the same so many tokens.
  bool alike(size_t a, size_t b, int64_t length) const {
    return std::equal(texts_[a].begin(), texts_[a].begin() + length, texts_[b].begin());
  }
  // These are the logits after position `at`, to the bit.
  bool are(std::span<const float> logits, size_t text, int64_t at) const {
    const float* want = logits_[text].data() + static_cast<size_t>(at) * vocab_;
    return logits.size() == vocab_ &&
           std::memcmp(logits.data(), want, vocab_ * sizeof(float)) == 0;
  }

 private:
  const size_t vocab_;
  std::vector<std::vector<int32_t>> texts_;
  std::vector<std::vector<float>> logits_;
};

}  // namespace headrace::test
