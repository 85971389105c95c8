// The pass `emit`: decisions become instructions, waits and residencies.
#include <algorithm>
#include <map>

#include "headrace/plan/passes.h"

namespace headrace::plan {
namespace {

constexpr StreamId kFileStream{1};
constexpr TierId kFileTier{1};

class Emitter {
 public:
  Emitter(const PlanRequest& request, const std::vector<Buffer>& buffers,
          const std::vector<WeightUse>& weights)
      : request_(request), graph_(*request.graph), buffers_(buffers), weights_(weights) {
    for (size_t i = 0; i < weights.size(); ++i) {
      const bool used = weights[i].first < static_cast<int32_t>(graph_.ops.size());
      if (!weights[i].resident && used) streamed_.push_back(i);
    }
    std::stable_sort(streamed_.begin(), streamed_.end(), [&](size_t a, size_t b) {
      return weights[a].first < weights[b].first;
    });
    ends_at_.resize(graph_.ops.size());
    released_at_.resize(graph_.ops.size());
    for (size_t i : streamed_) {
      ends_at_[static_cast<size_t>(weights[i].last)].push_back(i);
      released_at_[static_cast<size_t>(weights[i].release)].push_back(i);
    }
    load_step_.assign(weights.size(), -1);
    detach_step_.assign(weights.size(), -1);
    compute_step_.assign(graph_.ops.size(), -1);
  }

  Program run(const Layout& layout) {
    program_.name = request_.name;
    program_.graph = request_.graph;
    program_.cyclic = true;
    program_.arena_bytes = layout.arena_bytes;
    program_.tiers = request_.machine->tiers;
    program_.tiers[0].capacity = layout.arena_bytes;
    for (const Buffer& b : buffers_) {
      if (b.tensor.valid() && graph_.at(b.tensor).role == Role::kGathered) {
        gather_step_[b.tensor] = push(transfer(InstrKind::kGather, b.tensor));
      }
    }
    for (size_t o = 0; o < graph_.ops.size(); ++o) emit_op(static_cast<int32_t>(o));
    fill_waits();
    add_residencies(layout);
    return std::move(program_);
  }

 private:
  int32_t push(Instr instr) {
    program_.instrs.push_back(std::move(instr));
    return static_cast<int32_t>(program_.instrs.size()) - 1;
  }

  static Instr transfer(InstrKind kind, TensorId tensor) {
    Instr i;
    i.kind = kind;
    i.tensor = tensor;
    i.tier = kFileTier;
    i.stream = kFileStream;
    return i;
  }

  void emit_op(int32_t o) {
    Instr compute;
    compute.op = OpId(o);
    compute.cost_ns = op_cost(*request_.machine, graph_, graph_.at(OpId(o)), request_.cost);
    compute_step_[static_cast<size_t>(o)] = push(std::move(compute));
    for (size_t i : ends_at_[static_cast<size_t>(o)]) {
      Instr detach;
      detach.kind = InstrKind::kDetach;
      detach.tensor = weights_[i].tensor;
      detach_step_[i] = push(std::move(detach));
    }
    // Loads for this cycle before those for the next: earliest deadline first.
    for (bool wraps : {false, true}) {
      for (size_t i : released_at_[static_cast<size_t>(o)]) {
        if (weights_[i].wraps != wraps) continue;
        load_step_[i] = push(transfer(InstrKind::kLoad, weights_[i].tensor));
      }
    }
  }

  void fill_waits() {
    for (size_t i : streamed_) {
      Instr& load = program_.instrs[static_cast<size_t>(load_step_[i])];
      load.waits.push_back(Step(compute_step_[static_cast<size_t>(weights_[i].release)]));
      add_uses(weights_[i].tensor, weights_[i].first, weights_[i].last, load_step_[i]);
    }
    for (const Buffer& b : buffers_) {
      if (!b.tensor.valid() || !gather_step_.count(b.tensor)) continue;
      const int32_t gather = gather_step_[b.tensor];
      add_uses(b.tensor, b.first, b.last, gather);
      // The rows' extent may serve other buffers later in the cycle.
      program_.instrs[static_cast<size_t>(gather)].waits.push_back(
          Step(compute_step_[graph_.ops.size() - 1]));
    }
    for (Instr& i : program_.instrs) std::sort(i.waits.begin(), i.waits.end());
  }

