// The pass `emit`: decisions become instructions, waits and residencies.
#include <algorithm>
#include <map>

#include "headrace/plan/passes.h"

namespace headrace::plan {
namespace {

constexpr TierId kFileTier{1};

class Emitter {
 public:
  Emitter(const PlanRequest& request, const std::vector<Buffer>& buffers,
          const std::vector<Cached>& cached)
      : request_(request), graph_(*request.graph), buffers_(buffers), cached_(cached) {
    ends_at_.resize(graph_.ops.size());
    released_at_.resize(graph_.ops.size());
    for (size_t i = 0; i < cached.size(); ++i) {
      if (cached[i].slot) ends_at_[static_cast<size_t>(cached[i].last)].push_back(i);
      const bool used = cached[i].first < static_cast<int32_t>(graph_.ops.size());
      if (!cached[i].resident && used) streamed_.push_back(i);
    }
    std::stable_sort(streamed_.begin(), streamed_.end(), [&](size_t a, size_t b) {
      return cached[a].first < cached[b].first;
    });
    for (size_t i : streamed_) {
      const Cached& c = cached[i];
      if (!c.slot) ends_at_[static_cast<size_t>(c.last)].push_back(i);
      (c.release < 0 ? released_at_start_ : released_at_[static_cast<size_t>(c.release)]).push_back(i);
    }
    load_step_.assign(cached.size(), -1);
    store_step_.assign(cached.size(), -1);
    detach_step_.assign(cached.size(), -1);
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
        gather_step_[b.tensor] = push(transfer(InstrKind::kGather, b.tensor, kFileTier));
      }
    }
    for (size_t i : released_at_start_) load_step_[i] = push(load_of(cached_[i]));
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

  Instr transfer(InstrKind kind, TensorId tensor, TierId tier) const {
    Instr i;
    i.kind = kind;
    i.tensor = tensor;
    i.tier = tier;
    i.stream = link_stream(program_.tiers, tier, kind);
    return i;
  }
  Instr load_of(const Cached& c) const {
    return transfer(InstrKind::kLoad, c.tensor, c.slot ? request_.kv_tier : kFileTier);
  }

  void emit_op(int32_t o) {
    Instr compute;
    compute.op = OpId(o);
    compute.cost_ns = op_cost(*request_.machine, graph_, graph_.at(OpId(o)), request_.cost);
    compute_step_[static_cast<size_t>(o)] = push(std::move(compute));
    const std::vector<size_t>& ends = ends_at_[static_cast<size_t>(o)];
    for (size_t i : ends) {
      if (cached_[i].slot) {
        store_step_[i] = push(transfer(InstrKind::kStore, cached_[i].tensor, request_.kv_tier));
      }
    }
    for (size_t i : ends) {
      if (cached_[i].resident) continue;
      Instr detach;
      detach.kind = InstrKind::kDetach;
      detach.tensor = cached_[i].tensor;
      detach_step_[i] = push(std::move(detach));
    }
    // Loads for this cycle before those for the next: earliest deadline first.
    for (bool wraps : {false, true}) {
      for (size_t i : released_at_[static_cast<size_t>(o)]) {
        if (cached_[i].wraps == wraps) load_step_[i] = push(load_of(cached_[i]));
      }
    }
  }

  std::vector<Step>& waits_of(int32_t step) {
    return program_.instrs[static_cast<size_t>(step)].waits;
  }

  void fill_waits() {
    for (size_t i : streamed_) {
      const Cached& c = cached_[i];
      std::vector<Step>& waits = waits_of(load_step_[i]);
      if (c.release >= 0) waits.push_back(Step(compute_step_[static_cast<size_t>(c.release)]));
      // What leaves the place may still be on its way out; and so may this, since the last cycle.
      for (int32_t b : c.before) {
        const size_t before = static_cast<size_t>(b);
        const int32_t end = store_step_[before] >= 0
                                ? store_step_[before]
                                : compute_step_[static_cast<size_t>(cached_[before].last)];
        waits.push_back(Step(end));
      }
      if (c.slot) {
        waits.push_back(Step(store_step_[i]));
      } else {
        add_uses(c.tensor, c.first, c.last, load_step_[i]);
      }
    }
    for (size_t i = 0; i < cached_.size(); ++i) {
      const Cached& c = cached_[i];
      if (!c.slot) continue;
      const int32_t compute = compute_step_[static_cast<size_t>(c.last)];
      waits_of(store_step_[i]).push_back(Step(compute));
      // The Store of the cycle before reads what is changed here.
      waits_of(compute).push_back(Step(c.resident ? store_step_[i] : load_step_[i]));
      if (!c.resident) waits_of(detach_step_[i]).push_back(Step(store_step_[i]));
    }
    for (const Buffer& b : buffers_) {
      if (!b.tensor.valid() || !gather_step_.count(b.tensor)) continue;
      const int32_t gather = gather_step_[b.tensor];
      add_uses(b.tensor, b.first, b.last, gather);
      // The rows' extent may serve other buffers later in the cycle.
      waits_of(gather).push_back(Step(compute_step_[graph_.ops.size() - 1]));
    }
    for (Instr& i : program_.instrs) {
      std::sort(i.waits.begin(), i.waits.end());
      i.waits.erase(std::unique(i.waits.begin(), i.waits.end()), i.waits.end());
    }
  }

