// TicketTable: the fixed table of transfers that every tier keeps.
//
// Ticket t lives in slot t % size, so that finding it needs no map and no allocation. A
// slot is taken again by ticket t + size. Before that the tier ends the old occupant
// itself; one that ended well is forgotten (waiting for it later says ok, which is true),
// one that failed and was not waited for is kept, and the new transfer is refused with
// its Status: no failure is ever lost and no caller can deadlock a tier by not waiting.
//
// Not thread-safe.
#pragma once

#include <cstdint>
#include <vector>

#include "headrace/base/status.h"
#include "headrace/tier/tier.h"

namespace headrace {

template <typename Slot>
class TicketTable {
 public:
  explicit TicketTable(int size) : entries_(static_cast<size_t>(size)) {}

  int size() const { return static_cast<int>(entries_.size()); }
  // The newest ticket given out; 0 when none.
  uint64_t last() const { return last_; }
  Bytes memory_bytes() const {
    return static_cast<Bytes>(entries_.size() * sizeof(Entry));
  }

  // What the next ticket would displace: null when its slot is free.
  Slot* displaced() { return occupant(last_ + 1); }
  // The slot of the next ticket, reset to Slot(); the ticket is last() from now on.
  Slot& take() {
    Entry& entry = at(++last_);
    entry.ticket = last_;
    entry.slot = Slot();
    return entry.slot;
  }
  // The slot of a ticket, or null when it was released or displaced.
  Slot* find(uint64_t ticket) {
    HR_CHECK(ticket <= last_, "a ticket that this tier did not give");
    Entry& entry = at(ticket);
    return ticket != 0 && entry.ticket == ticket ? &entry.slot : nullptr;
  }
  // Calls visit(slot) for all that have not been released.
  template <typename Visit>
  void each(Visit visit) {
    for (Entry& entry : entries_) {
      if (entry.ticket != 0) visit(entry.slot);
    }
  }
  // The ticket has been waited for: its slot is free.
  void release(uint64_t ticket) {
    Entry& entry = at(ticket);
    if (entry.ticket == ticket) entry = Entry();
  }

 private:
  struct Entry {
    uint64_t ticket = 0;
    Slot slot;
  };
  Entry& at(uint64_t ticket) { return entries_[ticket % entries_.size()]; }
  Slot* occupant(uint64_t ticket) {
    Entry& entry = at(ticket);
    return entry.ticket != 0 ? &entry.slot : nullptr;
  }

  std::vector<Entry> entries_;
  uint64_t last_ = 0;
};

}  // namespace headrace
