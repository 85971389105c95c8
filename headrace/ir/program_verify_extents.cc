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
  const Role role = r.tensor.valid() ? g.at(r.tensor).role : Role::kActivation;
  const bool from_file = role == Role::kWeight || role == Role::kGathered;
  if (r.offset % (device && from_file ? kPage : kLine) != 0) {
    return broken("extent of " + name_of(p, r) + " is misaligned");
  }
  return {};
}

// Two tensors may share bytes at the same step only when one is the residual that the other
// replaces: a matmul may write its output over its residual.
class Sharing {
 public:
  explicit Sharing(const Graph& g) {
    for (const Op& op : g.ops) {
      if (op.kind == OpKind::kMatMul && op.inputs.size() > 3 && op.inputs[3].valid()) {
        pairs_.insert({op.outputs[0], op.inputs[3]});
      }
    }
    std::erase_if(pairs_, [&](const Pair& pair) {
      return !only_read_by_writers(g, pair.second, pair.first);
    });
  }

  bool may(const Residency& a, const Residency& b) const {
    if (!a.tensor.valid() || !b.tensor.valid() || a.offset != b.offset) return false;
    return pairs_.count({a.tensor, b.tensor}) > 0 || pairs_.count({b.tensor, a.tensor}) > 0;
  }

 private:
  using Pair = std::pair<TensorId, TensorId>;  // output, residual

  // From the first op that writes y on, `residual` is read by ops that write y and no other, and
  // by those as their residual alone: as the left operand all its columns are read by every tile.
  static bool only_read_by_writers(const Graph& g, TensorId residual, TensorId y) {
    bool started = false;
    for (const Op& op : g.ops) {
      const bool writes = std::find(op.outputs.begin(), op.outputs.end(), y) != op.outputs.end();
      started |= writes;
      for (size_t i = 0; started && i < op.inputs.size(); ++i) {
        if (op.inputs[i] == residual && (!writes || i != 3)) return false;
      }
    }
    return true;
  }

  std::set<Pair> pairs_;
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
