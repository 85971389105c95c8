// What training ops cost: attributes flops and traffic, and the workspace of their kernels.
#pragma once

#include "headrace/ir/graph.h"

namespace headrace {

// Sets flops, and traffic where it is not that of the operands, of every op of training
// (ir/train_ops.h), and its workspace for `threads` workers where the kernel is known to kernel/.
// FLOPs: a product takes 2 rows n k; attention 4 head_dim for each query, head and key that it
// sees, its gradient 2.5 times that (it computes the scores again: FlashAttention-2, arXiv
// 2307.08691); the loss 3 products of the table with its gradients, 1 without.
void set_costs(Graph* graph, int threads);

}  // namespace headrace
