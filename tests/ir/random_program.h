// Random steps of kernels and valid Programs of them, for the tests of verify(), sim/, report/ and
// run/. Naive on purpose: a first-fit allocator, moves drawn at random, and waits found by
// comparing every pair of instructions that touch the same bytes.
#pragma once

#include <algorithm>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "headrace/ir/program.h"

namespace headrace::test {

// `ops` kernels over activations and states; some ops update a state or an activation in place,
// some have workspace, some must run once. verify(graph) is ok.
inline Graph random_kernel_graph(uint64_t seed, int ops) {
  std::mt19937_64 random(seed);
  const auto below = [&](int n) { return static_cast<int>(random() % static_cast<uint64_t>(n)); };
  Graph g;
  g.name = "random kernels " + std::to_string(seed);
  g.max_output_rows = 0;
  const auto add = [&](const std::string& name, Role role, DataClass data_class) {
    Tensor t;
    t.name = name;
    t.role = role;
    t.cols = 16 * (1 + below(12));
    t.bytes = 4 * t.cols;
    t.data_class = data_class;
    return g.add(t);
  };
  std::vector<TensorId> states, live;
  for (int i = 0; i < 3; ++i) {
    states.push_back(add("s" + std::to_string(i), Role::kState, DataClass::kOptimizer));
  }
  for (int o = 0; o < ops; ++o) {
    Op op;
    op.kind = OpKind::kKernel;
    op.name = "op" + std::to_string(o);
    op.kernel = "kernel" + std::to_string(below(4));
    op.attrs[Attr::kSeconds] = (1 + below(1000)) * 1e-6;
    if (below(6) == 0) op.attrs[Attr::kRecompute] = 0;
    if (below(4) == 0) op.workspace = 64 * (1 + below(4));
    op.inputs.push_back(states[static_cast<size_t>(below(3))]);
    for (int k = below(3); k >= 0 && !live.empty(); --k) {
      // Mostly recent ones, some from long ago.
      const int reach = below(3) == 0 ? static_cast<int>(live.size())
                                      : std::min(static_cast<int>(live.size()), 4);
      const TensorId t = live[live.size() - 1 - static_cast<size_t>(below(reach))];
      if (std::find(op.inputs.begin(), op.inputs.end(), t) == op.inputs.end()) {
        op.inputs.push_back(t);
      }
    }
    if (below(6) == 0) op.updates.push_back(states[static_cast<size_t>(below(3))]);
    if (below(8) == 0 && !live.empty()) op.updates.push_back(live.back());
    const bool last = o + 1 == ops;
    for (int k = below(8) == 0 && !op.updates.empty() ? 0 : 1 + below(2); k > 0; --k) {
      op.outputs.push_back(add("x" + std::to_string(g.tensors.size()),
                               last ? Role::kOutput : Role::kActivation,
                               DataClass::kActivation));
    }
    live.insert(live.end(), op.outputs.begin(), op.outputs.end());
    if (op.outputs.empty() && op.updates.empty()) op.updates.push_back(states[0]);
    g.ops.push_back(std::move(op));
  }
  return g;
}

// Bytes that an instruction reads or writes.
struct Touch {
  TierId tier;
  Bytes begin = 0;
  Bytes end = 0;
  bool writes = false;
};
inline std::vector<Touch> touches_of(const Program& p, int32_t step) {
  const Graph& g = *p.graph;
  const Instr& i = p.instrs[static_cast<size_t>(step)];
  std::vector<Touch> out;
  const auto add = [&](TensorId t, TierId tier, Codec codec, const Range& range, bool writes) {
    const Bytes from = range.begin, to = from + range_bytes(g.at(t), range, codec);
    for (const Residency& r : p.residencies) {
      if (r.tensor != t || r.tier != tier || r.codec != codec) continue;
      if (step < r.begin.value || step >= r.end.value) continue;
      const Bytes a = std::max(from, r.range.begin);
      const Bytes b = std::min(to, r.range.begin + range_bytes(g.at(t), r.range, codec));
      const Bytes shift = r.offset - r.range.begin;
      if (a < b) out.push_back({tier, a + shift, b + shift, writes});
    }
  };
  switch (i.kind) {
    case InstrKind::kCompute:
      for (TensorId t : g.at(i.op).inputs) {
        if (t.valid()) add(t, kDevice, Codec::kNone, {}, false);
      }
      for (TensorId t : g.at(i.op).updates) add(t, kDevice, Codec::kNone, {}, true);
      for (TensorId t : g.at(i.op).outputs) add(t, kDevice, Codec::kNone, {}, true);
      for (const Residency& r : p.residencies) {
        if (!r.tensor.valid() && r.op == i.op && r.begin.value <= step && step < r.end.value) {
          out.push_back({kDevice, r.offset, r.offset + r.bytes, true});
        }
      }
      break;
    case InstrKind::kLoad:
      add(i.tensor, i.tier, i.codec, i.range, false);
      add(i.tensor, kDevice, i.codec, i.range, true);
      break;
    case InstrKind::kGather: add(i.tensor, kDevice, Codec::kNone, {}, true); break;
    case InstrKind::kStore:
      add(i.tensor, kDevice, i.codec, i.range, false);
      add(i.tensor, i.tier, i.codec, i.range, true);
      break;
    case InstrKind::kEncode:
      add(i.tensor, kDevice, Codec::kNone, {}, false);
      add(i.tensor, kDevice, i.codec, {}, true);
      break;
    case InstrKind::kDecode:
      add(i.tensor, kDevice, i.codec, {}, false);
      add(i.tensor, kDevice, Codec::kNone, {}, true);
      break;
    case InstrKind::kDetach: break;
  }
  return out;
}
inline bool conflict(const std::vector<Touch>& a, const std::vector<Touch>& b) {
  for (const Touch& x : a) {
    for (const Touch& y : b) {
      if (x.tier == y.tier && x.begin < y.end && y.begin < x.end && (x.writes || y.writes)) {
        return true;
      }
    }
  }
  return false;
}

// For every instruction, the steps of other streams that it shares bytes with, before it in this
// cycle or after it in the last, as its waits: far more than are needed. O(n^2).
inline void add_all_waits(Program& p) {
  std::vector<std::vector<Touch>> touches;
  for (int32_t s = 0; s < p.exit().value; ++s) touches.push_back(touches_of(p, s));
  for (size_t s = 0; s < p.instrs.size(); ++s) {
    auto& waits = p.instrs[s].waits;
    waits.clear();
    for (size_t o = 0; o < p.instrs.size(); ++o) {
      if (o >= s && !p.cyclic) break;
      if (p.instrs[o].stream == p.instrs[s].stream) continue;
      if (conflict(touches[o], touches[s])) waits.push_back(Step(static_cast<int64_t>(o)));
    }
  }
}

// A valid Program of `graph` that moves, encodes and recomputes at random. Not cyclic unless
// `cyclic`; then states start and end on the device, in places of their own.
class RandomProgram {
 public:
  RandomProgram(std::shared_ptr<const Graph> graph, uint64_t seed, bool cyclic = false)
      : random_(seed), g_(*graph), here_(g_.tensors.size()) {
    p_.name = "random";
    p_.graph = std::move(graph);
    p_.cyclic = cyclic;
    const bool duplex = below(2) == 0;
    p_.tiers = {{"device", 0, 0, 0, 0, false, -1},
                {"host", Bytes{1} << 30, 1e9 * (1 + below(4)), 1e9, 100, duplex, -1},
                {"remote", Bytes{1} << 30, 5e8, 5e8 * (1 + below(2)), 700, below(2) == 0, -1}};
    if (below(3) == 0) {
      p_.tiers[2].duplex = duplex;
      p_.tiers[1].group = p_.tiers[2].group = 0;
    }
    used_.resize(p_.tiers.size());
  }