  void add_uses(TensorId tensor, int32_t first, int32_t last, int32_t load) {
    for (int32_t o = first; o <= last; ++o) {
      const auto& inputs = graph_.ops[static_cast<size_t>(o)].inputs;
      if (std::find(inputs.begin(), inputs.end(), tensor) == inputs.end()) continue;
      const size_t step = static_cast<size_t>(compute_step_[static_cast<size_t>(o)]);
      program_.instrs[step].waits.push_back(Step(load));
    }
  }

  void add(TensorId tensor, OpId op, Bytes offset, Bytes bytes, int32_t begin, int32_t end) {
    program_.residencies.push_back({tensor, op, offset, bytes, Step(begin), Step(end)});
  }

  void add_residencies(const Layout& layout) {
    const int32_t n = static_cast<int32_t>(program_.instrs.size());
    Bytes state_at = 0;
    for (size_t t = 0; t < graph_.tensors.size(); ++t) {
      if (graph_.tensors[t].role != Role::kState) continue;
      const Bytes bytes = device_bytes(graph_.tensors[t]);
      add(TensorId(static_cast<int64_t>(t)), OpId(), state_at, bytes, -1, n);
      state_at += bytes;
    }
    for (size_t i = 0; i < weights_.size(); ++i) {
      const WeightUse& w = weights_[i];
      if (w.resident) {
        add(w.tensor, OpId(), w.offset, w.bytes, -1, n);
      } else if (w.wraps) {
        add(w.tensor, OpId(), w.offset, w.bytes, -1, detach_step_[i]);
        add(w.tensor, OpId(), w.offset, w.bytes, load_step_[i], n);
      } else if (load_step_[i] >= 0) {
        add(w.tensor, OpId(), w.offset, w.bytes, load_step_[i], detach_step_[i]);
      }
    }
    const Bytes base = layout.weight_end();
    for (const Buffer& b : buffers_) {
      int32_t begin = compute_step_[static_cast<size_t>(b.first)];
      int32_t end = compute_step_[static_cast<size_t>(b.last)] + 1;
      if (b.tensor.valid()) {
        const Role role = graph_.at(b.tensor).role;
        if (role == Role::kGathered) begin = gather_step_[b.tensor];
        if (role == Role::kConstant) begin = -1;
        if (role == Role::kConstant || role == Role::kOutput) end = n;
      }
      add(b.tensor, b.op, base + b.offset, b.bytes, begin, end);
    }
    std::stable_sort(program_.residencies.begin(), program_.residencies.end(),
                     [](const Residency& a, const Residency& b) {
                       return a.begin != b.begin ? a.begin < b.begin : a.offset < b.offset;
                     });
  }

  const PlanRequest& request_;
  const Graph& graph_;
  const std::vector<Buffer>& buffers_;
  const std::vector<WeightUse>& weights_;
  std::vector<size_t> streamed_;  // indices of weights, by first use
  std::vector<std::vector<size_t>> ends_at_, released_at_;  // streamed weights, by op
  std::vector<int32_t> load_step_, detach_step_;  // by weight
  std::vector<int32_t> compute_step_;             // by op
  std::map<TensorId, int32_t> gather_step_;
  Program program_;
};

}  // namespace

Program emit(const PlanRequest& request, const Layout& layout,
             const std::vector<Buffer>& buffers, const std::vector<WeightUse>& weights) {
  return Emitter(request, buffers, weights).run(layout);
}

}  // namespace headrace::plan
