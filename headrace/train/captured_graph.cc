#include "headrace/train/captured_graph.h"

#include <algorithm>
#include <array>
#include <set>

#include "headrace/train/micro_order.h"

namespace headrace {
namespace {

// Kernels that count rows of the step.
constexpr std::array<std::string_view, 3> kRowKernels = {"hr.embed", "hr.dropout", "hr.loss"};

// What a value is called in the graph: gradients are "NAME.d", "NAME.d2" ..., and the step has
// outputs of its own.
std::string value_name(const std::string& name) {
  constexpr size_t kNone = std::string::npos;
  const size_t dot = name.rfind(".d");
  const bool gradient =
      dot != kNone && name.find_first_not_of("0123456789", dot + 2) == kNone;
  return gradient || name == "loss" || name == "clip" ? name + "~" : name;
}

// Indices of ops that stages begin at; the number of ops follows.
std::vector<size_t> stages_of(const std::vector<CapturedOp>& ops) {
  std::map<std::string, size_t> last_use;  // of values that are read
  for (size_t i = 0; i < ops.size(); ++i) {
    for (const std::string& name : ops[i].inputs) last_use[name] = i;
  }
  std::vector<size_t> begins = {0};
  std::multiset<size_t> open;  // last uses of values written so far
  for (size_t i = 0; i + 1 < ops.size(); ++i) {
    for (const CapturedValue& value : ops[i].outputs) {
      const auto use = last_use.find(value.name);
      if (use != last_use.end()) open.insert(use->second);
    }
    open.erase(open.begin(), open.upper_bound(i));
    if (open.size() <= 1) begins.push_back(i + 1);
  }
  begins.push_back(ops.size());
  return begins;
}

class CapturedBuilder {
 public:
  CapturedBuilder(const CapturedForward& forward, TrainStep* step)
      : c_(forward), step_(*step), g_(step->workload.graph) {
    add_parameters();
    add_constants();
    add_inputs();
    for (const CapturedMicroBatch& batch : c_.micro_batches) {
      const std::vector<size_t> stages = stages_of(batch.ops);
      for (int64_t i = 0; i < batch.repeat; ++i) micros_.push_back({&batch, i, stages, {}, {}, {}});
    }
    for (size_t m = 0; m < micros_.size() && micros_.size() > 1; ++m) {
      micros_[m].prefix = text_of("mb%zu.", m);
    }
    g_.max_rows = c_.rows;
    g_.max_output_rows = 0;
    share();
  }

  bool has_both_orders() const { return both_orders_; }

  // The forward ops alone: gradients are made of ops that verify() has seen.
  Status check_forward() {
    for (Micro& micro : micros_) {
      for (size_t stage = 0; stage + 1 < micro.stages.size(); ++stage) add(stage, &micro);
    }
    return verify(g_).within("'" + g_.name + "'");
  }

  Status run(MicroOrder order) {
    MicroBatches batches;
    batches.order = order;
    batches.stages = static_cast<int64_t>(micros_[0].stages.size()) - 1;
    batches.micro_batches = static_cast<int64_t>(micros_.size());
    batches.first_waits = first_waits_;
    batches.add = [this](int64_t stage, int64_t micro) {
      add(static_cast<size_t>(stage), &micros_[static_cast<size_t>(micro)]);
    };
    if (!both_orders_) merge_stages(&batches);
    Backward backward(&g_, &step_.parameters);
    HR_TRY(add_passes(batches, &g_, &backward));
    std::vector<TensorId> losses;
    for (const Micro& micro : micros_) losses.push_back(micro.loss);
    step_.loss = add_mean_loss("loss", losses, &g_);
    for (size_t m = 0; m < losses.size() && losses.size() > 1; ++m) {
      add_mean_loss(loss_output(static_cast<int64_t>(m)), {losses[m]}, &g_);
    }
    return {};
  }

 private:
  struct Micro {
    const CapturedMicroBatch* batch;
    int64_t repetition;
    std::vector<size_t> stages;
    std::map<std::string, TensorId> values;
    TensorId loss;
    std::string prefix;
  };

