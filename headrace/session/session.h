// Session: a running model. Owns the arena, the tiers, the threads and the executor; knows which
// Program comes next and bridges from one to the other.
//
// Promises
//   1. Logits do not depend on the budget, the chunk, the number of threads or where bytes were.
//   2. After an error nothing more runs; every transfer has ended.
//   3. When the link turns out 20 % faster or slower than planned for 8 decode steps, and a new plan
//      is predicted to gain 5 %, the session swaps to it between two steps.
// Not thread-safe.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "headrace/run/executor.h"
#include "headrace/session/rate_monitor.h"
#include "headrace/session/session_plan.h"
#include "headrace/tier/file_tier.h"

namespace headrace {

class Session {
 public:
  // Allocates what the plan reserved. `model` and `cancel` (may be null) are borrowed.
  static Result<std::unique_ptr<Session>> start(const Model& model, SessionPlan plan,
                                                const std::atomic<bool>* cancel = nullptr);
  ~Session();

  // Appends tokens to the sequence and returns the logits that follow the last one, [vocab]
  // (with all_logits: of every row of the last chunk, [rows, vocab]); valid until the next call.
  // kUsage when the context is full, a token is outside the vocabulary, or there are none: nothing
  // has changed then.
  Result<std::span<const float>> append(std::span<const int32_t> tokens);

  // Forgets the sequence: the next append starts at position 0.
  void reset() { position_ = 0; }
  // Forgets everything from `position` on: a conversation goes on from what both versions share.
  // Precondition: 0 <= position <= position().
  void rewind(int64_t position);
  // Called within append after each step, with the tokens of this append that are done.
  void on_step(std::function<void(int64_t done)> callback) { on_step_ = std::move(callback); }
  // Positions in use.
  int64_t position() const { return position_; }

  const SessionPlan& plan() const { return plan_; }
  const Executor::Moved& moved() const { return executor_->moved(); }
  // How often the session has swapped to a new plan.
  int replans() const { return replans_; }
  // Method and notices of the tier that the weights come from.
  const TierDescription& tier() const { return tier_->describe(); }
  TierCounters tier_counters() const { return tier_->counters(); }
  // kIo when a model file was changed while the session ran.
  Status check_files() const { return tier_->check_unchanged(); }
  // The last step's Program and Trace, also of a step that failed. Precondition: there was one.
  const Program& last_program() const { return Executor::program_of(*last_); }
  const Trace& last_trace() const { return trace_; }

 private:
  // The kind of the Program that ran last. kLeft: a decode Program that has been replaced since.
  enum class Phase { kStart, kLeft, kPrefillBody, kPrefill, kDecode };

  Session(const Model& model, SessionPlan plan, const std::atomic<bool>* cancel);
  Status run(Phase phase, std::span<const int32_t> tokens);
  Result<Prepared*> prepared_for(Phase phase);
  const Program& program(Phase phase) const;
  Status plan_again(double link_bytes_per_s);

  const Model& model_;
  SessionPlan plan_;
  const std::atomic<bool>* cancel_;
  std::unique_ptr<Arena> arena_;
  std::unique_ptr<FileTier> tier_;
  std::unique_ptr<ThreadPool> pool_;
  std::unique_ptr<Executor> executor_;
  std::map<std::pair<Phase, Phase>, PreparedPtr> programs_;  // (from, to)
  Phase phase_ = Phase::kStart;
  std::vector<Placed> state_;  // what the Program that ran last left on the device
  RateMonitor monitor_;
  double new_rate_ = 0;  // of the link, when it is time to plan again; else 0
  int replans_ = 0;
  int64_t position_ = 0;
  StepRows rows_;
  Trace trace_;
  Prepared* last_ = nullptr;
  std::function<void(int64_t)> on_step_;
};

}  // namespace headrace
