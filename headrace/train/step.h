// The whole training step as one cyclic Graph: forward, backward, optimizer, all micro-batches.
//
// Promises
//   1. The graph passes verify(); its ops are those of ir/train_ops.h. Between two steps only
//      kState tensors and frozen weights exist.
//   2. Losses, gradients and the parameters after the step are the same bits in both MicroOrders.
//   3. Tensors of parameters and their states have the same names and shapes in all steps of one
//      model, whatever the StepShape.
//   4. Outputs: "loss" [1, 1], the mean over counted targets; "clip" [1, 2], see add_optimizer().
//
// StepRows of a step: tokens and targets, sequences x sequence of them, one micro-batch after the
// other; step, seed, loss_scale; rates, one a group and one for all other parameters (group_of()).
#pragma once

#include <vector>

#include "headrace/ir/rules.h"
#include "headrace/train/forward.h"
#include "headrace/train/optimizer.h"

namespace headrace {

struct TrainStep {
  Workload workload;                  // cyclic
  std::vector<Parameter> parameters;  // see step_model.h; ids are those of the graph
  TensorId loss, clip;                // clip may be invalid
};

struct StepOptions {
  int threads = 1;          // that workspaces are for
  bool guard = false;       // a step whose loss (with clipping: gradient norm) is not finite
                            // changes nothing
  bool recompute = true;    // false: no op may run again
};

// kUsage and kUnsupported with the member's name: see check(StepModel), add_optimizer(); a shape
// that cannot be (more micro-batches than sequences, sequences longer than the position table).
// Linear in ops.
Result<TrainStep> build_train_step(const StepModel& model, const StepShape& shape,
                                   const OptimizerConfig& optimizer, const StepOptions& options);

// What is left when all ops are there: costs and workspaces, rules for the outputs, verify().
Status finish_step(const StepOptions& options, TrainStep* step);

}  // namespace headrace