  void add_uses(TensorId tensor, int32_t first, int32_t last, int32_t load) {
    for (int32_t o = first; o <= last; ++o) {
      const auto& inputs = graph_.ops[static_cast<size_t>(o)].inputs;
      if (std::find(inputs.begin(), inputs.end(), tensor) == inputs.end()) continue;
      const size_t step = static_cast<size_t>(compute_step_[static_cast<size_t>(o)]);
      program_.instrs[step].waits.push_back(Step(load));
    }
  }

  void add(TensorId tensor, OpId op, Bytes offset, Bytes bytes, int32_t begin, int32_t end,
           TierId tier = kDevice) {
    program_.residencies.push_back({tensor, op, offset, bytes, Step(begin), Step(end), tier});
  }

  void add_cached(const Cached& c, size_t i, int32_t end) {
    if (c.resident) {
      add(c.tensor, OpId(), c.offset, c.bytes, -1, end);
    } else if (c.wraps) {
      add(c.tensor, OpId(), c.offset, c.bytes, -1, detach_step_[i]);
      add(c.tensor, OpId(), c.offset, c.bytes, load_step_[i], end);
    } else if (load_step_[i] >= 0) {
      add(c.tensor, OpId(), c.offset, c.bytes, load_step_[i], detach_step_[i]);
    }
  }

  void add_residencies(const Layout& layout) {
    const int32_t n = static_cast<int32_t>(program_.instrs.size());
    std::vector<size_t> slot_of(graph_.tensors.size(), cached_.size());
    for (size_t i = 0; i < cached_.size(); ++i) {
      add_cached(cached_[i], i, n);
      if (cached_[i].slot) slot_of[cached_[i].tensor.index()] = i;
    }
    // In the order of the graph, so that all Programs of a session agree on the places.
    Bytes state_at = 0, copy_at = 0;
    for (size_t t = 0; t < graph_.tensors.size(); ++t) {
      if (graph_.tensors[t].role != Role::kState) continue;
      const TensorId id(static_cast<int64_t>(t));
      const Bytes bytes = device_bytes(graph_.tensors[t]);
      if (slot_of[t] == cached_.size()) {
        state_at = round_up(state_at, alignment_of(graph_.tensors[t]));
        add(id, OpId(), state_at, bytes, -1, n);
        state_at += bytes;
      } else {
        // The copy is replaced, in its place, by the Store of each cycle.
        const int32_t store = store_step_[slot_of[t]];
        add(id, OpId(), copy_at, bytes, -1, store, request_.kv_tier);
        add(id, OpId(), copy_at, bytes, store, n, request_.kv_tier);
        copy_at += bytes;
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
  const std::vector<Cached>& cached_;
  std::vector<size_t> streamed_;  // indices of cached_, by first use
  std::vector<std::vector<size_t>> ends_at_;      // by op: what is given up or stored after it
  std::vector<std::vector<size_t>> released_at_;  // by op: what may be loaded after it
  std::vector<size_t> released_at_start_;         // and with the cycle
  std::vector<int32_t> load_step_, store_step_, detach_step_;  // as cached_; -1: none
  std::vector<int32_t> compute_step_;             // by op
  std::map<TensorId, int32_t> gather_step_;
  Program program_;
};

}  // namespace

Program emit(const PlanRequest& request, const Layout& layout,
             const std::vector<Buffer>& buffers, const std::vector<Cached>& cached) {
  return Emitter(request, buffers, cached).run(layout);
}

}  // namespace headrace::plan
