// verify(Program): plays the steps of two cycles with a list of who holds which bytes, and checks
// every promise of program.h at every step. Shares no code with plan/, sim/ or run/.
#include <algorithm>
#include <set>

#include "headrace/ir/program.h"

namespace headrace {
namespace {

class Verifier {
 public:
  explicit Verifier(const Program& p) : p_(p), g_(*p.graph), n_(p.exit().value) {}

  Status run() {
    HR_TRY(verify(g_));
    HR_TRY(check_tiers());
    HR_TRY(check_ids());
    HR_TRY(check_extents());
    HR_TRY(check_lives());
    HR_TRY(check_overlaps());
    for (int32_t s = 0; s < n_; ++s) {
      Status status = check_step(s);
      if (!status.ok()) return status.within(describe(s));
    }
    HR_TRY(check_compute_order());
    return check_cycle();
  }

 private:
  std::string describe(int32_t step) const {
    const Instr& i = p_.instrs[static_cast<size_t>(step)];
    const std::string& what =
        i.kind == InstrKind::kCompute ? g_.at(i.op).name : g_.at(i.tensor).name;
    return text_of("step %d (%s '%s')", step, name_of(i.kind), what.c_str());
  }

  static Status broken(const std::string& what) { return error(Code::kBadFile, "%s", what.c_str()); }

  Status check_tiers() const {
    if (p_.tiers.empty()) return broken("a program without a device");
    for (size_t t = 1; t < p_.tiers.size(); ++t) {
      const TierInfo& tier = p_.tiers[t];
      if (!(tier.load_bytes_per_s > 0) || !(tier.store_bytes_per_s >= 0) || tier.latency_ns < 0) {
        return broken("tier '" + tier.name + "' has impossible rates");
      }
    }
    return {};
  }

  Status check_ids() const {
    for (const Instr& i : p_.instrs) {
      const bool compute = i.kind == InstrKind::kCompute;
      if (compute && (!i.op.valid() || i.op.index() >= g_.ops.size())) {
        return broken("an instruction names an op that does not exist");
      }
      if (!compute && (!i.tensor.valid() || i.tensor.index() >= g_.tensors.size())) {
        return broken("an instruction names a tensor that does not exist");
      }
      const bool moves = !compute && i.kind != InstrKind::kDetach;
      if (moves && (i.tier.value < 1 || i.tier.index() >= p_.tiers.size())) {
        return broken("a transfer names a tier that does not exist");
      }
      // Stream 0 computes; each link has one stream, or one for each direction.
      const int32_t streams = static_cast<int32_t>(2 * p_.tiers.size());
      if (moves ? (i.stream.value < 1 || i.stream.value >= streams) : i.stream.value != 0) {
        return broken("an instruction is on a stream of the wrong kind");
      }
      if (i.cost_ns < 0) return broken("an instruction takes less than no time");
      if (i.kind == InstrKind::kLoad && g_.at(i.tensor).role != Role::kWeight) {
        return broken("a load of '" + g_.at(i.tensor).name + "', which is no weight");
      }
      if (i.kind == InstrKind::kGather && g_.at(i.tensor).role != Role::kGathered) {
        return broken("a gather of '" + g_.at(i.tensor).name + "', which is no table");
      }
      for (Step w : i.waits) {
        if (w.value < 0 || w.value >= n_) return broken("a wait names a step that does not exist");
      }
    }
    for (const Residency& r : p_.residencies) {
      if (r.tensor.valid() ? r.tensor.index() >= g_.tensors.size()
                           : (!r.op.valid() || r.op.index() >= g_.ops.size())) {
        return broken("a residency of nothing");
      }
      if (r.begin >= r.end || r.begin < kEntry || r.end.value > n_) {
        return broken("a residency with impossible steps");
      }
    }
    return {};
  }

  Status check_extents() const {
    for (const Residency& r : p_.residencies) {
      const Bytes want = r.tensor.valid() ? device_bytes(g_.at(r.tensor)) : g_.at(r.op).workspace;
      const std::string& name = r.tensor.valid() ? g_.at(r.tensor).name : g_.at(r.op).name;
      if (r.bytes < want) return broken("extent of '" + name + "' is too small");
      if (r.offset < 0 || r.offset > p_.arena_bytes || r.bytes > p_.arena_bytes - r.offset) {
        return broken("extent of '" + name + "' is outside the arena");
      }
      const bool loaded = r.tensor.valid() && (g_.at(r.tensor).role == Role::kWeight ||
                                               g_.at(r.tensor).role == Role::kGathered);
      if (r.offset % (loaded ? kPage : kLine) != 0) {
        return broken("extent of '" + name + "' is misaligned");
      }
    }
    return {};
  }

