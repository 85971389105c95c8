// The pass `problem`: a request and an order become flat tables.
#include "headrace/plan/problem.h"

#include <algorithm>
#include <numeric>

namespace headrace::plan {
namespace {

constexpr int32_t kNone = -1;

class Builder {
 public:
  Builder(const StepRequest& request, const std::vector<OpId>& order)
      : request_(request), g_(request.workload->graph) {
    p_.request = &request;
    p_.graph = &g_;
    p_.machine = request.machine;
    p_.budget = request.budget;
    p_.cyclic = request.workload->cyclic || request.goal == Goal::kThroughput;
    p_.source_tier = source_tier(*request.machine);
    p_.order = order;
  }

  Result<Problem> run() {
    HR_TRY(check_order());
    HR_TRY(number_values());
    for (int32_t k = 0; k < p_.size(); ++k) HR_TRY(visit(k));
    for (int32_t k = 0; k < p_.size(); ++k) bind_siblings(k);
    for (size_t v = 0; v < p_.values.size(); ++v) finish(p_.values[v]);
    HR_TRY(attach_rules());
    return std::move(p_);
  }

 private:
  Status check_order() const {
    std::vector<bool> seen(g_.ops.size(), false);
    for (OpId op : p_.order) {
      if (!op.valid() || op.index() >= seen.size() || seen[op.index()]) {
        return error(Code::kUsage, "an order that is not one of the ops of '%s'", g_.name.c_str());
      }
      seen[op.index()] = true;
    }
    if (p_.order.size() != g_.ops.size()) {
      return error(Code::kUsage, "an order of %zu ops for '%s', which has %zu", p_.order.size(),
                   g_.name.c_str(), g_.ops.size());
    }
    return {};
  }

  // Values in the order of tensors: those with a life in the step, and all that is persistent.
  Status number_values() {
    std::vector<bool> used(g_.tensors.size(), false);
    for (const Op& op : g_.ops) {
      for (const auto* list : {&op.inputs, &op.outputs, &op.updates}) {
        for (TensorId t : *list) {
          if (t.valid()) used[t.index()] = true;
        }
      }
    }
    p_.value_of.assign(g_.tensors.size(), kNone);
    for (size_t t = 0; t < g_.tensors.size(); ++t) {
      const Tensor& tensor = g_.tensors[t];
      const bool persistent = tensor.role == Role::kWeight || tensor.role == Role::kState;
      if (tensor.role == Role::kConstant) {
        p_.fixed_bytes += device_bytes(tensor);
        continue;
      }
      if (!used[t] && !persistent) continue;
      Value v;
      v.tensor = TensorId(static_cast<int64_t>(t));
      v.bytes = device_bytes(tensor);
      v.persistent = persistent;
      v.on_device_at_entry = (tensor.role == Role::kState && !p_.cyclic) ||
                             tensor.role == Role::kGathered;
      if (tensor.role == Role::kWeight || tensor.role == Role::kGathered) {
        if (!p_.source_tier.valid()) {
          return error(Code::kUsage, "weight '%s' of '%s' lies in a file, and the machine '%s' has "
                       "no tier to load it from", tensor.name.c_str(), g_.name.c_str(),
                       p_.machine->name.c_str());
        }
        v.home = p_.source_tier;
      }
      p_.value_of[t] = static_cast<int32_t>(p_.values.size());
      p_.values.push_back(std::move(v));
    }
    rerun_.assign(p_.values.size(), true);
    whole_at_.assign(p_.values.size(), kNone);
    return {};
  }

