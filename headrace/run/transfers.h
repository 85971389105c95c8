// Internal to run/: the transfers of the Program that an executor is in, from issue to end.
//
// Each stream is a list of steps in the order issued: those given to their tier (flying), then
// those that still wait (queued). A step leaves the list when it has ended, the oldest first, so
// that whoever waits for a step has waited for all before it on its stream; only gathers of
// Programs without Stores may end before older Loads, which they share no byte with.
#pragma once

#include <vector>

#include "headrace/run/prepared.h"

namespace headrace {

// A Load of a weight that a Program before the present one has left in flight.
struct Carried {
  HeldId held = -1;
  Tier* tier = nullptr;
  Ticket ticket;
};

class Transfers {
 public:
  Transfers(const std::vector<Tier*>& tiers, const ExecutorOptions& options)
      : tiers_(tiers), clock_(*options.clock), eager_(options.emulate_compute) {}

  // Room for this Program: no later call allocates for it.
  void reserve(const PreparedProgram& p);

  // Steps mean those of `p` from now on. Precondition: nothing is in flight or queued.
  void enter(const PreparedProgram& p) { p_ = &p; }
  // Records of what is issued from now on go to `trace` (may be null), with times since `start`.
  void begin_run(Trace* trace, const StepRows* rows, Nanos start);
  void end_run() { trace_ = nullptr; }

  // Starts the transfer of `step`, or queues it while others must end first. Returns the bytes that
  // it moves; of a KV slot that depends on the rows of this run. Waits when the step's execution in
  // the previous cycle has not ended.
  Result<Bytes> issue(int32_t step);
  bool ended(int32_t step) const { return flights_[static_cast<size_t>(step)].state == kIdle; }
  // Blocks until `step` has ended.
  Status finish(int32_t step);
  Status finish_all();
  // All queued transfers are started, all Stores have ended.
  Status finish_stores();
  // Notes what has ended, if somebody may wait for it, and starts what may start. Never blocks.
  Status pump();
  // Lets every tier work.
  void poll();
  // Blocks until `deadline`, pumping.
  Status busy_until(Nanos deadline);
  // Moves Loads of weights for which keep(held, near) to `carried`; waits for everything else.
  template <typename Keep>
  Status hand_over(std::vector<Carried>& carried, Keep keep);
  // Waits for whatever flies and forgets what is queued, whatever fails.
  void drain();
  // True when an unfinished transfer touches the bytes.
  bool uses(std::span<const std::byte> bytes) const;

 private:
  enum State : uint8_t { kIdle, kQueued, kFlying };
  struct Flight {
    State state = kIdle;
    int32_t before = -1, after = -1;  // on its stream
    Ticket ticket;
    MovedPart part;    // of a Load or Store
    uint64_t run = 0;  // in which it was issued
    uint64_t serial = 0;  // of the issue
  };
  struct Stream {
    int32_t head = -1, tail = -1;
    int32_t queued = -1;  // the oldest that has not been started
    Nanos last_end = 0;
  };
  struct Row {
    int32_t step = -1;
    Ticket ticket;
  };

  Flight& flight(int32_t step) { return flights_[static_cast<size_t>(step)]; }
  Stream& stream_of(int32_t step) {
    return streams_[static_cast<size_t>(p_->transfer(step).stream)];
  }
  // Waits mean what was issued before: not the execution of `w` in the cycle after.
  bool blocks(int32_t w, int32_t step) const {
    const Flight& f = flights_[static_cast<size_t>(w)];
    if (f.state == kIdle || f.serial >= flights_[static_cast<size_t>(step)].serial) return false;
    return !(f.state == kFlying && moves_nothing(w) && same_stream(w, step));
  }
  // Of one that has started: all it waited for has ended. What flies before it on its stream shares
  // no byte with a later one of that stream but by waits of that one (add_stream_waits); so a later
  // one need not be held back until those have ended, and the queue of the link stays deep.
  bool moves_nothing(int32_t step) const {
    return p_->transfer(step).kind != InstrKind::kGather &&
           flights_[static_cast<size_t>(step)].part.bytes() == 0;
  }
  bool same_stream(int32_t a, int32_t b) const {
    return p_->transfer(a).stream == p_->transfer(b).stream;
  }
  Status start_ready(Stream& stream);
  Status start(int32_t step);
  Status start_rows(int32_t step, const TransferStep& t);
  std::span<std::byte> near_of(int32_t step) const;
  bool done(int32_t step);
  Status end(int32_t step);
  Status end_rows(int32_t step, Tier& tier);
  Status block_for(int32_t step);
  void remove(int32_t step);
  Status named(const Status& status, int32_t step) const;

  const std::vector<Tier*>& tiers_;
  Clock& clock_;
  const bool eager_;  // ends are noted as soon as they are seen
  const PreparedProgram* p_ = nullptr;
  std::vector<Flight> flights_;  // by step
  std::vector<Stream> streams_;
  std::vector<Row> rows_;        // of gathers in flight
  int queued_ = 0;
  int flying_ = 0;
  Trace* trace_ = nullptr;
  const StepRows* step_rows_ = nullptr;
  Nanos start_ = 0;
  uint64_t run_ = 0;
  uint64_t serial_ = 0;
};

template <typename Keep>
Status Transfers::hand_over(std::vector<Carried>& carried, Keep keep) {
  HR_TRY(finish_stores());
  for (Stream& s : streams_) {
    for (int32_t step = s.head; step >= 0;) {
      const int32_t next = flight(step).after;
      const TransferStep& t = p_->transfer(step);
      if (t.held >= 0 && keep(t)) {
        carried.push_back({t.held, t.tier, flight(step).ticket});
        flight(step).ticket = {};
        remove(step);
      }
      step = next;
    }
  }
  return finish_all();
}

}  // namespace headrace
