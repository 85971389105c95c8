#include "headrace/train/optimizer.h"

#include <algorithm>
#include <map>

namespace headrace {
namespace {

class OptimizerBuilder {
 public:
  OptimizerBuilder(const StepRule& rule, Precision precision, TensorId guard,
                   std::vector<Parameter>* parameters, Graph* graph)
      : rule_(rule), precision_(precision),
        clipped_(rule.clip_norm > 0 || precision == Precision::kF16), guard_(guard),
        parameters_(*parameters), g_(*graph) {}

  TensorId run() {
    find_last_touches();
    const size_t ops = g_.ops.size();
    std::vector<Op> old;
    old.swap(g_.ops);
    for (size_t i = 0; i < ops; ++i) {
      g_.ops.push_back(std::move(old[i]));
      const std::vector<TensorId>& written = g_.ops.back().outputs;
      if (guard_.valid() && !clipped_ && !written.empty() && written[0] == guard_) {
        add_factor("hr.guard", {guard_});
      }
      for (const size_t p : final_at_[i]) {
        if (clipped_) {
          add_sum(parameters_[p]);
        } else {
          add_step(p);
        }
      }
    }
    if (!clipped_ || sums_.empty()) return clip_;
    std::vector<TensorId> sums;
    for (const Parameter& p : parameters_) {  // the order of the sum is that of the parameters
      if (sums_.contains(p.gradient)) sums.push_back(sums_.at(p.gradient));
    }
    add_factor("hr.clip", std::move(sums));
    g_.ops.back().attrs[Attr::kMaxNorm] = rule_.clip_norm;
    for (size_t i = ops; i-- > 0;) {
      for (auto p = final_at_[i].rbegin(); p != final_at_[i].rend(); ++p) add_step(*p);
    }
    return clip_;
  }

 private:
  // Per op, the parameters that nothing later reads and whose gradient nothing later adds to.
  void find_last_touches() {
    std::map<TensorId, size_t> parameter;
    for (size_t i = 0; i < parameters_.size(); ++i) {
      if (!parameters_[i].gradient.valid()) continue;
      parameter[parameters_[i].gradient] = parameter[parameters_[i].param] = i;
    }
    std::map<size_t, size_t> last;
    size_t guarded = 0;  // nothing is stepped before this op
    for (size_t i = 0; i < g_.ops.size(); ++i) {
      const std::vector<TensorId>& written = g_.ops[i].outputs;
      if (guard_.valid() && !written.empty() && written[0] == guard_) guarded = i;
      for (const auto* list : {&g_.ops[i].inputs, &g_.ops[i].outputs, &g_.ops[i].updates}) {
        for (const TensorId t : *list) {
          const auto found = parameter.find(t);
          if (found != parameter.end()) last[found->second] = i;
        }
      }
    }
    final_at_.resize(g_.ops.size());
    for (const auto& [p, i] : last) final_at_[std::max(i, guarded)].push_back(p);
  }

  Op kernel(const char* name, const std::string& op_name) {
    Op op;
    op.kind = OpKind::kKernel;
    op.kernel = name;
    op.name = op_name;
    return op;
  }

  TensorId vector(const std::string& name, Role role) {
    Tensor t;
    t.name = name;
    t.role = role;
    t.cols = 2;
    t.bytes = 8;
    t.data_class = DataClass::kOther;
    return g_.add(std::move(t));
  }

  // What every step from here on multiplies its gradient by.
  void add_factor(const char* name, std::vector<TensorId> inputs) {
    clip_ = vector("clip", Role::kOutput);
    Op op = kernel(name, "clip");
    op.inputs = std::move(inputs);
    op.outputs = {clip_};
    g_.ops.push_back(std::move(op));
  }

  void add_sum(const Parameter& p) {
    const TensorId sum = vector(p.tensor + ".squares", Role::kActivation);
    Op op = kernel("hr.sum_squares", p.tensor + ".squares");
    op.inputs = {p.gradient};
    op.outputs = {sum};
    g_.ops.push_back(std::move(op));
    sums_[p.gradient] = sum;
  }

  TensorId state(const Parameter& p, const char* suffix) {
    Tensor t;
    t.name = p.tensor + suffix;
    t.role = Role::kState;
    t.rows = p.row_count;
    t.cols = p.cols;
    t.bytes = t.rows * row_bytes(t.dtype, t.cols);
    t.data_class = DataClass::kOptimizer;
    return g_.add(std::move(t));
  }