  void add_parameters() {
    for (const CapturedParameter& c : c_.parameters) {
      Parameter p;
      p.name = c.name;
      p.kind = c.vector  ? ParameterKind::kVector
               : c.table ? ParameterKind::kTable
                         : ParameterKind::kMatrix;
      p.rows = c.rows;
      p.cols = c.cols;
      p.dtype = c.vector ? DType::kF32 : c_.compute_dtype();
      p.trainable = c.trainable;
      p.transposed = c.transposed;
      const Bytes whole = c.rows * row_bytes(DType::kF32, c.cols);
      add_tiles(p, c.table ? kTableTile : whole, &step_.parameters);
    }
    headrace::add_parameters(&step_.parameters, &g_);
    for (const Parameter& p : step_.parameters) shared_[p.name].push_back(p.param);
  }

  void add_constants() {
    for (const CapturedConstant& c : c_.constants) {
      Tensor t;
      t.name = c.name;
      t.role = Role::kConstant;
      t.cols = static_cast<int64_t>(c.values.size());
      t.bytes = row_bytes(t.dtype, t.cols);
      t.constant = c.values;
      shared_[c.name] = {g_.add(std::move(t))};
    }
  }

  void add_inputs() {
    for (const CapturedInput& input : c_.inputs) {
      for (int64_t i = 0; i < input.count; ++i) {
        const TensorId id = add_tensor(input_tensor(input, i), input.value);
        g_.tensors[id.index()].role = Role::kState;
        g_.tensors[id.index()].data_class = DataClass::kInput;
        shared_[input.value.name].push_back(id);
        repeated_.insert(input.value.name);
      }
    }
  }

  TensorId add_tensor(const std::string& name, const CapturedValue& value) {
    Tensor t;
    t.name = name;
    t.dtype = value.dtype;
    t.rows = value.rows;
    t.cols = value.cols;
    t.bytes = t.rows * row_bytes(t.dtype, t.cols);
    return g_.add(std::move(t));
  }

  // Which trained parameters stages have in common decides what orders give the same sums.
  void share() {
    std::map<std::string, std::set<size_t>> stages;
    bool even = true;
    for (const Micro& micro : micros_) {
      even = even && micro.stages.size() == micros_[0].stages.size();
      for (size_t stage = 0; stage + 1 < micro.stages.size(); ++stage) {
        for (size_t i = micro.stages[stage]; i < micro.stages[stage + 1]; ++i) {
          for (const std::string& name : micro.batch->ops[i].inputs) stages[name].insert(stage);
        }
      }
    }
    bool with_first = true;  // whatever is shared is shared with the first stage, and by two
    for (const CapturedParameter& p : c_.parameters) {
      const auto in = stages.find(p.name);
      if (!p.trainable || in == stages.end() || in->second.size() < 2) continue;
      first_waits_ = true;
      with_first = with_first && in->second.size() == 2 && *in->second.begin() == 0;
    }
    both_orders_ = even && with_first;
    first_waits_ = first_waits_ && both_orders_;
    if (micros_.size() == 1) first_waits_ = false;
  }

  // Of one order alone: each micro-batch is one stage, whatever it has in common with others.
  void merge_stages(MicroBatches* batches) {
    for (Micro& micro : micros_) micro.stages = {0, micro.batch->ops.size()};
    batches->stages = 1;
  }

  void add(size_t stage, Micro* micro) {
    for (size_t i = micro->stages[stage]; i < micro->stages[stage + 1]; ++i) {
      add(micro->batch->ops[i], micro);
    }
  }

  void add(const CapturedOp& c, Micro* micro) {
    Op op;
    op.kind = OpKind::kKernel;
    op.kernel = c.kernel;
    op.name = micro->prefix + c.name;
    op.attrs = c.attrs;
    const bool counts_rows =
        std::find(kRowKernels.begin(), kRowKernels.end(), c.kernel) != kRowKernels.end();
    if (counts_rows || op.attrs.contains(Attr::kRowBegin)) {
      op.attrs[Attr::kRowBegin] +=
          static_cast<double>(micro->repetition * c.outputs[0].rows);
    }
    for (const std::string& name : c.inputs) {
      const auto value = micro->values.find(name);
      if (value != micro->values.end()) {
        op.inputs.push_back(value->second);
        continue;
      }
      const std::vector<TensorId>& all = shared_.at(name);
      if (repeated_.contains(name)) {
        op.inputs.push_back(all[all.size() == 1 ? 0 : static_cast<size_t>(micro->repetition)]);
      } else {
        op.inputs.insert(op.inputs.end(), all.begin(), all.end());
      }
    }
    for (const CapturedValue& value : c.outputs) {
      const TensorId id = add_tensor(value_name(micro->prefix + value.name), value);
      micro->values[value.name] = id;
      op.outputs.push_back(id);
    }
    if (c.kernel == "hr.loss") micro->loss = op.outputs[0];
    g_.ops.push_back(std::move(op));
  }

