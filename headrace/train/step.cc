#include "headrace/train/step.h"

#include "headrace/train/cost.h"
#include "headrace/train/micro_order.h"

namespace headrace {
namespace {

Status check(const StepModel& model, const StepShape& shape) {
  HR_TRY(check(model));
  constexpr int64_t kMost = 1 << 24;
  if (shape.sequence < 1 || shape.sequence > kMost) {
    return error(Code::kUsage, "step: sequence is %lld, not from 1 to %lld",
                 static_cast<long long>(shape.sequence), static_cast<long long>(kMost));
  }
  if (shape.sequences < 1 || shape.sequences > kMost / shape.sequence) {
    return error(Code::kUsage, "step: %lld sequences of %lld tokens; at most %lld tokens a step",
                 static_cast<long long>(shape.sequences), static_cast<long long>(shape.sequence),
                 static_cast<long long>(kMost));
  }
  if (shape.micro_batches < 1 || shape.micro_batches > shape.sequences) {
    return error(Code::kUsage, "step: micro_batches is %lld, not from 1 to the %lld sequences",
                 static_cast<long long>(shape.micro_batches),
                 static_cast<long long>(shape.sequences));
  }
  if (model.gpt2() && shape.sequence > model.positions) {
    return error(Code::kUsage, "step: sequences of %lld tokens; the model has %lld positions",
                 static_cast<long long>(shape.sequence), static_cast<long long>(model.positions));
  }
  return {};
}

}  // namespace

Status finish_step(const StepOptions& options, TrainStep* step) {
  Graph& g = step->workload.graph;
  set_costs(&g, options.threads);
  if (!options.recompute) {
    for (Op& op : g.ops) op.attrs[Attr::kRecompute] = 0;
  }
  step->workload.cyclic = true;
  // A few bytes that are read right after the step: never worth a transfer.
  for (size_t t = 0; t < g.tensors.size(); ++t) {
    if (g.tensors[t].role != Role::kOutput) continue;
    PlacementRule rule;
    rule.tensor = TensorId(static_cast<int64_t>(t));
    rule.pinned = true;
    rule.recompute = false;
    step->workload.rules.push_back(rule);
  }
  return verify(g).within("the step of '" + g.name + "'");
}

Result<TrainStep> build_train_step(const StepModel& model, const StepShape& shape,
                                   const OptimizerConfig& optimizer, const StepOptions& options) {
  HR_TRY(check(model, shape));
  TrainStep step;
  step.workload.graph.name = model.name + " train";
  step.parameters = parameters_of(model);
  if (trainable_count(step.parameters) == 0) {
    return error(Code::kUsage, "model '%s': every parameter is frozen", model.name.c_str());
  }
  Graph& g = step.workload.graph;
  ForwardBuilder forward(model, shape, &step.parameters, &g);
  Backward backward(&g, &step.parameters);
  const auto add = [&](int64_t stage, int64_t micro) { forward.add(stage, micro); };
  const MicroBatches batches{shape.order, forward.stages(), shape.micro_batches,
                             model.tied_embeddings, add};
  HR_TRY(add_passes(batches, &g, &backward));
  step.loss = add_mean_loss("loss", forward.losses(), &g);
  const TensorId guard = options.guard ? step.loss : TensorId();
  HR_ASSIGN(step.clip,
            add_optimizer(optimizer, model.precision, guard, &step.parameters, &g));
  HR_TRY(finish_step(options, &step));
  return step;
}

}  // namespace headrace