  Status visit(int32_t k) {
    const Op& op = g_.at(p_.order[static_cast<size_t>(k)]);
    p_.cost.push_back(op_cost(*p_.machine, g_, op, request_.cost));
    p_.workspace.push_back(op.workspace > 0 ? round_up(op.workspace, kLine) : 0);
    p_.reads.emplace_back();
    p_.births.emplace_back();
    const bool may_rerun = op.updates.empty() && op.attr(Attr::kRecompute, 1) != 0;
    for (const auto* list : {&op.inputs, &op.updates}) {
      for (TensorId t : *list) {
        const int32_t v = t.valid() ? p_.value_of[t.index()] : kNone;
        if (v == kNone) continue;
        Value& value = p_.values[static_cast<size_t>(v)];
        const bool source = value.persistent || value.home.valid();
        if (value.touches.empty() && !source) {
          return error(Code::kUsage, "the order of '%s' runs '%s' before the op that writes '%s'",
                       g_.name.c_str(), op.name.c_str(), g_.at(t).name.c_str());
        }
        if (touch(v, k)) p_.reads.back().push_back(v);
        if (list == &op.updates) {
          write(v, k);
          rerun_[static_cast<size_t>(v)] = false;
        }
      }
    }
    for (TensorId t : op.outputs) {
      const int32_t v = p_.value_of[t.index()];
      if (v == kNone) continue;
      Value& value = p_.values[static_cast<size_t>(v)];
      const bool first = value.touches.empty();
      // Written before: what is there already must stay.
      if (touch(v, k) && !first) p_.reads.back().push_back(v);
      if (first && !value.persistent) {
        value.producer = k;
        p_.births.back().push_back(v);
      }
      if (!first || !may_rerun) rerun_[static_cast<size_t>(v)] = false;
      if (!first) whole_at_[static_cast<size_t>(v)] = k;
      write(v, k);
    }
    return {};
  }

  // False when position k touched it already.
  bool touch(int32_t v, int32_t k) {
    auto& touches = p_.values[static_cast<size_t>(v)].touches;
    if (!touches.empty() && touches.back() == k) return false;
    touches.push_back(k);
    return true;
  }
  void write(int32_t v, int32_t k) {
    auto& writes = p_.values[static_cast<size_t>(v)].writes;
    if (writes.empty() || writes.back() != k) writes.push_back(k);
  }

  // An op that runs again writes all of its outputs: none of them may have changed since.
  void bind_siblings(int32_t k) {
    const std::vector<TensorId>& outputs = g_.at(p_.order[static_cast<size_t>(k)]).outputs;
    const auto once = [&](TensorId t) {
      const int32_t v = p_.value_of[t.index()];
      return v == kNone || (rerun_[static_cast<size_t>(v)] &&
                            !p_.values[static_cast<size_t>(v)].persistent);
    };
    if (std::all_of(outputs.begin(), outputs.end(), once)) return;
    for (TensorId t : outputs) {
      const int32_t v = p_.value_of[t.index()];
      if (v != kNone) rerun_[static_cast<size_t>(v)] = false;
    }
  }

  void finish(Value& v) {
    const Role role = g_.at(v.tensor).role;
    v.can_recompute = v.producer >= 0 && rerun_[static_cast<size_t>(&v - p_.values.data())];
    // The caller reads an output after the step: its end touches it.
    const int32_t last = p_.size() - 1;
    if (role == Role::kOutput && !v.touches.empty() && v.touches.back() != last) {
      v.touches.push_back(last);
    }
    // What several ops write column by column is no value before the last of them: it stays.
    const int32_t whole_at = whole_at_[static_cast<size_t>(&v - p_.values.data())];
    if (whole_at != kNone && v.producer >= 0) {
      std::vector<int32_t> touches;
      for (int32_t k = v.producer; k <= whole_at; ++k) touches.push_back(k);
      for (int32_t k : v.touches) {
        if (k > whole_at) touches.push_back(k);
      }
      v.touches = std::move(touches);
    }
    // Rows that the step's tokens name are gathered once, at the begin, and stay: no gaps.
    if (role == Role::kGathered && !v.touches.empty()) {
      const int32_t end = v.touches.back();
      v.touches.clear();
      for (int32_t k = 0; k <= end; ++k) v.touches.push_back(k);
    }
  }

