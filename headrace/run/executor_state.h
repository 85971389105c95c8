// Internal to run/: what an executor knows between steps.
#pragma once

#include <vector>

#include "headrace/run/prepared.h"

namespace headrace {

// What the device holds of one named tensor.
struct Held {
  bool here = false;
  Bytes offset = 0;
  Ticket pending;       // of the load that brings it; 0 once it has been waited for
  int32_t tier = 0;     // the tier of `pending`
  int32_t record = -1;  // step of the load in the current run, for the trace
};

struct ExecutorState {
  Arena& arena;
  std::vector<Tier*> tiers;
  ThreadPool& pool;
  HeldNames names;
  std::vector<Held> held;
  std::vector<Ticket> gathers;  // rows in flight
  int32_t gather_tier = 0;
  uint64_t last_id = 0;
  uint64_t current = 0;  // id of the Program entered last; 0: none
  Executor::Moved moved;
  Status failed;         // the error that ended it all

  ExecutorState(Arena& a, std::vector<Tier*> t, ThreadPool& p)
      : arena(a), tiers(std::move(t)), pool(p) {}

  Status wait(Held& h) {
    if (h.pending.value == 0) return {};
    const Ticket ticket = h.pending;
    h.pending = {};
    return tiers[static_cast<size_t>(h.tier)]->wait(ticket);
  }

  Status wait_gathers() {
    Status first;
    for (Ticket t : gathers) {
      Status s = tiers[static_cast<size_t>(gather_tier)]->wait(t);
      if (first.ok()) first = s;
    }
    gathers.clear();
    return first;
  }

  // Nothing may still write into the arena afterwards.
  void drain() {
    for (Held& h : held) (void)wait(h);
    (void)wait_gathers();
  }
};

}  // namespace headrace