  Program run() {
    for (size_t t = 0; t < g_.tensors.size(); ++t) {
      if (g_.tensors[t].role == Role::kState) place(id(t), kDevice, Codec::kNone, kEntry.value);
    }
    find_last_uses();
    for (size_t o = 0; o < g_.ops.size(); ++o) {
      const bool last = o + 1 == g_.ops.size();
      if (last && p_.cyclic) bring_home();
      run_op(OpId(static_cast<int64_t>(o)), static_cast<int>(o));
      if (!last || !p_.cyclic) shuffle(static_cast<int>(o));
    }
    for (size_t t = 0; t < g_.tensors.size(); ++t) {
      const Role role = g_.tensors[t].role;
      if (role == Role::kState || role == Role::kOutput) bring(id(t));
    }
    for (auto& h : here_) {
      for (auto& held : h) p_.residencies[held.residency].end = Step(now());
    }
    p_.arena_bytes = p_.tiers[0].capacity = peak_;
    std::stable_sort(p_.residencies.begin(), p_.residencies.end(),
                     [](const Residency& a, const Residency& b) {
                       return a.begin != b.begin ? a.begin < b.begin : a.offset < b.offset;
                     });
    add_all_waits(p_);
    return std::move(p_);
  }

 private:
  struct Holding {
    TierId tier;
    Codec codec = Codec::kNone;
    bool fresh = true;
    size_t residency = 0;
  };

  int below(int n) { return static_cast<int>(random_() % static_cast<uint64_t>(n)); }
  static TensorId id(size_t t) { return TensorId(static_cast<int64_t>(t)); }
  int32_t now() const { return static_cast<int32_t>(p_.instrs.size()); }

