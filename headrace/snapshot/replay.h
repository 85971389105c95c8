// Replay: a recorded trace as a step to be planned, and how much memory a plan would have needed.
//
// A snapshot says when buffers were given out and back, not when they were used. What is assumed,
// so that the answer is no promise but is not made too easy either:
//   - a buffer is used when it is given out, by the kSettleOps allocations after that, and last
//     just before it is given back;
//   - what was there before the trace, and what is still there after it, stays on the device: the
//     first all the time, the second from when it was given out;
//   - time passes on the device as between the events (recorded where kernels are launched);
//   - nothing is recomputed.
#pragma once

#include <functional>

#include "headrace/cost/machine.h"
#include "headrace/ir/rules.h"
#include "headrace/snapshot/lifetimes.h"

namespace headrace {

constexpr int kSettleOps = 8;

// One op for each event that gave out memory. kUsage when there is none.
Result<Workload> replay_workload(const MemorySnapshot& snapshot, int32_t device);

struct WouldFit {
  Bytes budget = 0;          // the smallest found within the slowdown
  double slowdown = 0;       // predicted, of that one: 0.03 is 3 %
  Bytes least = 0;           // below that no plan of this trace is possible
  Nanos unlimited_ns = 0;    // with all the memory that it wants
  Bytes unlimited_bytes = 0;  // live at the peak then
  Bytes moved_bytes = 0;     // loaded and stored, at `budget`
};
// The smallest budget, to 1 %, at which the planned step on `machine` is predicted to take at most
// (1 + slowdown) of the time with enough memory. `before` is called before each plan; false stops
// (kCancelled). Errors of plan_step.
Result<WouldFit> would_fit(const Workload& workload, const Machine& machine, double slowdown,
                           const std::function<bool()>& before);

}  // namespace headrace
