// Forward and backward ops of all micro-batches of a step, in one of two orders (MicroOrder).
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "headrace/train/backward.h"
#include "headrace/train/forward.h"

namespace headrace {

struct MicroBatches {
  MicroOrder order = MicroOrder::kBatchMajor;
  int64_t stages = 1;         // of each; the last one ends with the loss
  int64_t micro_batches = 1;
  // The first stage has a trained parameter in common with a later one. Its gradient is then that
  // of all later stages, followed by that of all first ones, in both orders.
  bool first_waits = false;
  std::function<void(int64_t stage, int64_t micro)> add;  // appends forward ops
};

// Appends all of it. kUnsupported: an op that has no gradient.
Status add_passes(const MicroBatches& batches, Graph* graph, Backward* backward);

// Inserts hr.mean_loss of `losses`, [rows, 1] each, right after the last hr.loss. Its output,
// [1, 1], has that name. Precondition: there is an hr.loss.
TensorId add_mean_loss(const std::string& name, const std::vector<TensorId>& losses, Graph* graph);

}  // namespace headrace