  // First fit among the extents that are taken now; states keep their first place.
  Bytes fit(TierId tier, Bytes bytes) {
    auto& used = used_[tier.index()];
    std::sort(used.begin(), used.end());
    Bytes at = 0;
    for (const auto& [begin, end] : used) {
      if (begin - at >= bytes) break;
      at = std::max(at, end);
    }
    used.push_back({at, at + bytes});
    if (tier == kDevice) peak_ = std::max(peak_, at + bytes);
    return at;
  }

  void place(TensorId t, TierId tier, Codec codec, int32_t step) {
    const Bytes bytes = range_bytes(g_.at(t), {}, codec);
    const bool home = tier == kDevice && codec == Codec::kNone && g_.at(t).role == Role::kState;
    Bytes at = 0;
    if (home) {
      for (size_t u = 0; u < t.index(); ++u) {
        if (g_.tensors[u].role == Role::kState) at += device_bytes(g_.tensors[u]);
      }
      if (step == kEntry.value) used_[0].push_back({at, at + bytes});
      peak_ = std::max(peak_, at + bytes);
    } else {
      at = fit(tier, bytes);
    }
    here_[t.index()].push_back({tier, codec, true, p_.residencies.size()});
    p_.residencies.push_back({t, OpId(), at, bytes, Step(step), Step(step), tier, {}, codec});
  }

  Holding* find(TensorId t, TierId tier, Codec codec) {
    for (Holding& h : here_[t.index()]) {
      if (h.tier == tier && h.codec == codec) return &h;
    }
    return nullptr;
  }

  // Ends the holding at step `end`.
  void release(TensorId t, TierId tier, Codec codec, int32_t end) {
    auto& all = here_[t.index()];
    for (size_t k = 0; k < all.size(); ++k) {
      if (all[k].tier != tier || all[k].codec != codec) continue;
      Residency& r = p_.residencies[all[k].residency];
      r.end = Step(end);
      const bool home = tier == kDevice && codec == Codec::kNone && g_.at(t).role == Role::kState;
      if (!home) std::erase(used_[tier.index()], std::pair(r.offset, r.offset + r.bytes));
      all.erase(all.begin() + static_cast<std::ptrdiff_t>(k));
      return;
    }
  }

  Instr& push(InstrKind kind, TensorId t, TierId tier = TierId(), Codec codec = Codec::kNone) {
    Instr i;
    i.kind = kind;
    i.tensor = t;
    i.codec = codec;
    if (is_transfer(kind)) {
      i.tier = tier;
      i.stream = link_stream(p_.tiers, tier, kind);
    }
    if (kind == InstrKind::kEncode || kind == InstrKind::kDecode) i.cost_ns = 100 + below(400);
    p_.instrs.push_back(std::move(i));
    return p_.instrs.back();
  }

  void detach(TensorId t, Codec codec) {
    release(t, kDevice, codec, now());
    push(InstrKind::kDetach, t, TierId(), codec);
  }

  // Makes the plain form resident.
  void bring(TensorId t) {
    if (find(t, kDevice, Codec::kNone) != nullptr) return;
    const std::vector<Holding> all = here_[t.index()];
    for (const Holding& h : all) {
      if (!h.fresh) continue;
      if (h.tier != kDevice) {
        const Holding* same = h.codec == Codec::kNone ? nullptr : find(t, kDevice, h.codec);
        if (same != nullptr && same->fresh) continue;
        if (same != nullptr) detach(t, h.codec);
        place(t, kDevice, h.codec, now());
        push(InstrKind::kLoad, t, h.tier, h.codec);
        if (h.codec == Codec::kNone) return;
        return bring(t);
      }
      place(t, kDevice, Codec::kNone, now());
      push(InstrKind::kDecode, t, TierId(), h.codec);
      return;
    }
    // Nowhere: its op runs again.
    for (size_t o = 0; o < g_.ops.size(); ++o) {
      const auto& out = g_.ops[o].outputs;
      if (std::find(out.begin(), out.end(), t) == out.end()) continue;
      return run_op(OpId(static_cast<int64_t>(o)), -1);
    }
    HR_CHECK(false, "a state is somewhere");
  }

