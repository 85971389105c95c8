// Local search: from a state that fits to one whose step is shorter. Internal to placement.
#pragma once

#include "headrace/plan/transfers.h"

namespace headrace::plan {

struct Improved {
  State state;
  Bytes chunk = 0;   // the largest piece, see pieces_of; 0: no limit
  int64_t work = 0;  // schedules that were tried
};

// `effort` multiplies the number of schedules that may be tried. Never returns a longer step.
Improved improve(State state, double effort);

}  // namespace headrace::plan