  Status attach_rules() {
    for (const PlacementRule& rule : request_.workload->rules) {
      const int32_t v = p_.value_of[rule.tensor.index()];
      if (v == kNone) continue;
      Value& value = p_.values[static_cast<size_t>(v)];
      value.rule = &rule;
      if (rule.pinned) value.can_recompute = false;
      if (rule.recompute || value.producer < 0) continue;
      // Its op runs once: so nothing that the op writes can be had again.
      const OpId op = p_.order[static_cast<size_t>(value.producer)];
      for (TensorId t : g_.at(op).outputs) {
        if (p_.value_of[t.index()] == kNone) continue;
        p_.values[static_cast<size_t>(p_.value_of[t.index()])].can_recompute = false;
      }
    }
    return {};
  }

  const StepRequest& request_;
  const Graph& g_;
  Problem p_;
  std::vector<bool> rerun_;  // by value: written once, by an op that may run again
  std::vector<int32_t> whole_at_;  // by value: the last of several ops that write it
};

Status check_rule(const Workload& w, const Machine& machine, const PlacementRule& rule) {
  if (!rule.tensor.valid() || rule.tensor.index() >= w.graph.tensors.size()) {
    return error(Code::kUsage, "a rule for tensor t%d, which '%s' does not have",
                 rule.tensor.value, w.graph.name.c_str());
  }
  const Tensor& t = w.graph.at(rule.tensor);
  const char* name = t.name.c_str();
  size_t forbidden = 0;
  for (const std::string& tier : rule.forbidden_tiers) {
    const auto at = std::find_if(machine.tiers.begin(), machine.tiers.end(),
                                 [&](const TierInfo& m) { return m.name == tier; });
    if (at == machine.tiers.end()) {
      return error(Code::kUsage, "the rule for '%s' forbids tier '%s', which the machine '%s' does "
                   "not have", name, tier.c_str(), machine.name.c_str());
    }
    if (at == machine.tiers.begin()) {
      return error(Code::kUsage, "the rule for '%s' forbids the device itself: nothing can be "
                   "computed with it elsewhere", name);
    }
    ++forbidden;
  }
  if (rule.pinned && rule.remote) {
    return error(Code::kUsage, "the rule for '%s' asks for both: pinned on the device, and remote",
                 name);
  }
  if (rule.remote && t.role == Role::kConstant) {
    return error(Code::kUsage, "the rule for '%s' asks for remote, but it is a constant of the "
                 "graph, which stays on the device", name);
  }
  if (rule.remote && (machine.tiers.size() < 2 || forbidden + 1 >= machine.tiers.size())) {
    return error(Code::kUsage, "the rule for '%s' asks for remote, but no tier is left that it may "
                 "go to", name);
  }
  if (rule.remote_max_bytes < 0) {
    return error(Code::kUsage, "the rule for '%s' allows %lld bytes outside the device", name,
                 static_cast<long long>(rule.remote_max_bytes));
  }
  const bool held = t.role == Role::kWeight || t.role == Role::kGathered ||
                    t.role == Role::kConstant;
  if (!rule.codecs.empty() && held) {
    return error(Code::kUsage, "the rule for '%s' allows codecs, but what lies in a file or in the "
                 "graph itself is never encoded", name);
  }
  for (Codec codec : rule.codecs) {
    if (encoded_bytes(codec, t) <= 0) {
      return error(Code::kUsage, "the rule for '%s' allows codec %s, which cannot encode %s", name,
                   name_of(codec), headrace::name_of(t.dtype));
    }
  }
  return {};
}

}  // namespace

TierId source_tier(const Machine& machine) {
  return machine.tiers.size() > 1 ? TierId(1) : TierId();
}

Status check_request(const StepRequest& request) {
  if (request.workload == nullptr || request.machine == nullptr) {
    return error(Code::kUsage, "a plan needs a workload and a machine");
  }
  const Workload& w = *request.workload;
  if (request.budget < 0) {
    return error(Code::kUsage, "a budget of %lld bytes", static_cast<long long>(request.budget));
  }
  if (w.graph.ops.size() > kMostOps) {
    return error(Code::kUnsupported, "'%s' has %zu ops; steps of at most %zu can be planned",
                 w.graph.name.c_str(), w.graph.ops.size(), kMostOps);
  }
  HR_TRY(verify(w.graph));
  HR_TRY(verify(*request.machine));
  for (const Op& op : w.graph.ops) {
    const double seconds = op.attr(Attr::kSeconds);
    if (!(seconds >= 0) || seconds > 1e6) {
      return error(Code::kBadFile, "op '%s' of '%s' takes %g seconds", op.name.c_str(),
                   w.graph.name.c_str(), seconds);
    }
  }
  std::vector<const PlacementRule*> by_tensor;
  for (const PlacementRule& rule : w.rules) {
    HR_TRY(check_rule(w, *request.machine, rule));
    by_tensor.push_back(&rule);
  }
  std::sort(by_tensor.begin(), by_tensor.end(),
            [](auto* a, auto* b) { return a->tensor < b->tensor; });
  for (size_t i = 1; i < by_tensor.size(); ++i) {
    if (by_tensor[i]->tensor != by_tensor[i - 1]->tensor) continue;
    return error(Code::kUsage, "two rules for '%s'",
                 w.graph.at(by_tensor[i]->tensor).name.c_str());
  }
  return {};
}

Result<Problem> make_problem(const StepRequest& request, const std::vector<OpId>& order) {
  return Builder(request, order).run();
}

std::vector<OpId> program_order(const Graph& graph) {
  std::vector<OpId> order;
  for (size_t i = 0; i < graph.ops.size(); ++i) order.push_back(OpId(static_cast<int64_t>(i)));
  return order;
}

bool may_store(const Problem& problem, const Value& value, TierId tier) {
  const TierInfo& t = problem.machine->tiers[tier.index()];
  if (!(t.store_bytes_per_s > 0)) return false;
  if (t.alignment > problem.graph->at(value.tensor).alignment) return false;
  if (value.rule == nullptr) return true;
  const auto& no = value.rule->forbidden_tiers;
  return std::find(no.begin(), no.end(), t.name) == no.end();
}

std::vector<Bytes> resident_profile(const Problem& problem) {
  const int32_t n = problem.size();
  std::vector<Bytes> change(static_cast<size_t>(n) + 1, 0);
  for (const Value& v : problem.values) {
    if (v.touches.empty() && !v.persistent) continue;
    const int32_t begin = v.producer >= 0 ? v.producer : 0;
    const int32_t end = v.persistent ? n : v.touches.back() + 1;
    change[static_cast<size_t>(begin)] += v.bytes;
    change[static_cast<size_t>(end)] -= v.bytes;
  }
  std::vector<Bytes> profile(static_cast<size_t>(n));
  Bytes held = problem.fixed_bytes;
  for (int32_t k = 0; k < n; ++k) {
    held += change[static_cast<size_t>(k)];
    profile[static_cast<size_t>(k)] = held + problem.workspace[static_cast<size_t>(k)];
  }
  return profile;
}

Nanos codec_cost(const Problem& problem, int32_t value, Codec codec) {
  const Tensor& t = problem.graph->at(problem.values[static_cast<size_t>(value)].tensor);
  const double moved = static_cast<double>(t.bytes + encoded_bytes(codec, t));
  // Both directions read one form and write the other once, at the rate of device memory.
  return problem.machine->op_overhead_ns +
         static_cast<Nanos>(moved / problem.machine->memory_bytes_per_s * 1e9);
}

bool allows_codecs(const Problem& problem) {
  return std::any_of(problem.values.begin(), problem.values.end(), [](const Value& v) {
    return v.rule != nullptr && !v.rule->codecs.empty();
  });
}

Problem without_codecs(const Problem& problem, std::vector<PlacementRule>* rules) {
  Problem p = problem;
  rules->clear();
  rules->reserve(p.values.size());
  for (Value& v : p.values) {
    if (v.rule == nullptr) continue;
    rules->push_back(*v.rule);
    rules->back().codecs.clear();
    v.rule = &rules->back();
  }
  return p;
}

Bytes peak_of(const std::vector<Bytes>& profile) {
  return profile.empty() ? 0 : *std::max_element(profile.begin(), profile.end());
}

Nanos compute_ns(const Problem& p) {
  return std::accumulate(p.cost.begin(), p.cost.end(), Nanos{0});
}

}  // namespace headrace::plan
