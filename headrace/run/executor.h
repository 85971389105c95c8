// The executor: walks a Program, issues kernels and transfers, waits for tickets, returns a Trace.
// It follows the plan and decides nothing.
//
// Vocabulary: a Program is prepared once (kernels found, addresses resolved) and run many times; a
// tensor is held when the device has, or is receiving, a copy of it.
//
// Promises
//   1. No allocation and no system call in run() beyond transfers, futexes and the clock, but for
//      the first time a Program writes a Trace larger than any before.
//   2. A Program may be entered only from the state that it was planned from: every weight of its
//      entry state is held at its offset (checked). Transfers in flight to anything else are
//      waited for first.
//   3. A transfer that fails is returned as its Status (file, offset, errno), with the step's
//      name; every transfer in flight is waited for, and every later run returns that error.
//   4. Same inputs, same outputs, bit for bit, whatever the timing of transfers.
// Not thread-safe.
#pragma once

#include <atomic>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "headrace/base/thread_pool.h"
#include "headrace/ir/trace.h"
#include "headrace/kernel/kernel.h"
#include "headrace/tier/arena.h"
#include "headrace/tier/tier.h"

namespace headrace {

// A Program ready to run on one Executor. Made by Executor::prepare, owned by the caller, valid
// as long as the executor.
class Prepared;
struct PreparedDeleter {
  void operator()(Prepared* p) const;
};
using PreparedPtr = std::unique_ptr<Prepared, PreparedDeleter>;

struct ExecutorState;

class Executor {
 public:
  // `tiers` by TierId; tiers[0] stands for the device and is null. All borrowed.
  Executor(Arena& arena, std::vector<Tier*> tiers, ThreadPool& pool);
  ~Executor();
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  // kUnsupported, naming the op, when a kernel is missing.
  Result<PreparedPtr> prepare(Program program);
  static const Program& program_of(const Prepared& prepared);

  // Runs the Program once with these rows (at most graph.max_rows). `trace` may be null.
  // `cancel`, when not null and set, stops between two instructions with kCancelled.
  Status run(Prepared& prepared, const StepRows& rows, Trace* trace,
             const std::atomic<bool>* cancel = nullptr);

  // The output called `name` as of the last run: [max_output_rows, cols], f32, valid until the
  // next run. Empty when the Program has no such output.
  std::span<const float> output(const Prepared& prepared, std::string_view name) const;

  // Bytes of transfers so far, by kind: Loads and Gathers.
  struct Moved {
    Bytes loaded = 0;
    Bytes gathered = 0;
    Nanos load_wait_ns = 0;  // time that compute stood still for transfers
  };
  const Moved& moved() const;

 private:
  std::unique_ptr<ExecutorState> state_;
};

}  // namespace headrace