  // A residency begins and ends with what makes it so; whatever has no copy elsewhere lives once.
  Status check_lives() const {
    std::vector<int> entries(g_.tensors.size(), 0), lives(g_.tensors.size(), 0);
    for (const Residency& r : p_.residencies) {
      if (!r.tensor.valid()) continue;
      const Tensor& t = g_.at(r.tensor);
      const std::string name = "'" + t.name + "'";
      const bool whole = r.begin == kEntry && r.end.value == n_;
      ++lives[r.tensor.index()];
      entries[r.tensor.index()] += r.begin == kEntry ? 1 : 0;
      if ((t.role == Role::kState || t.role == Role::kConstant) && !whole) {
        return broken(std::string(name_of(t.role)) + " " + name + " is not resident throughout");
      }
      if (t.role == Role::kOutput && r.end.value != n_) {
        return broken("output " + name + " is gone before the end");
      }
      if (t.role == Role::kWeight || t.role == Role::kGathered) {
        const bool from_before = r.begin == kEntry && t.role == Role::kWeight;
        if (!from_before && (r.begin == kEntry || !moves(r.begin, r.tensor))) {
          return broken("residency of " + name + " begins without a load");
        }
      } else if (lives[r.tensor.index()] > 1) {
        return broken(name + " is in two places");
      }
      if (t.role == Role::kWeight && r.end.value < n_ && !detaches(r.end, r.tensor)) {
        return broken("residency of " + name + " ends without a detach");
      }
      if (entries[r.tensor.index()] > 1) return broken(name + " is in two places at entry");
    }
    return {};
  }

  bool moves(Step step, TensorId t) const {
    const Instr& i = p_.instrs[step.index()];
    return (i.kind == InstrKind::kLoad || i.kind == InstrKind::kGather) && i.tensor == t;
  }
  bool detaches(Step step, TensorId t) const {
    const Instr& i = p_.instrs[step.index()];
    return i.kind == InstrKind::kDetach && i.tensor == t;
  }

  // Two tensors may share bytes at the same step only when one is the residual that the other
  // replaces: a matmul may write its output over its residual.
  bool may_share(const Residency& a, const Residency& b) const {
    if (!a.tensor.valid() || !b.tensor.valid()) return false;
    for (const Op& op : g_.ops) {
      if (op.kind != OpKind::kMatMul || op.inputs.size() < 4) continue;
      const TensorId y = op.outputs[0], residual = op.inputs[3];
      const bool pair = (y == a.tensor && residual == b.tensor) ||
                        (y == b.tensor && residual == a.tensor);
      if (pair && a.offset == b.offset && only_read_by_writers(residual, y)) return true;
    }
    return false;
  }

  // From the first op that writes y on, `residual` is read by ops that write y and no other, and
  // by those as their residual alone: as the left operand all its columns are read by every tile.
  bool only_read_by_writers(TensorId residual, TensorId y) const {
    bool started = false;
    for (const Op& op : g_.ops) {
      const bool writes = op.outputs[0] == y;
      started |= writes;
      for (size_t i = 0; started && i < op.inputs.size(); ++i) {
        if (op.inputs[i] == residual && (!writes || i != 3)) return false;
      }
    }
    return true;
  }

  Status check_overlaps() const {
    std::vector<const Residency*> live;
    std::vector<const Residency*> order;
    for (const Residency& r : p_.residencies) order.push_back(&r);
    std::stable_sort(order.begin(), order.end(),
                     [](auto* a, auto* b) { return a->begin < b->begin; });
    for (const Residency* r : order) {
      std::erase_if(live, [&](const Residency* l) { return l->end <= r->begin; });
      for (const Residency* l : live) {
        const bool apart = l->offset + l->bytes <= r->offset || r->offset + r->bytes <= l->offset;
        if (!apart && !may_share(*l, *r)) {
          return broken(text_of("%s and %s share bytes at step %d", name(*l).c_str(),
                                name(*r).c_str(), r->begin.value));
        }
      }
      live.push_back(r);
    }
    return {};
  }

  std::string name(const Residency& r) const {
    return r.tensor.valid() ? "'" + g_.at(r.tensor).name + "'"
                            : "workspace of '" + g_.at(r.op).name + "'";
  }

  const Residency* residency_at(TensorId t, int32_t step) const {
    for (const Residency& r : p_.residencies) {
      if (r.tensor == t && r.begin.value <= step && step < r.end.value) return &r;
    }
    return nullptr;
  }

  // What each kind of instruction needs of the residencies at its step.
  Status check_step(int32_t step) const {
    const Instr& i = p_.instrs[static_cast<size_t>(step)];
    switch (i.kind) {
      case InstrKind::kCompute: return check_compute(step, g_.at(i.op), i);
      case InstrKind::kLoad:
      case InstrKind::kGather: {
        const Residency* r = residency_at(i.tensor, step);
        if (r == nullptr || r->begin.value != step) return broken("load without a residency");
        if (residency_at(i.tensor, step - 1) != nullptr) {
          return broken("load of what is resident already");
        }
        return check_free(step, *r, i);
      }
      case InstrKind::kStore:
        if (residency_at(i.tensor, step) == nullptr) return broken("store of what is not here");
        return {};
      case InstrKind::kDetach: {
        const Residency* r = residency_at(i.tensor, step - 1);  // step -1 is the entry
        if (r == nullptr) return broken("detach of what is not resident");
        if (r->end.value != step) return broken("residency goes on after the detach");
        const Tensor& t = g_.at(i.tensor);
        if (t.role == Role::kWeight || t.role == Role::kGathered) return {};
        return broken("detach of '" + t.name + "', which has no other copy");
      }
    }
    return {};
  }

