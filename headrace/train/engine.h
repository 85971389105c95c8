// TrainEngine: the memory, tiers, threads and executor that run one plan of a training step.
//
// Promises
//   1. Scratch files are removed from their folder as soon as they are open: a crash leaves nothing.
//   2. After an error nothing more runs; every transfer has ended.
// Not thread-safe.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "headrace/run/executor.h"

namespace headrace {

struct EngineOptions {
  // By TierId of the Program; [0], the device, is not used.
  struct TierPlace {
    std::string folder;       // of the scratch file; empty: a tier in this process's memory
    std::string frozen_file;  // not empty: this file, only read, is the tier's object 0
  };
  std::vector<TierPlace> tiers;
  int threads = 1;
  bool caller_computes = false;  // begin(), next(), ... instead of run(): see Executor
  bool paranoid = false;  // freed memory is filled with NaN; what comes from a file is checked
  // Tests: puts something around tier number `t`.
  std::function<std::unique_ptr<Tier>(std::unique_ptr<Tier>, size_t t)> wrap;
};

class TrainEngine {
 public:
  // Precondition: verify(program) is ok. kIo when a scratch file cannot be made or has no room on its
  // disk, with the bytes needed; kDoesNotFit when the system refuses memory.
  static Result<std::unique_ptr<TrainEngine>> start(Program program, const EngineOptions& options);
  ~TrainEngine();

  // One run of the step. Preconditions: state has been written.
  Status run(const StepRows& rows, Trace* trace);
  // The same with ops that the caller computes, as Executor has it.
  Status begin(const StepRows& rows, Trace* trace) {
    return executor_->begin(*prepared_, rows, trace);
  }
  Result<const Executor::Turn*> next() { return executor_->next(); }
  Status abandon() { return executor_->abandon(); }
  Status read_abandoned(std::string_view name, std::span<std::byte> out) {
    return executor_->read_abandoned(name, out);
  }
  // From the frozen file; once, before the first run.
  Status load_frozen() { return executor_->load_entry_state(*prepared_); }
  Status write(std::string_view name, Bytes begin, std::span<const std::byte> bytes);
  Status read(std::string_view name, Bytes begin, std::span<std::byte> out);
  // Of the last run; empty when there is no such output.
  std::span<const float> output(std::string_view name) const;
  // Turns point into it; it may outlive the engine.
  const std::shared_ptr<Arena>& arena() const { return arena_; }
  void check_finite(bool on) { executor_->check_finite(on); }

  const Program& program() const { return Executor::program_of(*prepared_); }
  // Since the start, by TierId.
  std::vector<TierCounters> counters() const;
  const TierDescription& tier(size_t t) const { return tiers_[t]->describe(); }

 private:
  TrainEngine() = default;

  std::shared_ptr<Arena> arena_;
  std::vector<std::unique_ptr<Tier>> tiers_;
  std::unique_ptr<ThreadPool> pool_;
  std::unique_ptr<Executor> executor_;
  PreparedPtr prepared_;
};

}  // namespace headrace
