// The optimizer's part of a step: an op a parameter tile.
//
// Where the ops stand. Without clipping a tile is stepped right after the last op that reads it or
// adds to its gradient, so that gradients are few at a time. With clipping (of the exact global
// norm) nothing can be stepped before all gradients are known: hr.sum_squares stands there instead,
// and after the last of them hr.clip and all steps, the tile whose gradient came last first: its
// gradient is the likeliest to be on the device still.
#pragma once

#include <functional>
#include <vector>

#include "headrace/train/step_model.h"

namespace headrace {

// Dropout's streams are below it (forward.cc), those of stochastic rounding from here on, by tile.
constexpr int64_t kRoundingStream = int64_t{1} << 29;

// The group of a parameter: the first of config.groups whose `match` its name contains;
// config.groups.size() when there is none. StepRows::rates has one number more than groups.
int64_t group_of(const OptimizerConfig& config, const std::string& name);
// The group's weight decay where it has one; else the config's for matrices and tables, 0 for
// vectors.
double weight_decay_of(const OptimizerConfig& config, const Parameter& parameter);

// What one parameter is stepped with: see hr.adamw and hr.sgd.
struct StepNumbers {
  int64_t group = 0;
  double weight_decay = 0;
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-8;  // AdamW
  double momentum = 0;                            // SGD
};
struct StepRule {
  bool adamw = true;     // else SGD
  double clip_norm = 0;  // 0: no clipping
  std::function<StepNumbers(const Parameter&)> numbers;
};

// Adds state tensors and ops for every parameter that has a gradient, and sets group, weight_decay,
// master, m and v. Returns the [1, 2] output of the step called "clip", what gradients are
// multiplied by: of hr.clip when config.clip_norm > 0 or the precision is f16, whose gradients
// overflow where losses do not; else, when `guard` is valid, of hr.guard, which stands right after
// the op that writes `guard`, the mean loss (all steps of parameters come later, then); invalid
// otherwise.
// Precondition: verify() will not refuse the numbers.
TensorId add_optimizer(const StepRule& rule, Precision precision, TensorId guard,
                       std::vector<Parameter>* parameters, Graph* graph);
// The same with the config's numbers. kUsage: an optimizer of another kind, or numbers that
// verify() would refuse.
Result<TensorId> add_optimizer(const OptimizerConfig& config, Precision precision, TensorId guard,
                               std::vector<Parameter>* parameters, Graph* graph);

}  // namespace headrace
