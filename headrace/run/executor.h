// The executor: walks a Program, issues kernels and transfers, waits for tickets, returns a Trace.
// It follows the plan and decides nothing.
//
// Vocabulary
//   prepared  kernels found, addresses resolved; a Program is prepared once and run many times.
//   held      a weight that the device has, or is receiving.
//   copy      what the Program keeps in another tier than the device. Copies of tier k live in one
//             range of one object of that tier, its CopyPlace: byte `offset` of the Program's tier
//             is byte CopyPlace::offset + offset of that object.
//
// Promises
//   1. No allocation and no system call in run() beyond transfers, futexes and the clock, but for
//      the first time a Program writes a Trace larger than any before.
//   2. A Program may be entered only from the state that it was planned from (checked): every
//      weight of its entry state is held at its offset; state that an earlier Program had, or that
//      was written, lies in every place, on the device and as copies, where this one has it at
//      entry. State that nobody has had yet begins as whatever bytes are there. Transfers in flight
//      to anything else are waited for first.
//   3. A transfer that fails is returned as its Status (object, offset, errno) with step, tensor
//      and tier; every transfer in flight is waited for, and every later run returns that error.
//   4. Same inputs, same outputs, bit for bit, whatever the timing of transfers.
//   5. Instr.waits are obeyed exactly, and what they imply (program.h, "order"): a transfer that
//      has to wait is queued on its stream and started by the executor's thread at the next
//      instruction boundary, or while that thread waits anyway. Instructions of one stream end in
//      their order.
//   6. When run() of a Program that is not cyclic returns, all its Stores have ended; Loads of
//      weights may go on into the next Program. Those of a cyclic one may go on into the next
//      cycle. What its outputs are loaded from has arrived in either case.
//   7. Of a KV slot that has a copy, a Load or Store moves what this step needs (kv_part in
//      ir/kv.h), looked up when it is issued. One that moves nothing ends when it is its turn.
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
#include "headrace/tier/clock.h"
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

// Where in a tier the copies of Programs live.
struct CopyPlace {
  int32_t object = -1;  // -1: this tier holds none
  Bytes offset = 0;     // a multiple of the tier's alignment
  Bytes bytes = 0;
};

struct ExecutorOptions {
  std::vector<CopyPlace> copies;  // by TierId; tiers past its end hold none
  // Every compute, encode and decode instruction takes at least its predicted cost, as a device of
  // that speed would: the thread sleeps, spins for the last 200 us, and starts transfers meanwhile.
  bool emulate_compute = false;
  // Tests: bytes are filled with 0xFF (a NaN in every float format) as soon as no residency and no
  // unfinished transfer holds them.
  bool poison_freed = false;
  // Ops are computed by the caller, between begin() and the end of the run: no kernel is looked up.
  bool caller_computes = false;
  // Must outlive the executor. With emulate_compute, and tiers behind an EmulatedLink of the same
  // ManualClock, time is virtual and every Trace is repeatable.
  Clock* clock = &real_clock();
};

class Executor {
 public:
  // `tiers` by TierId; tiers[0] stands for the device and is null. All borrowed.
  Executor(Arena& arena, std::vector<Tier*> tiers, ThreadPool& pool, ExecutorOptions options = {});
  ~Executor();
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  // Precondition: verify(program) is ok. Errors: kUnsupported, naming the op, when a kernel is
  // missing, or naming tensor and tier when an extent has not the tier's alignment; kDoesNotFit
  // when the arena or a CopyPlace is too small; kUsage when a tier that the Program uses was not
  // given.
  Result<PreparedPtr> prepare(Program program);
  static const Program& program_of(const Prepared& prepared);

  // Runs the Program once with these rows (at most graph.max_rows). `trace` may be null.
  // `cancel`, when not null and set, stops between two instructions with kCancelled.
  Status run(Prepared& prepared, const StepRows& rows, Trace* trace,
             const std::atomic<bool>* cancel = nullptr);

  // The same run with the caller between the instructions (caller_computes): begin(), then next()
  // until it returns null. Each turn is an op that may now be computed, whose operands stay where
  // they are until the next call; what it writes must be there by then. One such run at a time.
  struct Turn {
    OpId op;
    std::span<const std::byte* const> inputs;  // null: an absent one
    std::span<std::byte* const> outputs, updates;
  };
  Status begin(Prepared& prepared, const StepRows& rows, Trace* trace);
  Result<const Turn*> next();
  // Ends a run in the middle, before the op of the last turn has been computed: all transfers end.
  // Nothing runs afterwards, but read_abandoned(); not even that when a transfer failed.
  Status abandon();
  // After abandon() was ok: the first bytes of a tensor that a later op of the Program would have
  // read. kUsage when there is no such tensor, or not all of these bytes are anywhere.
  Status read_abandoned(std::string_view name, std::span<std::byte> out);

  // The output called `name` as of the last run: [max_output_rows, cols], f32, valid until the
  // next run. Empty when the Program has no such output.
  std::span<const float> output(const Prepared& prepared, std::string_view name) const;

  // Loads the weights that the Program expects at entry, on the device and as copies, from their
  // files: for the first run of a Program that no other leads to. Waits for all transfers.
  Status load_entry_state(const Prepared& prepared);
  // Writes bytes [begin, begin + bytes.size()) of a state tensor to every place where the Program
  // has it at entry, or at exit when it is the Program that ran last: what it will find. Copies are
  // written without reading, but for the units of a tier of which the part has only some bytes.
  // kUsage when there is no such state tensor, or it has no such bytes, or the Program last run has
  // left it in other places; kUnsupported when it is encoded there.
  Status write_state(const Prepared& prepared, std::string_view name,
                     std::span<const std::byte> bytes, Bytes begin = 0);
  // Reads such a part of a state tensor from where the Program has left it. Errors as write_state;
  // that of a run that failed: what it left is half of a step.
  Status read_state(const Prepared& prepared, std::string_view name, std::span<std::byte> out,
                    Bytes begin);
  // All of it.
  Result<std::vector<std::byte>> read_state(const Prepared& prepared, std::string_view name);

  // The error that ended it all; ok: there was none.
  const Status& failed() const;

  // From now on every f32, bf16 or f16 value that an op writes is looked at, and a run ends with
  // kNotFinite, naming op, tensor and element, at the first NaN or infinity. For finding out what
  // went wrong: all memory is read once more.
  void check_finite(bool on);

  // Bytes of transfers so far, by kind.
  struct Moved {
    Bytes loaded = 0;
    Bytes gathered = 0;
    Bytes stored = 0;
    Nanos load_wait_ns = 0;  // time that compute stood still for transfers
    // KV slots: their share of the three above.
    Bytes kv_loaded = 0;
    Bytes kv_stored = 0;
    Nanos kv_wait_ns = 0;
  };
  const Moved& moved() const;

 private:
  std::unique_ptr<ExecutorState> state_;
};

// By TierId: the bytes that the Program's copies take in each tier (0 for the device).
std::vector<Bytes> copy_bytes(const Program& program);

}  // namespace headrace