  void run_op(OpId o, int first_time) {
    const Op& op = g_.at(o);
    for (TensorId t : op.inputs) bring(t);
    for (TensorId t : op.updates) bring(t);
    for (TensorId t : op.outputs) {
      if (find(t, kDevice, Codec::kNone) == nullptr) place(t, kDevice, Codec::kNone, now());
    }
    if (op.workspace > 0) {
      const Bytes at = fit(kDevice, op.workspace);
      p_.residencies.push_back({TensorId(), o, at, op.workspace, Step(now()), Step(now() + 1)});
      std::erase(used_[0], std::pair(at, at + op.workspace));
    }
    Instr i;
    i.op = o;
    i.cost_ns = static_cast<Nanos>(op.attr(Attr::kSeconds) * 1e9);
    p_.instrs.push_back(std::move(i));
    for (TensorId t : op.updates) {
      for (Holding& h : here_[t.index()]) {
        h.fresh = h.tier == kDevice && h.codec == Codec::kNone;
      }
      can_rerun_from_[t.index()] = false;
    }
    if (first_time < 0) return;
    // What is dead goes.
    for (size_t t = 0; t < g_.tensors.size(); ++t) {
      if (last_use_[t] != first_time || g_.tensors[t].role != Role::kActivation) continue;
      while (!here_[t].empty()) {
        const Holding h = here_[t].front();
        release(id(t), h.tier, h.codec, now());
      }
    }
  }

  // States on the device and nowhere else.
  void bring_home() {
    for (size_t t = 0; t < g_.tensors.size(); ++t) {
      if (g_.tensors[t].role != Role::kState) continue;
      bring(id(t));
      const std::vector<Holding> all = here_[t];
      for (const Holding& h : all) {
        if (h.tier != kDevice) {
          release(id(t), h.tier, h.codec, now());
        } else if (h.codec != Codec::kNone) {
          detach(id(t), h.codec);
        }
      }
    }
  }

  // Could its op run again now, from states and activations as they were?
  bool can_rerun(TensorId t) const { return can_rerun_from_[t.index()]; }

  void find_last_uses() {
    last_use_.assign(g_.tensors.size(), -1);
    can_rerun_from_.assign(g_.tensors.size(), false);
    std::vector<bool> updated(g_.tensors.size(), false);
    for (size_t o = 0; o < g_.ops.size(); ++o) {
      for (const auto* list : {&g_.ops[o].inputs, &g_.ops[o].outputs, &g_.ops[o].updates}) {
        for (TensorId t : *list) last_use_[t.index()] = static_cast<int>(o);
      }
      for (TensorId t : g_.ops[o].updates) updated[t.index()] = true;
    }
    // Only where nothing involved is ever updated, and what it reads is a state (always somewhere).
    for (const Op& op : g_.ops) {
      bool can = op.updates.empty() && op.attr(Attr::kRecompute, 1) != 0;
      for (TensorId t : op.inputs) {
        can &= !updated[t.index()] && g_.at(t).role == Role::kState;
      }
      for (TensorId t : op.outputs) can &= !updated[t.index()];
      for (TensorId t : op.outputs) can_rerun_from_[t.index()] = can;
    }
  }

  // Stores, encodes and detaches at random.
  void shuffle(int after) {
    for (size_t k = 0; k < g_.tensors.size(); ++k) {
      const TensorId t = id(k);
      const bool alive = g_.tensors[k].role != Role::kActivation || last_use_[k] > after;
      if (here_[k].empty() || !alive || below(3) != 0) continue;
      const Holding* plain = find(t, kDevice, Codec::kNone);
      const Codec codec = below(2) == 0 ? Codec::kBf16 : Codec::kInt8Block;
      const TierId tier(1 + below(2));
      switch (below(4)) {
        case 0:
          if (plain == nullptr) break;
          release(t, tier, Codec::kNone, now());
          place(t, tier, Codec::kNone, now());
          push(InstrKind::kStore, t, tier);
          break;
        case 1:
          if (plain == nullptr || find(t, kDevice, codec) != nullptr) break;
          place(t, kDevice, codec, now());
          push(InstrKind::kEncode, t, TierId(), codec);
          break;
        case 2:
          if (find(t, kDevice, codec) == nullptr || !find(t, kDevice, codec)->fresh) break;
          release(t, tier, codec, now());
          place(t, tier, codec, now());
          push(InstrKind::kStore, t, tier, codec);
          detach(t, codec);
          break;
        case 3:
          if (plain != nullptr && (fresh_elsewhere(t) || can_rerun(t))) detach(t, Codec::kNone);
          break;
      }
    }
  }

  bool fresh_elsewhere(TensorId t) const {
    for (const Holding& h : here_[t.index()]) {
      if (h.fresh && (h.tier != kDevice || h.codec != Codec::kNone)) return true;
    }
    return false;
  }

  std::mt19937_64 random_;
  const Graph& g_;
  Program p_;
  std::vector<std::vector<Holding>> here_;  // by tensor
  std::vector<std::vector<std::pair<Bytes, Bytes>>> used_;  // by tier
  std::vector<int> last_use_;               // by tensor: op
  std::vector<bool> can_rerun_from_;        // by tensor
  Bytes peak_ = 0;
};

inline Program random_program(uint64_t seed, int ops, bool cyclic = false) {
  return RandomProgram(std::make_shared<const Graph>(random_kernel_graph(seed, ops)), seed, cyclic)
      .run();
}

}  // namespace headrace::test
