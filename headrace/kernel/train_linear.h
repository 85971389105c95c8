// Workspace of the training ops that are products.
#pragma once

#include "headrace/ir/graph.h"

namespace headrace {

// Of hr.linear, hr.linear_dx and hr.linear_dw.
Bytes train_linear_workspace(const Graph& graph, const Op& op, int threads);
// Of hr.loss: the logits of one chunk of tokens, and what the products need.
Bytes train_loss_workspace(const Graph& graph, const Op& op, int threads);

// Tokens of hr.loss whose logits exist at a time, for a vocabulary of `vocab`: as many as 32 MiB
// hold, a multiple of 16 between 64 and 512. Gradients of the table are added chunk by chunk, so
// this is part of the arithmetic; a chunk also costs reading and writing that gradient once.
int64_t train_loss_chunk(int64_t vocab);

}  // namespace headrace
