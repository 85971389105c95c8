// Tools of the policies: idle gaps, and a builder that knows what is where. Internal to
// heuristics*.cc.
#pragma once

#include <vector>

#include "headrace/plan/heuristics.h"

namespace headrace::plan {

// Positions [after + 1, before) between two touches; after -1: from the entry; before size(): to
// the exit; before above that: across the end of a cycle, to the touch at before - size().
struct IdleGap {
  int32_t value = 0;
  int32_t after = 0, before = 0;
  bool must = false;  // a rule asks for it
};

// All gaps that a policy may use for a move: values that may be stored (or dropped, having a home),
// with at least one position inside.
std::vector<IdleGap> idle_gaps(const Problem& problem);

// A gap that is moved: gone at the positions [drop, load).
struct MovedGap {
  IdleGap gap;
  int32_t drop = 0, load = 0;
};

// Stores, drops and loads of these gaps; a value written since its last store is stored again.
Schedule schedule_of(const Problem& problem, std::vector<MovedGap> moved);

// The peak of the schedule, whether it fits, and why not.
void judge_policy(const Problem& problem, PolicySchedule& result);

// kBelady, kCheckpointBlocks, kRecomputeEverything and kSpillEverything.
PolicySchedule run_on_demand(const Problem& problem, Policy policy);

}  // namespace headrace::plan
