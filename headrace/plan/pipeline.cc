// The list of passes: read this first.
#include <algorithm>

#include "headrace/plan/passes.h"
#include "headrace/sim/simulate.h"

namespace headrace {
namespace {

using plan::Buffer;
using plan::Layout;
using plan::WeightUse;

Bytes state_bytes(const Graph& graph) {
  Bytes bytes = 0;
  for (const Tensor& t : graph.tensors) {
    if (t.role == Role::kState) bytes += device_bytes(t);
  }
  return round_up(bytes, kPage);
}

// What every plan of this graph needs whatever the budget, and the weights in keep order.
struct Analysis {
  std::vector<Buffer> buffers;
  std::vector<WeightUse> weights;
  Layout layout;
  Bytes least_arena = 0;
  Bytes full_arena = 0;
};

Analysis analyse(const Graph& graph) {
  Analysis a;
  a.buffers = plan::live_ranges(graph);
  a.layout.activation_bytes = plan::assign_offsets(a.buffers);
  a.layout.state_bytes = state_bytes(graph);
  a.weights = plan::keep_order(graph);
  const Bytes fixed = a.layout.activation_bytes + a.layout.state_bytes;
  a.least_arena = fixed;
  a.full_arena = fixed;
  Bytes largest = 0;
  for (const WeightUse& w : a.weights) {
    a.full_arena += w.bytes;
    if (plan::always_resident(w)) {
      a.least_arena += w.bytes;
    } else {
      largest = std::max(largest, w.bytes);
    }
  }
  a.least_arena += largest;
  return a;
}

// A disk gives its full rate only with several requests in flight: 1.05 GB/s with one of 1 MiB,
// 2.6 with eight, on the disk this was measured on. The ring is what bounds them.
constexpr Bytes kInFlight = 8 * kMiB;

// Ring sizes to try, by doubling: from one that keeps the disk's queue full, or an eighth of the
// room where that is less; where the room is scarce, from the largest streamed weight (no overlap).
std::vector<Bytes> ring_candidates(const Analysis& a) {
  Bytes largest = 0;
  Bytes room = a.layout.weight_end() - a.layout.weight_begin();
  for (const WeightUse& w : a.weights) {
    if (plan::always_resident(w)) {
      room -= w.bytes;
    } else {
      largest = std::max(largest, w.bytes);
    }
  }
  std::vector<Bytes> sizes = {largest};
  if (largest == 0) return sizes;  // nothing can be streamed
  const Bytes steady = std::min(largest + kInFlight, std::max(2 * largest, room / 8));
  if (steady <= room / 2) sizes = {steady};
  for (Bytes ring = 2 * sizes[0]; ring <= std::min(room, 64 * kMiB); ring *= 2) {
    sizes.push_back(ring);
  }
  return sizes;
}

}  // namespace

Bytes least_arena_bytes(const Graph& graph, TierId kv_tier) {
  const Analysis a = analyse(graph);
  if (!kv_tier.valid()) return a.least_arena;
  Bytes slots = 0, largest_slot = 0, largest = 0;
  for (const Op& op : graph.ops) {
    if (op.kind != OpKind::kAttention || op.iattr(Attr::kSegmentCount) == op.iattr(Attr::kSegments)) {
      continue;
    }
    for (const TensorId id : op.updates) {
      if (graph.at(id).slot.layer < 0) continue;
      slots += device_bytes(graph.at(id));
      largest_slot = std::max(largest_slot, device_bytes(graph.at(id)));
    }
  }
  for (const WeightUse& w : a.weights) {
    if (!plan::always_resident(w)) largest = std::max(largest, w.bytes);
  }
  return a.least_arena - slots + std::max(largest_slot, largest) - largest;
}
Bytes full_arena_bytes(const Graph& graph) { return analyse(graph).full_arena; }

Result<Program> plan_cyclic(const PlanRequest& request) {
  HR_CHECK(request.machine != nullptr && request.machine->tiers.size() >= 2,
           "a plan needs a machine with a file tier");
  Analysis a = analyse(*request.graph);
  a.layout.arena_bytes = round_down(request.arena_bytes, kPage);
  if (a.layout.arena_bytes < a.least_arena) {
    return error(Code::kDoesNotFit,
                 "%s needs an arena of at least %s (%lld bytes: KV %s, activations %s, smallest "
                 "weights and ring %s), %s are left for it",
                 request.name.c_str(), human_bytes(a.least_arena).c_str(),
                 static_cast<long long>(a.least_arena), human_bytes(a.layout.state_bytes).c_str(),
                 human_bytes(a.layout.activation_bytes).c_str(),
                 human_bytes(a.least_arena - a.layout.state_bytes - a.layout.activation_bytes)
                     .c_str(),
                 human_bytes(std::max<Bytes>(0, request.arena_bytes)).c_str());
  }
  Program best;
  Nanos best_ns = 0;
  for (Bytes ring : ring_candidates(a)) {
    if (!plan::place_weights(*request.graph, a.weights, a.layout, ring)) continue;
    Program candidate = plan::emit(request, a.layout, a.buffers, a.weights);
    const Nanos ns = simulate(candidate).total_ns;
    if (best.graph == nullptr || ns < best_ns) {
      best = std::move(candidate);
      best_ns = ns;
    }
    if (a.layout.arena_bytes >= a.full_arena) break;  // nothing is streamed, whatever the ring
  }
  HR_CHECK(best.graph != nullptr, "an arena that holds the least always has a ring");
  return best;
}

}  // namespace headrace
