// Profile: how long the ops of a step take here, measured before the step is planned.
#pragma once

#include "headrace/base/status.h"
#include "headrace/base/types.h"
#include "headrace/ir/graph.h"

namespace headrace {

struct ProfileResult {
  int64_t measured = 0;  // different ops that were run
  int64_t left_out = 0;  // that do not fit in the memory given: their cost stays a prediction
  Nanos total_ns = 0;    // of all ops of the graph that have a measured time
};

// Runs every training op that differs from the others in kernel, attributes or shapes once or twice,
// with `threads` workers on operands of arbitrary small numbers in at most `memory` bytes, and sets
// Attr::kSeconds of all ops that are like it. The memory is given back. kDoesNotFit: the system
// refuses it; kUnsupported: an op that no kernel computes.
Result<ProfileResult> measure_ops(Graph* graph, Bytes memory, int threads);

}  // namespace headrace
