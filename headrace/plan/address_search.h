// Search for a plan in addresses (address_schedule.h): ways and extents of a short step together.
// Internal to plan/.
//
// Method. Lives are given extents one after the other, each where it makes the least time of transfers
// necessary beyond those that the lives placed so far need; what one op touches never shares bytes.
// Then large neighbourhood search (Shaw, 1998): some lives around a stall are taken out and placed
// anew with blurred prices, or a gap's way is changed (all of it moved, its op run again, neither),
// and the schedule says what the step takes. A little worse is kept with a falling tolerance.
#pragma once

#include "headrace/plan/address_schedule.h"

namespace headrace::plan {

struct AddressPlan {
  bool found = false;
  Schedule schedule;
  std::vector<Extent> extents;
  Nanos predicted_ns = 0;
  int64_t work = 0;  // schedules that were tried
};

// From the ways of `start` (what it moves in part, it keeps where bytes allow), which need not fit.
// `tries`: schedules; `tolerance`: for worse plans at the begin, as a share of the step. Precondition:
// can_plan_in_addresses(). Deterministic.
AddressPlan search_addresses(const State& start, int64_t tries, double tolerance = 0.08);

}  // namespace headrace::plan
