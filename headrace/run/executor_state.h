// Internal to run/: what an executor knows between steps.
#pragma once

#include <vector>

#include "headrace/run/prepared.h"
#include "headrace/run/transfers.h"

namespace headrace {

// Whether and where the device holds a named weight; it may still be arriving, see Carried.
struct Held {
  bool here = false;
  Bytes offset = 0;
};

class Walk;  // one run of one Program, see executor.cc

struct ExecutorState {
  Arena& arena;
  std::vector<Tier*> tiers;
  ThreadPool& pool;
  ExecutorOptions options;
  HeldNames names;
  std::vector<Held> held;
  std::vector<Carried> carried;
  // Where state is: where this Program has it, at exit or (written, not entered yet) at entry.
  // Null: nobody has had any.
  std::shared_ptr<PreparedProgram> state_of;
  bool state_at_exit = false;
  std::vector<uint8_t> seen;  // by HeldId: state that some Program has had
  Transfers transfers;
  std::shared_ptr<PreparedProgram> current;  // the Program entered last; null: none
  Executor::Moved moved;
  bool check_finite = false;
  Status failed;  // the error that ended it all
  // Of a run whose ops the caller computes.
  std::shared_ptr<Walk> walk;  // null: there is none
  StepRows caller_rows;
  Executor::Turn turn;
  Step abandoned_at = kEntry;  // instructions before it were issued; kEntry: none was abandoned

  ExecutorState(Arena& a, std::vector<Tier*> t, ThreadPool& p, ExecutorOptions o)
      : arena(a), tiers(std::move(t)), pool(p), options(std::move(o)), transfers(tiers, options) {}

  // True unless `place` holds bytes of a tensor that are not there.
  bool agrees(const StatePlace& place) const {
    if (state_of == nullptr || seen[static_cast<size_t>(place.held)] == 0) return true;
    return covers(state_at_exit ? state_of->state_exit : state_of->state_entry, place);
  }
  void set_state(const std::shared_ptr<PreparedProgram>& p, bool at_exit) {
    state_of = p;
    state_at_exit = at_exit;
    for (const auto* list : {&p->state_entry, &p->state_exit}) {
      for (const StatePlace& place : *list) seen[static_cast<size_t>(place.held)] = 1;
    }
  }

  // Blocks until what a Program before this one began to load of `held` is here.
  Status arrive(HeldId id) {
    Status first;
    for (size_t i = 0; i < carried.size();) {
      if (carried[i].held != id) {
        ++i;
        continue;
      }
      Status s = carried[i].tier->wait(carried[i].ticket);
      if (first.ok() && !s.ok()) {
        first = s.within("load of '" + names.name_of(id) + "' from tier '" +
                         carried[i].tier->describe().kind + "', begun by the program before");
      }
      carried[i] = carried.back();
      carried.pop_back();
    }
    return first;
  }

  // Nothing may still write into the arena afterwards.
  void drain() {
    for (const Carried& c : carried) (void)c.tier->wait(c.ticket);
    carried.clear();
    transfers.drain();
  }

  // Nothing runs any more.
  void fail(const Status& status) {
    failed = status;
    drain();
  }

  // Ok when nothing is in flight any more.
  Status settle() {
    HR_TRY(transfers.finish_all());
    while (!carried.empty()) HR_TRY(arrive(carried.front().held));
    return {};
  }
};

}  // namespace headrace
