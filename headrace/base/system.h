// What the system says about time and processors.
#pragma once

#include <vector>

#include "headrace/base/types.h"

namespace headrace {

// Nanoseconds of CLOCK_MONOTONIC.
Nanos monotonic_ns();

// The CPUs that the calling thread may run on, ascending; empty when the system does not say.
std::vector<int> allowed_cpus();

}  // namespace headrace
