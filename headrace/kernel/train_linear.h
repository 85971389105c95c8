// Workspace of the training ops that are products, and the sums that they make for biases.
#pragma once

#include <cstddef>

#include "headrace/base/thread_pool.h"
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

// out[j] = (or, add: +=) the sum of column j: rows in blocks of kGemmBlock, summed from +0 in
// ascending order, blocks added in ascending order.
struct ColumnSums {
  const std::byte* base = nullptr;  // of the first row
  Bytes stride = 0;                 // from row to row
  DType type = DType::kF32;
  int64_t rows = 0, cols = 0;
  bool add = false;
  float* out = nullptr;
};
void column_sums(const ColumnSums& of, ThreadPool& pool);

}  // namespace headrace