  const CapturedForward& c_;
  TrainStep& step_;
  Graph& g_;
  std::map<std::string, std::vector<TensorId>> shared_;  // of parameters: tiles
  std::set<std::string> repeated_;                       // inputs: a tensor for each repetition
  std::vector<Micro> micros_;
  bool both_orders_ = false, first_waits_ = false;
};

// max_size is of all tiles together: the first ones have it.
void add_remote_rules(const CapturedForward& forward, TrainStep* step) {
  for (const CapturedParameter& c : forward.parameters) {
    if (!c.remote) continue;
    Bytes left = c.remote_max_bytes;
    for (const Parameter& p : step->parameters) {
      if (p.name != c.name || (c.remote_max_bytes > 0 && left <= 0)) continue;
      const Bytes bytes = step->workload.graph.at(p.param).bytes;
      PlacementRule rule;
      rule.tensor = p.param;
      rule.remote = true;
      rule.remote_max_bytes = left > 0 && left < bytes ? left : 0;
      rule.prefetch_priority = c.prefetch_priority;
      step->workload.rules.push_back(rule);
      left -= bytes;
    }
  }
}

Status check_forward(const CapturedForward& forward) {
  TrainStep step;
  step.workload.graph.name = forward.name;
  return CapturedBuilder(forward, &step).check_forward();
}

Result<TrainStep> build(const CapturedForward& forward, const CapturedOptimizer& optimizer,
                        const StepOptions& options, MicroOrder order, bool* both_orders) {
  TrainStep step;
  step.workload.graph.name = forward.name;
  CapturedBuilder builder(forward, &step);
  *both_orders = builder.has_both_orders();
  HR_TRY(builder.run(order));
  std::map<std::string, int64_t> groups;
  for (const CapturedParameter& p : forward.parameters) groups[p.name] = p.group;
  StepRule rule;
  rule.adamw = optimizer.adamw;
  rule.clip_norm = optimizer.clip_norm;
  rule.numbers = [&](const Parameter& p) {
    return optimizer.groups[static_cast<size_t>(groups.at(p.name))];
  };
  const TensorId guard = options.guard ? step.loss : TensorId();
  step.clip = add_optimizer(rule, forward.precision, guard, &step.parameters, &step.workload.graph);
  add_remote_rules(forward, &step);
  HR_TRY(finish_step(options, &step));
  return step;
}

}  // namespace

std::string input_tensor(const CapturedInput& input, int64_t i) {
  if (input.count == 1) return input.value.name;
  return input.value.name + text_of(":%lld", static_cast<long long>(i));
}

std::string loss_output(int64_t m) { return text_of("loss.%lld", static_cast<long long>(m)); }

int64_t micro_batches_of(const CapturedForward& forward) {
  int64_t count = 0;
  for (const CapturedMicroBatch& batch : forward.micro_batches) count += batch.repeat;
  return count;
}

Result<std::vector<std::shared_ptr<TrainStep>>> build_captured_steps(
    const CapturedForward& forward, const CapturedOptimizer& optimizer,
    const StepOptions& options) {
  for (const CapturedParameter& p : forward.parameters) {
    if (!p.trainable || p.group < static_cast<int64_t>(optimizer.groups.size())) continue;
    return error(Code::kUsage, "parameter '%s' is of group %lld; the optimizer has %zu",
                 p.name.c_str(), static_cast<long long>(p.group), optimizer.groups.size());
  }
  HR_TRY(check_forward(forward));
  std::vector<std::shared_ptr<TrainStep>> steps;
  bool both = false;
  HR_ASSIGN(TrainStep first, build(forward, optimizer, options, MicroOrder::kBatchMajor, &both));
  if (both && micro_batches_of(forward) > 1) {
    HR_ASSIGN(TrainStep other, build(forward, optimizer, options, MicroOrder::kLayerMajor, &both));
    steps.push_back(std::make_shared<TrainStep>(std::move(other)));
  }
  steps.push_back(std::make_shared<TrainStep>(std::move(first)));
  return steps;
}

}  // namespace headrace
