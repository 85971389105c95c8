// Batch sessions of small models, and what a Session alone answers to the same tokens.
#pragma once

#include <unistd.h>

#include <filesystem>
#include <map>
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

// `above` the least budget.
inline std::unique_ptr<BatchSession> start_batch(const Model& model, BatchOptions o, Bytes above,
                                                 const WrapTier& wrap_weights = nullptr,
                                                 const WrapTier& wrap_blocks = nullptr) {
  o.machine = Machine::defaults(o.threads);
  const auto least = least_batch_memory(model, o);
  EXPECT_TRUE(least.ok()) << least.status().message();
  if (!least.ok()) return nullptr;
  // This process grows between the question for the least and the plan.
  Result<BatchPlan> plan = error(Code::kDoesNotFit, "not tried");
  for (int i = 0; i < 64 && plan.status().code() == Code::kDoesNotFit; ++i) {
    o.memory_bytes = *least + above + i * 256 * kKiB;
    plan = plan_batch(model, o);
  }
  EXPECT_TRUE(plan.ok()) << plan.status().message();
  if (!plan.ok()) return nullptr;
  const Status good = verify(plan->step);
  EXPECT_TRUE(good.ok()) << good.message();
  EXPECT_LE(plan->ledger.reserved(), o.memory_bytes);
  auto session =
      BatchSession::start(model, std::move(*plan), nullptr, wrap_weights, wrap_blocks);
  EXPECT_TRUE(session.ok()) << session.status().message();
  return session.ok() ? std::move(*session) : nullptr;
}

// What a Session answers after each prefix of a text; computed once for each.
class Alone {
 public:
  Alone(const Model& model, KvFormat format, int64_t context) {
    SessionOptions o;
    o.context = context;
    o.prompt_tokens = context / 2;
    o.new_tokens = context / 4;
    o.kv_format = format;
    o.machine = Machine::defaults(1);
    o.memory_bytes = *least_memory(model, o) + 64 * kMiB;
    session_ = start_session(model, o);
  }

  // Logits after the last of `tokens`.
  const std::vector<float>& after(const std::vector<int32_t>& tokens) {
    std::vector<float>& known = known_[tokens];
    if (!known.empty()) return known;
    size_t common = 0;
    while (common < held_.size() && common + 1 < tokens.size() && held_[common] == tokens[common]) {
      ++common;
    }
    const auto at = static_cast<size_t>(session_->rewind(static_cast<int64_t>(common)));
    held_ = tokens;
    return known = logits_of(*session_, std::span(tokens).subspan(at));
  }

 private:
  std::unique_ptr<Session> session_;
  std::vector<int32_t> held_;
  std::map<std::vector<int32_t>, std::vector<float>> known_;
};

}  // namespace headrace::test