  void add_step(size_t number) {
    Parameter& p = parameters_[number];
    const bool adam = rule_.adamw;
    const StepNumbers n = rule_.numbers(p);
    p.group = n.group;
    p.weight_decay = n.weight_decay;
    const bool masters = precision_ == Precision::kBf16 || precision_ == Precision::kF16;
    if (masters && p.dtype != DType::kF32) p.master = state(p, ".master");
    if (adam || n.momentum > 0) p.m = state(p, ".m");
    if (adam) p.v = state(p, ".v");

    Op op = kernel(adam ? "hr.adamw" : "hr.sgd", p.tensor + ".step");
    op.inputs = {p.gradient};
    if (clip_.valid()) op.inputs.push_back(clip_);
    op.updates = {p.master.valid() ? p.master : p.param};
    if (p.m.valid()) op.updates.push_back(p.m);
    if (p.v.valid()) op.updates.push_back(p.v);
    if (p.master.valid()) op.updates.push_back(p.param);
    if (adam) {
      op.attrs = {{Attr::kBeta1, n.beta1}, {Attr::kBeta2, n.beta2}, {Attr::kEps, n.eps}};
    } else {
      op.attrs = {{Attr::kMomentum, n.momentum}};
    }
    op.attrs[Attr::kWeightDecay] = p.weight_decay;
    op.attrs[Attr::kGroup] = static_cast<double>(p.group);
    op.attrs[Attr::kStream] = static_cast<double>(kRoundingStream + static_cast<int64_t>(number));
    op.attrs[Attr::kRecompute] = 0;
    g_.ops.push_back(std::move(op));
  }

  const StepRule& rule_;
  const Precision precision_;
  const bool clipped_;
  const TensorId guard_;
  std::vector<Parameter>& parameters_;
  Graph& g_;
  TensorId clip_;
  std::map<TensorId, TensorId> sums_;           // gradient -> its sum of squares
  std::vector<std::vector<size_t>> final_at_;   // by op of the graph as it was
};

Status check_range(double value, double least, double below, const char* member) {
  if (value >= least && value < below) return {};  // NaN is neither
  return error(Code::kUsage, "optimizer: %s is %g, not from %g to below %g", member, value, least,
               below);
}

}  // namespace

int64_t group_of(const OptimizerConfig& config, const std::string& name) {
  const auto found = std::find_if(
      config.groups.begin(), config.groups.end(),
      [&](const ParameterGroup& g) { return name.find(g.match) != std::string::npos; });
  return found - config.groups.begin();
}

double weight_decay_of(const OptimizerConfig& config, const Parameter& parameter) {
  const auto group = static_cast<size_t>(group_of(config, parameter.name));
  if (group < config.groups.size() && config.groups[group].weight_decay >= 0) {
    return config.groups[group].weight_decay;
  }
  return parameter.kind == ParameterKind::kVector ? 0 : config.weight_decay;
}

TensorId add_optimizer(const StepRule& rule, Precision precision, TensorId guard,
                       std::vector<Parameter>* parameters, Graph* graph) {
  return OptimizerBuilder(rule, precision, guard, parameters, graph).run();
}

Result<TensorId> add_optimizer(const OptimizerConfig& config, Precision precision, TensorId guard,
                               std::vector<Parameter>* parameters, Graph* graph) {
  if (config.kind != "adamw" && config.kind != "sgd") {
    return error(Code::kUsage, "optimizer: kind is '%s'; known are adamw and sgd",
                 config.kind.c_str());
  }
  HR_TRY(check_range(config.beta1, 0, 1, "beta1"));
  HR_TRY(check_range(config.beta2, 0, 1, "beta2"));
  HR_TRY(check_range(config.momentum, 0, 1, "momentum"));
  HR_TRY(check_range(config.eps, 1e-300, 1, "eps"));
  HR_TRY(check_range(config.weight_decay, 0, 1e9, "weight_decay"));
  HR_TRY(check_range(config.clip_norm, 0, 1e30, "clip_norm"));
  for (const ParameterGroup& group : config.groups) {
    if (group.weight_decay < 1e9) continue;
    return error(Code::kUsage, "optimizer: weight_decay of group '%s' is %g", group.match.c_str(),
                 group.weight_decay);
  }
  StepRule rule;
  rule.adamw = config.kind == "adamw";
  rule.clip_norm = config.clip_norm;
  rule.numbers = [&](const Parameter& p) {
    return StepNumbers{.group = group_of(config, p.name),
                       .weight_decay = weight_decay_of(config, p),
                       .beta1 = config.beta1,
                       .beta2 = config.beta2,
                       .eps = config.eps,
                       .momentum = config.momentum};
  };
  return add_optimizer(rule, precision, guard, parameters, graph);
}

}  // namespace headrace
