// Lower bounds on the time of any plan in one order of the ops. Internal to plan/.
#pragma once

#include "headrace/plan/problem.h"

namespace headrace::plan {

// `iterations`: of the dual ascent; 0: compute and window bounds alone. `upper_ns`: the time of a
// plan, which the ascent aims at.
Bound lower_bound(const Problem& problem, int iterations, Nanos upper_ns);

}  // namespace headrace::plan
