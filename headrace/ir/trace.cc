#include "headrace/ir/trace.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

namespace headrace {
namespace {

using ClassBytes = std::array<Bytes, kDataClassCount + 1>;

// Bytes of a tier by class while residencies come and go. Residencies that share bytes start at the
// same offset (verify() sees to it); the largest of those alive counts.
class Holder {
 public:
  explicit Holder(const Graph& graph) : g_(graph) {}

  void begin(const Residency& r) {
    auto& sizes = alive_[r.offset];
    count(sizes, -1);
    sizes.insert({r.bytes, slot(r)});
    count(sizes, 1);
  }
  void end(const Residency& r) {
    const auto at = alive_.find(r.offset);
    count(at->second, -1);
    at->second.erase(at->second.find({r.bytes, slot(r)}));
    count(at->second, 1);
    if (at->second.empty()) alive_.erase(at);
  }
  const ClassBytes& bytes() const { return bytes_; }

 private:
  using Sizes = std::multiset<std::pair<Bytes, size_t>>;

  size_t slot(const Residency& r) const {
    return r.tensor.valid() ? static_cast<size_t>(shown_class(g_.at(r.tensor))) : kWorkspaceSlot;
  }
  void count(const Sizes& sizes, Bytes sign) {
    if (!sizes.empty()) bytes_[sizes.rbegin()->second] += sign * sizes.rbegin()->first;
  }

  const Graph& g_;
  std::map<Bytes, Sizes> alive_;
  ClassBytes bytes_{};
};

// A residency that begins or ends; ends come before begins of the same time.
struct Change {
  int64_t time = 0;
  bool begins = false;
  const Residency* residency = nullptr;
  bool operator<(const Change& o) const {
    return time != o.time ? time < o.time : begins < o.begins;
  }
};

// Calls point(time, bytes by class) after the last change of each time.
template <typename Point>
void play(const Graph& graph, std::vector<Change> changes, Point point) {
  std::stable_sort(changes.begin(), changes.end());
  Holder holder(graph);
  for (size_t i = 0; i < changes.size(); ++i) {
    const Change& c = changes[i];
    c.begins ? holder.begin(*c.residency) : holder.end(*c.residency);
    if (i + 1 == changes.size() || changes[i + 1].time != c.time) point(c.time, holder.bytes());
  }
}

// When the bytes of `r` are free, see time_curve.
Nanos end_time(const Program& p, const Trace& trace, const Residency& r) {
  if (r.end == p.exit()) return trace.total_ns;
  const Instr& i = p.instrs[r.end.index()];
  if (i.kind == InstrKind::kDetach && i.tensor == r.tensor) {
    return trace.records[r.end.index()].end_ns;
  }
  return r.end.value == 0 ? 0 : trace.records[r.end.index() - 1].end_ns;
}

}  // namespace

std::vector<ClassPoint> class_curve(const Program& program, TierId tier) {
  std::vector<Change> changes;
  for (const Residency& r : program.residencies) {
    if (r.tier != tier) continue;
    changes.push_back({r.begin.value, true, &r});
    changes.push_back({r.end.value, false, &r});
  }
  std::vector<ClassPoint> curve;
  play(*program.graph, std::move(changes), [&](int64_t step, const ClassBytes& bytes) {
    curve.push_back({static_cast<int32_t>(step), bytes});
  });
  return curve;
}

std::vector<MemoryPoint> memory_curve(const Program& program, TierId tier) {
  std::vector<MemoryPoint> curve;
  for (const ClassPoint& p : class_curve(program, tier)) {
    curve.push_back({p.step, std::accumulate(p.bytes.begin(), p.bytes.end(), Bytes{0})});
  }
  return curve;
}

std::vector<TimePoint> time_curve(const Program& program, const Trace& trace, TierId tier) {
  std::vector<Change> changes;
  for (const Residency& r : program.residencies) {
    if (r.tier != tier) continue;
    const Nanos begin = r.begin == kEntry ? 0 : trace.records[r.begin.index()].begin_ns;
    changes.push_back({begin, true, &r});
    // One nanosecond at least, so that an end never comes before its begin.
    changes.push_back({std::max(begin + 1, end_time(program, trace, r)), false, &r});
  }
  std::vector<TimePoint> curve;
  play(*program.graph, std::move(changes), [&](int64_t time, const ClassBytes& bytes) {
    curve.push_back({time, bytes});
  });
  return curve;
}

Bytes peak_bytes(const Program& program, TierId tier) {
  Bytes peak = 0;
  for (const Residency& r : program.residencies) {
    if (r.tier == tier) peak = std::max(peak, r.offset + r.bytes);
  }
  return peak;
}

}  // namespace headrace
