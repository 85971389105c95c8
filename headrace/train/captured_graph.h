// The whole step of a captured forward pass as cyclic Graphs: what build_train_step() is for models
// that are known here.
//
// Stages, which micro-batches may go through side by side, are cut where one value alone leads from
// the ops before to the ops after (a residual stream between two blocks). All parameters are
// kState, frozen ones too: they are never updated. Inputs are kState of class input.
//
// Outputs: "loss" and "clip" as in step.h; with several micro-batches also "loss.0", "loss.1", ...:
// the sum of the losses of each over the counted targets of the step.
#pragma once

#include <memory>
#include <vector>

#include "headrace/train/captured_forward.h"
#include "headrace/train/step.h"

namespace headrace {

// Tensor of repetition `i` of an input.
std::string input_tensor(const CapturedInput& input, int64_t i);
// Output with the loss of micro-batch `m`, where there are several.
std::string loss_output(int64_t m);
int64_t micro_batches_of(const CapturedForward& forward);

// One step for each order of micro-batches that gives the same bits: both, or batch-major alone.
// kBadFile with op and operand: what verify_train_op() says; kUnsupported: an op without a
// gradient; kUsage: a parameter of a group that the optimizer does not have.
Result<std::vector<std::shared_ptr<TrainStep>>> build_captured_steps(
    const CapturedForward& forward, const CapturedOptimizer& optimizer, const StepOptions& options);

}  // namespace headrace
