// Lifetimes: from the events of one device to buffers, each with its first and last moment.
//
// Vocabulary
//   moment   the number of an event; -1: before the first, events.size(): after the last
#pragma once

#include "headrace/snapshot/memory_snapshot.h"

namespace headrace {

struct SnapshotBuffer {
  int64_t address = 0;
  Bytes size = 0;
  int32_t begin = -1;   // moment it was given out
  int32_t last = 0;     // moment it was given back by the program: after its last use
  int32_t end = 0;      // moment the allocator could use it again
  int32_t stack = -1;   // that asked for it; -1: not recorded
  int32_t freed_by = -1;  // stack that gave it back
};

struct Lifetimes {
  std::vector<SnapshotBuffer> buffers;  // by begin
  std::vector<Bytes> live;              // by event: bytes given out after it
  std::vector<Bytes> reserved;          // by event: bytes of segments after it
  Bytes peak_live = 0, peak_reserved = 0;
  int32_t peak_moment = 0;              // of peak_live, the first
};

// Of one device. Where its trace is empty it has what the segments hold, all of it from before.
// Events of memory that the trace has not seen given out belong to buffers from before. Bytes of
// segments are traced back from those that the snapshot lists.
Lifetimes lifetimes_of(const MemorySnapshot& snapshot, int32_t device);

}  // namespace headrace
