// Local search: from a state that fits to one whose step is shorter. Internal to placement.
//
// Method. Large neighbourhood search (Shaw, 1998): some ways are taken back - one gap's, or those
// of the gaps around a position where the step stalls or ops run again -, construction makes the
// state fit again with another price and ratios blurred at random, what has become needless is
// given up, and the list scheduler judges. Better or equal states are kept, slightly worse ones
// with a falling tolerance; the best seen is returned.
#pragma once

#include "headrace/plan/transfers.h"

namespace headrace::plan {

struct Improved {
  State state;
  Bytes chunk = 0;   // the largest piece, see pieces_of; 0: no limit
  Nanos total_ns = 0;
  int64_t work = 0;  // schedules that were tried
};

// `effort` multiplies the number of schedules that may be tried, which falls with the size of the
// step. Never returns a longer step. Deterministic: random numbers come from a fixed seed.
Improved improve(State state, double effort);

}  // namespace headrace::plan
