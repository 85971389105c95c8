// Counters of the engine, and their text for Prometheus.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "headrace/base/types.h"

namespace headrace {

// Fixed upper bounds in seconds, 1 ms to 100 s; the last bucket has no bound.
class Histogram {
 public:
  static constexpr std::array<double, 16> kBounds = {
      0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100};
  void add(double seconds);
  const std::array<int64_t, kBounds.size() + 1>& counts() const { return counts_; }
  int64_t count() const { return count_; }
  double sum() const { return sum_; }

 private:
  std::array<int64_t, kBounds.size() + 1> counts_{};
  int64_t count_ = 0;
  double sum_ = 0;
};

// What steps did.
struct StepSums {
  int64_t steps = 0, rows = 0;
  int64_t tokens = 0;         // that were sampled
  Bytes streamed_bytes = 0;   // of weights
  double step_seconds = 0, stall_seconds = 0;  // stall: compute stood still for transfers
  double window_seconds = 0;  // in which they were taken
  void add(const StepSums& more);  // but for the window
};

// Of the last ten whole seconds and the one that is. `now` is monotonic and never falls.
class RecentSteps {
 public:
  void add(Nanos now, const StepSums& step);
  StepSums at(Nanos now) const;

 private:
  static constexpr size_t kSeconds = 11;
  struct Second {
    int64_t number = -1;
    StepSums sums;
  };
  std::array<Second, kSeconds> seconds_;
};

// Memory of one class on one tier, for /metrics, /plan and the page.
struct MemoryUse {
  std::string tier;  // "device", "disk"
  std::string what;  // "weights", "kv", "ring", "activations", "process", "connections"
  Bytes bytes = 0;   // in use now
  Bytes limit = 0;   // that it may be
};

struct EngineMetrics {
  // Now.
  int64_t waiting = 0, running = 0, preempted = 0;  // jobs, choices, choices
  int64_t blocks = 0, blocks_free = 0;
  std::vector<MemoryUse> memory;
  double headroom_bytes = 0;  // budget less VmRSS
  bool store_writes = false;  // there is a prefix store, and its disk takes what it is given
  // Since the start.
  int64_t jobs_done = 0, jobs_failed = 0, jobs_cancelled = 0, jobs_refused = 0;
  int64_t steps = 0, rows = 0, step_failures = 0;
  int64_t prompt_tokens = 0, cached_tokens = 0, generated_tokens = 0;
  int64_t preemptions = 0, resumptions = 0;
  int64_t drafted = 0, accepted = 0;
  int64_t store_hits = 0, store_misses = 0;
  Bytes streamed_bytes = 0;
  double step_seconds = 0, stall_seconds = 0;
  StepSums recent;
  double link_bytes_per_s = 0;  // the plan's, of the tier that weights come from
  Histogram first_token, between_tokens, queue_wait;
};

// Text exposition format 0.0.4, names headrace_*; each with HELP and TYPE.
std::string prometheus_text(const EngineMetrics& metrics);

}  // namespace headrace