  // The waits of instruction `i`, and what stream order implies: compute steps run in order.
  bool waits_for_compute(const Instr& i, int32_t step, int32_t user) const {
    for (Step w : i.waits) {
      if (p_.instrs[w.index()].kind != InstrKind::kCompute) continue;
      // A wait on a step of this cycle covers all earlier compute steps and the last cycle's.
      if (w.value < step && (user <= w.value || user > step)) return true;
      if (w.value > step && user > step && user <= w.value) return true;
    }
    return false;
  }

  // A Load may start only when every compute step that used its bytes before has finished.
  Status check_free(int32_t step, const Residency& mine, const Instr& i) const {
    for (const Residency& r : p_.residencies) {
      const bool apart =
          r.offset + r.bytes <= mine.offset || mine.offset + mine.bytes <= r.offset;
      if (apart) continue;  // `mine` itself: its use in the cycle before
      const int32_t user = last_use(r, step);
      if (user >= 0 && !waits_for_compute(i, step, user)) {
        return broken(text_of("bytes of %s may still be in use by step %d", name(r).c_str(), user));
      }
    }
    return {};
  }

  // The latest compute step before `step` (in this cycle, else in the last one) that touches `r`.
  int32_t last_use(const Residency& r, int32_t step) const {
    int32_t before = -1, after = -1;
    for (int32_t s = std::max(0, r.begin.value); s < r.end.value; ++s) {
      const Instr& i = p_.instrs[static_cast<size_t>(s)];
      if (i.kind != InstrKind::kCompute) continue;
      const Op& op = g_.at(i.op);
      const bool uses = r.tensor.valid() ? touches(op, r.tensor) : i.op == r.op;
      if (uses && s < step) before = s;
      if (uses && s > step) after = s;
    }
    if (before >= 0) return before;
    return p_.cyclic ? after : -1;
  }

  static bool touches(const Op& op, TensorId t) {
    auto has = [t](const std::vector<TensorId>& v) {
      return std::find(v.begin(), v.end(), t) != v.end();
    };
    return has(op.inputs) || has(op.outputs) || has(op.updates);
  }

  Status check_compute(int32_t step, const Op& op, const Instr& i) const {
    for (const auto* list : {&op.inputs, &op.outputs, &op.updates}) {
      for (TensorId t : *list) {
        if (!t.valid()) continue;
        const Residency* r = residency_at(t, step);
        if (r == nullptr) return broken("'" + g_.at(t).name + "' is not resident");
        HR_TRY(check_arrived(step, t, *r, i));
      }
    }
    if (op.workspace > 0) {
      const OpId id = i.op;
      const bool has = std::any_of(
          p_.residencies.begin(), p_.residencies.end(), [&](const Residency& r) {
            return !r.tensor.valid() && r.op == id && r.begin.value <= step && step < r.end.value;
          });
      if (!has) return broken("no workspace");
    }
    return {};
  }

  // The Load that brought `t` here, this cycle or the last, must be among the waits.
  Status check_arrived(int32_t step, TensorId t, const Residency& r, const Instr& i) const {
    const Role role = g_.at(t).role;
    if (role != Role::kWeight && role != Role::kGathered) return {};
    int32_t load = -1;
    if (r.begin != kEntry) {
      load = r.begin.value;
    } else {
      if (!p_.cyclic) return {};  // the executor waits for whatever is pending at entry
      for (int32_t s = step; s < n_; ++s) {
        const Instr& l = p_.instrs[static_cast<size_t>(s)];
        if (l.tensor == t && l.kind == InstrKind::kLoad) load = s;
      }
      if (load < 0) return {};
    }
    for (Step w : i.waits) {
      if (w.value == load) return {};
    }
    return broken("does not wait for the load of '" + g_.at(t).name + "'");
  }

  Status check_compute_order() const {
    std::vector<bool> ran(g_.ops.size(), false);
    int32_t last = -1;
    for (const Instr& i : p_.instrs) {
      if (i.kind != InstrKind::kCompute) continue;
      if (ran[i.op.index()]) return broken("'" + g_.at(i.op).name + "' runs twice");
      if (i.op.value < last) return broken("'" + g_.at(i.op).name + "' runs out of order");
      ran[i.op.index()] = true;
      last = i.op.value;
    }
    for (size_t o = 0; o < ran.size(); ++o) {
      if (!ran[o]) return broken("'" + g_.ops[o].name + "' never runs");
    }
    return {};
  }

  Status check_cycle() const {
    if (p_.cyclic && entry_state(p_) != exit_state(p_)) {
      return broken("a cyclic program does not end where it began");
    }
    return {};
  }

  const Program& p_;
  const Graph& g_;
  const int32_t n_;
};

}  // namespace

Status verify(const Program& program) {
  if (program.graph == nullptr) return error(Code::kBadFile, "a program without a graph");
  return Verifier(program).run();
}

}  // namespace headrace
