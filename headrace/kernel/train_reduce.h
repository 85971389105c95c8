// Workspace of hr.sum_squares.
#pragma once

#include "headrace/ir/graph.h"

namespace headrace {

// One double for each 64 Ki elements of the gradient.
Bytes train_sum_squares_workspace(const Graph& graph, const Op& op, int threads);

}  // namespace headrace
