// Placement: one way for each idle gap of each value {keep, move to a tier, run its op again, keep or
// move an encoded form of it}, and when each transfer is issued, so that the step is as short as can be
// found and never over budget. Internal to plan/.
//
// Vocabulary
//   gap        as in problem.h; a gap may be moved in part: its first `moved` bytes.
//   state      a way for each gap; running an op again adds touches to what it reads (placement_state.h).
//   schedule   when each transfer of a state is issued; a deterministic list scheduler (transfers.h).
//   price      seconds asked for each byte that a transfer moves, beside the stalls it causes: what
//              makes the ways that leave the link free win while others can still use it.
//
// Method. (1) Construction, once for each of a few prices: at the position that is most over budget,
// commit ways by least added seconds per useful byte until it fits, with calendars of free link
// seconds; repeat until every position fits. (2) The list scheduler gives each state its step time.
// (3) Local search from the best (improve.h). G10 (Zhang et al., MICRO 2023) chooses by freed bytes per
// transfer; Capuchin (Peng et al., ASPLOS 2020) chooses between moving and running again by added time.
//
// Promises
//   1. The schedule holds at most problem.budget bytes at each position (memory model: problem.h).
//   2. Deterministic; effort is bounded by counted work, see PlaceOptions::effort.
#pragma once

#include "headrace/plan/problem.h"

namespace headrace::plan {

struct PlaceOptions {
  bool recompute = true;  // false: offload only, whatever the request says
  bool improve = true;    // false: construction alone
  bool parts = true;      // false: what moves, moves whole: coarser, but easier to give extents to
  double effort = 1.0;    // multiplies the work that local search may spend
  // By position: bytes of the budget to leave free there, e.g. where offsets did not fit. Empty: none.
  std::vector<Bytes> reserve;
};

struct Placement {
  bool fits = false;
  Schedule schedule;        // when it fits
  Nanos predicted_ns = 0;   // of the step, by the list scheduler
  // When it does not: the position that stays over budget and by how much, with everything away
  // that can be.
  int32_t worst_position = -1;
  Bytes missing_bytes = 0;
  int64_t work = 0;         // schedules that were tried
};

// Errors: kUsage for a rule that cannot be obeyed (a remote rule for a value without a gap that any
// allowed tier can take). `problem` is read only; safe from several threads.
Result<Placement> place(const Problem& problem, const PlaceOptions& options = {});

}  // namespace headrace::plan
