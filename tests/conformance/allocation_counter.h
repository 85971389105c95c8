// Counts every operator new of a test program, on whatever thread.
#pragma once

#include <cstdint>

namespace headrace {

int64_t allocations_so_far();

}  // namespace headrace
