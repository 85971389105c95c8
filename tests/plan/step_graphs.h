// Steps of kernels for the planner's tests: a builder, a training-like chain, and random graphs.
#pragma once

#include <algorithm>

#include <memory>
#include <random>
#include <string>
#include <vector>

#include "headrace/ir/rules.h"
#include "headrace/plan/step_plan.h"

namespace headrace::test {

class StepBuilder {
 public:
  explicit StepBuilder(const std::string& name) { w.graph.name = name; }

  TensorId tensor(const std::string& name, Bytes bytes, Role role = Role::kActivation) {
    Tensor t;
    t.name = name;
    t.role = role;
    t.cols = bytes / 4;
    t.bytes = bytes;
    if (role == Role::kState) t.data_class = DataClass::kOptimizer;
    return w.graph.add(std::move(t));
  }
  TensorId state(const std::string& name, Bytes bytes) { return tensor(name, bytes, Role::kState); }

  OpId op(const std::string& name, std::vector<TensorId> in, std::vector<TensorId> out,
          Nanos ns = 1'000'000, std::vector<TensorId> updates = {}, Bytes workspace = 0) {
    Op o;
    o.kind = OpKind::kKernel;
    o.kernel = "k";
    o.name = name;
    o.inputs = std::move(in);
    o.outputs = std::move(out);
    o.updates = std::move(updates);
    o.attrs[Attr::kSeconds] = static_cast<double>(ns) * 1e-9;
    o.workspace = workspace;
    w.graph.ops.push_back(std::move(o));
    return OpId(static_cast<int64_t>(w.graph.ops.size()) - 1);
  }

  std::shared_ptr<const Workload> finish() { return std::make_shared<const Workload>(w); }

  Workload w;
};

// A device of `capacity`, and a host with links of `rate` bytes/s each way.
inline Machine step_machine(double rate, Bytes host = Bytes{1} << 50) {
  Machine m = Machine::defaults(1);
  m.name = "test";
  m.op_overhead_ns = 0;
  m.tiers = {{"device", 0, 0, 0, 0}, {"host", host, rate, rate, 1000, true}};
  return m;
}

// `layers` forward ops, a loss, and as many backward ops that each read a forward activation and
// update the layer's weights. Activations of `bytes`, ops of `ns`, backward twice as long.
inline StepBuilder training_chain(int layers, Bytes bytes = 1 << 20, Nanos ns = 1'000'000) {
  StepBuilder b("chain");
  std::vector<TensorId> acts, weights;
  acts.push_back(b.state("input", bytes));
  for (int i = 0; i < layers; ++i) {
    weights.push_back(b.state("w" + std::to_string(i), bytes / 4));
  }
  for (int i = 0; i < layers; ++i) {
    acts.push_back(b.tensor("a" + std::to_string(i), bytes));
    b.op("f" + std::to_string(i), {acts[acts.size() - 2], weights[static_cast<size_t>(i)]},
         {acts.back()}, ns);
  }
  TensorId grad = b.tensor("g_loss", bytes);
  b.op("loss", {acts.back()}, {grad}, ns);
  for (int i = layers - 1; i >= 0; --i) {
    const TensorId next = b.tensor("g" + std::to_string(i), bytes);
    b.op("b" + std::to_string(i), {grad, acts[static_cast<size_t>(i)]}, {next}, 2 * ns,
         {weights[static_cast<size_t>(i)]});
    grad = next;
  }
  return b;
}

// Layered random steps: `ops` kernels that read one to three earlier tensors (mostly recent, some
// far back), with some states that are read or updated, workspaces, and ops that must not run again.
inline StepBuilder random_step(int ops, uint32_t seed) {
  std::mt19937 random(seed);
  const auto draw = [&](int lo, int hi) {
    return lo + static_cast<int>(random() % static_cast<uint32_t>(hi - lo + 1));
  };
  StepBuilder b("random" + std::to_string(seed));
  std::vector<TensorId> states, acts;
  for (int i = 0; i < 1 + ops / 10; ++i) {
    states.push_back(b.state("s" + std::to_string(i), 4096 * draw(1, 16)));
  }
  for (int k = 0; k < ops; ++k) {
    std::vector<TensorId> in, out, updates;
    const int reads = acts.empty() ? 0 : draw(1, 3);
    for (int r = 0; r < reads; ++r) {
      const int n = static_cast<int>(acts.size());
      const int back = draw(0, 3) == 0 ? draw(1, n) : draw(1, std::min(n, 3));
      const TensorId t = acts[static_cast<size_t>(n - back)];
      if (std::find(in.begin(), in.end(), t) == in.end()) in.push_back(t);
    }
    const TensorId state = states[static_cast<size_t>(draw(0, static_cast<int>(states.size()) - 1))];
    const int kind = draw(0, 9);
    if (acts.empty() || kind < 3) in.push_back(state);
    if (kind == 9) updates.push_back(state);
    const int outs = draw(0, 5) == 0 ? 2 : 1;
    for (int o = 0; o < outs; ++o) {
      out.push_back(b.tensor("t" + std::to_string(k) + "_" + std::to_string(o), 4096 * draw(1, 64)));
      acts.push_back(out.back());
    }
    b.op("op" + std::to_string(k), in, out, 1000 * draw(10, 500), updates,
         draw(0, 3) == 0 ? 4096 * draw(1, 8) : 0);
    if (draw(0, 7) == 0) b.w.graph.ops.back().attrs[Attr::kRecompute] = 0;
  }
  return b;
}

inline StepRequest step_request(std::shared_ptr<const Workload> workload, const Machine& machine,
                                Bytes budget) {
  StepRequest r;
  r.name = workload->graph.name;
  r.workload = std::move(workload);
  r.machine = &machine;
  r.budget = budget;
  return r;
}

}  // namespace headrace::test
