// Parts of lives that are away in gaps (address_schedule.h). Internal to address_*.cc.
#pragma once

#include "headrace/plan/address_schedule.h"

namespace headrace::plan {

constexpr TierId kAway{1};  // the tier that parts are away in

inline int32_t rerun_slot(int32_t position) { return 2 * position + 1; }
inline int32_t op_slot(int32_t position) { return 2 * position + 2; }

struct Part {
  int32_t life = 0, to = -1;  // to: the life that it comes back to; -1: never
  Bytes begin = 0, end = 0;   // of the value
  int32_t gap = 0;            // number of the gap, over all lives
  int32_t open = 0;           // the slot after the touch before the gap
  int32_t need = 0;           // the first slot that needs its bytes
  int32_t avail = 0;          // the first slot before which it may come back
  int32_t use = kNoUse;       // the touch after the gap
  int32_t release = 0;        // the first slot before which it may be stored
  int32_t stored_by = -1;     // the part that stores it
  bool whole_gap = false;     // no part of the gap comes back before all of it is away
  Nanos out_ns = 0, in_ns = 0;
  static constexpr int32_t kNoUse = INT32_MAX;
};

struct Parts {
  std::vector<Part> parts;
  int32_t gaps = 0;  // their gaps are numbered below it
};

// What must be away with these extents, in pieces of at most `chunk` bytes (0: not split). Parts that
// need the same bytes of the same version of a value share one copy.
Parts parts_of(const State& state, const std::vector<Life>& lives, Bytes chunk);

}  // namespace headrace::plan
