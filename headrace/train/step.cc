#include "headrace/train/step.h"

#include <algorithm>

#include "headrace/ir/train_ops.h"
#include "headrace/train/backward.h"
#include "headrace/train/cost.h"

namespace headrace {
namespace {

struct OpRange {
  size_t begin = 0, end = 0;
};

// Puts forward and backward ops of all micro-batches into one of two orders.
class StepBuilder {
 public:
  StepBuilder(const StepModel& model, const StepShape& shape, TrainStep* step)
      : shape_(shape), tied_(model.tied_embeddings), g_(step->workload.graph),
        forward_(model, shape, &step->parameters, &g_), backward_(&g_, &step->parameters) {}

  Status train() {
    return shape_.order == MicroOrder::kBatchMajor ? batch_major() : layer_major();
  }
  void evaluate() {
    for (int64_t m = 0; m < shape_.micro_batches; ++m) {
      for (int64_t stage = 0; stage < forward_.stages(); ++stage) add(stage, m);
    }
  }
  // Right after the last loss.
  TensorId add_mean_loss() {
    const TensorId mean = forward_.add_mean_loss();
    const auto last_loss = std::find_if(g_.ops.rbegin(), g_.ops.rend(),
                                        [](const Op& op) { return op.kernel == "hr.loss"; });
    std::rotate(last_loss.base(), g_.ops.end() - 1, g_.ops.end());
    return mean;
  }

 private:
  int64_t last() const { return forward_.stages() - 1; }

  OpRange add(int64_t stage, int64_t m) {
    const size_t begin = g_.ops.size();
    forward_.add(stage, m);
    return {begin, g_.ops.size()};
  }
  Status reverse(const OpRange& ops) { return backward_.run(ops.begin, ops.end); }

  // The gradient of a tied table is that of all losses, then of all embeddings: the embeddings of
  // all micro-batches wait for the last loss, as they do in the other order.
  Status batch_major() {
    std::vector<OpRange> waiting;
    for (int64_t m = 0; m < shape_.micro_batches; ++m) {
      const OpRange embedding = add(0, m);
      OpRange others{embedding.end, 0};
      for (int64_t stage = 1; stage <= last(); ++stage) others.end = add(stage, m).end;
      HR_TRY(reverse(others));
      if (tied_) {
        waiting.push_back(embedding);
      } else {
        HR_TRY(reverse(embedding));
      }
    }
    for (const OpRange& embedding : waiting) HR_TRY(reverse(embedding));
    return {};
  }

  Status layer_major() {
    std::vector<std::vector<OpRange>> ops(static_cast<size_t>(last()));  // by stage, micro-batch
    for (size_t stage = 0; stage < ops.size(); ++stage) {
      for (int64_t m = 0; m < shape_.micro_batches; ++m) {
        ops[stage].push_back(add(static_cast<int64_t>(stage), m));
      }
    }
    for (int64_t m = 0; m < shape_.micro_batches; ++m) HR_TRY(reverse(add(last(), m)));
    for (size_t stage = ops.size(); stage-- > 0;) {
      for (const OpRange& range : ops[stage]) HR_TRY(reverse(range));
    }
    return {};
  }

  const StepShape& shape_;
  const bool tied_;
  Graph& g_;
  ForwardBuilder forward_;
  Backward backward_;
};

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

Status finish(const StepOptions& options, TrainStep* step) {
  Graph& g = step->workload.graph;
  set_costs(&g, options.threads);
  if (!options.recompute) {
    for (Op& op : g.ops) op.attrs[Attr::kRecompute] = 0;
  }
  step->workload.cyclic = true;
  // A few bytes that are read right after the step: never worth a transfer.
  for (const TensorId output : {step->loss, step->clip}) {
    if (!output.valid()) continue;
    PlacementRule rule;
    rule.tensor = output;
    rule.pinned = true;
    rule.recompute = false;
    step->workload.rules.push_back(rule);
  }
  return verify(g).within("the step of '" + g.name + "'");
}

}  // namespace

Result<TrainStep> build_train_step(const StepModel& model, const StepShape& shape,
                                   const OptimizerConfig& optimizer, const StepOptions& options) {
  HR_TRY(check(model, shape));
  TrainStep step;
  step.workload.graph.name = model.name + " train";
  step.parameters = parameters_of(model);
  if (trainable_count(step.parameters) == 0) {
    return error(Code::kUsage, "model '%s': every parameter is frozen", model.name.c_str());
  }
  StepBuilder builder(model, shape, &step);
  HR_TRY(builder.train());
  step.loss = builder.add_mean_loss();
  const TensorId guard = options.guard ? step.loss : TensorId();
  HR_ASSIGN(step.clip, add_optimizer(optimizer, model.precision, guard, &step.parameters,
                                     &step.workload.graph));
  HR_TRY(finish(options, &step));
  return step;
}

Result<TrainStep> build_eval_step(const StepModel& model, const StepShape& shape,
                                  const StepOptions& options) {
  StepModel plain = model;
  plain.dropout = plain.lora_dropout = 0;
  HR_TRY(check(plain, shape));
  TrainStep step;
  step.workload.graph.name = model.name + " eval";
  step.parameters = parameters_of(plain);
  StepBuilder builder(plain, shape, &step);
  builder.evaluate();
  step.loss = builder.add_mean_loss();
  HR_TRY(finish(options, &step));
  return step;
}

std::vector<PlacementRule> activation_rules(const TrainStep& step, Codec codec) {
  const Graph& g = step.workload.graph;
  std::vector<PlacementRule> rules;
  for (size_t i = 0; i < g.tensors.size(); ++i) {
    const Tensor& t = g.tensors[i];
    // Statistics and log-sums are small and read with care.
    if (t.role != Role::kActivation || t.data_class != DataClass::kActivation) continue;
    if (t.dtype != DType::kF32 || t.cols < 64 || encoded_bytes(codec, t) == 0) continue;
    PlacementRule rule;
    rule.tensor = TensorId(static_cast<int64_t>(i));
    rule.codecs = {codec};
    rules.push_back(rule);
  }
  return rules;
}

}  // namespace headrace
