// Extents: sizes, alignment, capacity, and no byte for two residencies at one step.
#include <algorithm>
#include <map>
#include <set>

#include "headrace/ir/program_verify.h"

namespace headrace::verifier {
namespace {

Status check_extent(const Program& p, const Residency& r) {
  const Graph& g = *p.graph;
  const Bytes want = r.tensor.valid() ? span_of(g.at(r.tensor), r.range, r.codec).size()
                                      : g.at(r.op).workspace;
  if (r.bytes < want) return broken("extent of " + name_of(p, r) + " is too small");
  const bool device = r.tier == kDevice;
  const Bytes room = device ? p.arena_bytes : p.tiers[r.tier.index()].capacity;
  if (r.offset < 0 || r.offset > room || r.bytes > room - r.offset) {
    return broken("extent of " + name_of(p, r) + " is outside " +
                  (device ? "the arena" : "tier '" + p.tiers[r.tier.index()].name + "'"));
  }
  const Bytes unit = !r.tensor.valid() ? kLine
                     : device          ? alignment_of(g.at(r.tensor))
                                       : g.at(r.tensor).alignment;
  if (r.offset % unit != 0) return broken("extent of " + name_of(p, r) + " is misaligned");
  if (!device && unit < p.tiers[r.tier.index()].alignment) {
    return broken(text_of("%s is in tier '%s', which takes multiples of %lld bytes",
                          name_of(p, r).c_str(), p.tiers[r.tier.index()].name.c_str(),
                          static_cast<long long>(p.tiers[r.tier.index()].alignment)));
  }
  return {};
}

// Two tensors may share bytes at the same step only when one is the residual that the other
// replaces: a matmul may write its output over its residual.
class Sharing {
 public:
  explicit Sharing(const Graph& g) : g_(g) {
    for (size_t o = 0; o < g.ops.size(); ++o) {
      const Op& op = g.ops[o];
      if (op.kind != OpKind::kMatMul || op.inputs.size() < 4 || !op.inputs[3].valid()) continue;
      pairs_.insert({op.outputs[0], op.inputs[3]});
      first_write_.emplace(op.outputs[0], kNever);
      reads_.emplace(op.inputs[3], std::vector<Read>());
    }
    for (size_t o = 0; o < g.ops.size() && !reads_.empty(); ++o) {
      for (TensorId t : g.ops[o].outputs) {
        const auto at = first_write_.find(t);
        if (at != first_write_.end() && at->second == kNever) at->second = o;
      }
      for (size_t i = 0; i < g.ops[o].inputs.size(); ++i) {
        const auto at = reads_.find(g.ops[o].inputs[i]);
        if (at != reads_.end()) at->second.push_back({o, i});
      }
    }
  }

  bool may(const Residency& a, const Residency& b) const {
    if (!a.tensor.valid() || !b.tensor.valid() || a.offset != b.offset) return false;
    return replaces(a.tensor, b.tensor) || replaces(b.tensor, a.tensor);
  }

 private:
  static constexpr size_t kNever = SIZE_MAX;
  struct Read {
    size_t op = 0, input = 0;
  };

  // From the first op that writes y on, `residual` is read by ops that write y and no other, and
  // by those as their residual alone: as the left operand all its columns are read by every tile.
  bool replaces(TensorId y, TensorId residual) const {
    if (pairs_.count({y, residual}) == 0) return false;
    for (const Read& read : reads_.at(residual)) {
      const auto& out = g_.ops[read.op].outputs;
      const bool writes = std::find(out.begin(), out.end(), y) != out.end();
      if (read.op >= first_write_.at(y) && (!writes || read.input != 3)) return false;
    }
    return true;
  }

  const Graph& g_;
  std::set<std::pair<TensorId, TensorId>> pairs_;  // output, residual
  std::map<TensorId, size_t> first_write_;         // op
  std::map<TensorId, std::vector<Read>> reads_;    // of residuals
};

// The residencies of one tier that hold bytes now, by offset. All are apart, but for pairs that
// share and so begin at the same offset.
class Live {
 public:
  Live(const Program& p, const Sharing& sharing) : p_(p), sharing_(sharing) {}

  Status add(const Residency& r) {
    if (r.bytes == 0) return {};
    auto first = by_offset_.lower_bound(r.offset);
    if (first != by_offset_.begin()) {
      first = by_offset_.lower_bound(std::prev(first)->first);
    }
    for (; first != by_offset_.end() && first->first < r.offset + r.bytes; ++first) {
      const Residency& l = *first->second;
      if (l.offset + l.bytes > r.offset && !sharing_.may(l, r)) {
        return broken(text_of("%s and %s share bytes at step %d", name_of(p_, l).c_str(),
                              name_of(p_, r).c_str(), r.begin.value));
      }
    }
    by_offset_.emplace(r.offset, &r);
    return {};
  }

  void remove(const Residency& r) {
    auto [at, end] = by_offset_.equal_range(r.offset);
    for (; at != end; ++at) {
      if (at->second != &r) continue;
      by_offset_.erase(at);
      return;
    }
  }

 private:
  const Program& p_;
  const Sharing& sharing_;
  std::multimap<Bytes, const Residency*> by_offset_;
};

}  // namespace

Status check_extents(const Program& p) {
  for (const Residency& r : p.residencies) HR_TRY(check_extent(p, r));
  const Sharing sharing(*p.graph);
  std::vector<Live> live(p.tiers.size(), Live(p, sharing));
  std::vector<const Residency*> begins, ends;
  for (const Residency& r : p.residencies) begins.push_back(&r);
  ends = begins;
  std::stable_sort(begins.begin(), begins.end(),
                   [](auto* a, auto* b) { return a->begin < b->begin; });
  std::stable_sort(ends.begin(), ends.end(), [](auto* a, auto* b) { return a->end < b->end; });
  size_t ended = 0;
  for (const Residency* r : begins) {
    for (; ended < ends.size() && ends[ended]->end <= r->begin; ++ended) {
      live[ends[ended]->tier.index()].remove(*ends[ended]);
    }
    HR_TRY(live[r->tier.index()].add(*r));
  }
  return {};
}

}  // namespace headrace::verifier
