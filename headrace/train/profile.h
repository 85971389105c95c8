// Profile: how long the ops of a step take here, measured before the step is planned.
#pragma once

#include <vector>

#include "headrace/base/status.h"
#include "headrace/base/types.h"
#include "headrace/ir/graph.h"

namespace headrace {

// Runs every training op that differs from the others in kernel, attributes or shapes, up to three
// times, with `threads` workers on operands of arbitrary small numbers in at most `memory` bytes,
// and sets Attr::kSeconds of all ops of the graphs that are like it; what does not fit keeps its
// prediction. An op that this process has measured before is not run again. The memory is given
// back. Any thread. kDoesNotFit: the system refuses it; kUnsupported: an op that no kernel computes.
Status measure_ops(const std::vector<Graph*>& graphs, Bytes memory, int threads);

}  // namespace headrace
