// What the system says about time, processors and disks.
#pragma once

#include <string>
#include <vector>

#include "headrace/base/status.h"
#include "headrace/base/types.h"

namespace headrace {

// Nanoseconds of CLOCK_MONOTONIC.
Nanos monotonic_ns();

// The CPUs that the calling thread may run on, ascending; empty when the system does not say.
std::vector<int> allowed_cpus();

// Bytes that this process may still write to the filesystem of `folder`. kIo, naming the folder.
Result<Bytes> free_on_disk(const std::string& folder);

}  // namespace headrace
