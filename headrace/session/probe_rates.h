// What the processor and its memory give, measured with the kernels that a run uses.
//
// Each figure is the median of `repeats` measurements; together a few seconds.
#pragma once

#include <functional>

#include "headrace/base/thread_pool.h"
#include "headrace/cost/machine.h"

namespace headrace {

struct RateOptions {
  Bytes memory_bytes = 128 * kMiB;  // to read over; more than the caches hold
  int repeats = 7;
  // Called before each figure, with its name; false stops (kCancelled).
  std::function<bool(const char* what)> before;
};

// Fills memory_bytes_per_s, matmul_per_s, matvec_bytes_per_s, vector_per_s and
// op_overhead_ns of `machine`. kDoesNotFit when the memory cannot be had.
Status measure_rates(const RateOptions& options, ThreadPool& pool, Machine* machine);

}  // namespace headrace
