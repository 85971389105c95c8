#include <algorithm>
#include <utility>

#include "headrace/plan/plan.h"
#include "headrace/sim/simulate.h"

namespace headrace {
namespace {

// Bytes of the union of page-rounded file extents.
class PageUnion {
 public:
  void add(const FileExtent& source) {
    const LoadExtent e = load_extent(source);
    ranges_.push_back({source.file, {e.offset, e.offset + e.bytes}});
  }
  Bytes bytes() {
    std::sort(ranges_.begin(), ranges_.end());
    Bytes total = 0, end = 0;
    int32_t file = -1;
    for (const auto& [f, range] : ranges_) {
      if (f != file) end = 0;
      file = f;
      total += std::max<Bytes>(0, range.second - std::max(range.first, end));
      end = std::max(end, range.second);
    }
    return total;
  }

 private:
  std::vector<std::pair<int32_t, std::pair<Bytes, Bytes>>> ranges_;
};

}  // namespace

PlanSummary summarize(const Program& p, int64_t position) {
  const Graph& g = *p.graph;
  PlanSummary s;
  PageUnion model, resident;
  Bytes workspace_low = p.arena_bytes;
  std::vector<bool> seen(g.tensors.size(), false), used(g.tensors.size(), false);
  for (const Op& op : g.ops) {
    for (TensorId t : op.inputs) {
      if (t.valid()) used[t.index()] = true;
    }
  }
  Bytes ring_low = p.arena_bytes, ring_high = 0;
  for (const Residency& r : p.residencies) {
    const Role role = r.tensor.valid() ? g.at(r.tensor).role : Role::kActivation;
    if (r.tier != kDevice) {
      if (r.begin == kEntry) s.kv_copy_bytes += r.bytes;
    } else if (role == Role::kState) {
      if (r.end == p.exit()) {
        s.state_bytes += r.bytes;
        continue;
      }
      ring_low = std::min(ring_low, r.offset);
      ring_high = std::max(ring_high, r.offset + r.bytes);
    } else if (role == Role::kWeight && !used[r.tensor.index()]) {
      continue;  // kept for another Program
    } else if (role != Role::kWeight) {
      workspace_low = std::min(workspace_low, r.offset);
    } else {
      const bool stays = r.end == p.exit() && (r.begin == kEntry || !p.cyclic);
      if (!seen[r.tensor.index()]) model.add(g.at(r.tensor).source);
      if (stays && !seen[r.tensor.index()]) {
        resident.add(g.at(r.tensor).source);
        ++s.resident_tensors;
      } else if (!seen[r.tensor.index()]) {
        ++s.streamed_tensors;
      }
      if (!stays) {
        ring_low = std::min(ring_low, r.offset);
        ring_high = std::max(ring_high, r.offset + r.bytes);
      }
      seen[r.tensor.index()] = true;
    }
  }
  s.model_bytes = model.bytes();
  s.resident_bytes = resident.bytes();
  s.ring_bytes = std::max<Bytes>(0, ring_high - ring_low);
  s.workspace_bytes = p.arena_bytes - workspace_low;
  s.arena_bytes = p.arena_bytes;
  const StepRows rows = typical_rows(g, position);
  const Trace trace = simulate(p, {.tiers = {}, .rows = &rows});
  for (size_t i = 0; i < p.instrs.size(); ++i) {
    if (p.instrs[i].kind != InstrKind::kLoad) continue;
    const bool kv = g.at(p.instrs[i].tensor).role == Role::kState;
    (kv ? s.kv_loaded_bytes : s.streamed_bytes) += trace.records[i].bytes;
  }
  s.gathered_bytes = trace.gathered_bytes;
  s.predicted_ns = trace.total_ns;
  s.predicted_stall_ns = trace.stall_ns;
  return s;
}

}  // namespace headrace
