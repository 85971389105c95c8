// The list of passes: read this first.
#include <algorithm>

#include "headrace/ir/kv.h"
#include "headrace/plan/passes.h"
#include "headrace/sim/simulate.h"

namespace headrace {
namespace {

using plan::Buffer;
using plan::Layout;
using plan::Cached;

// What every plan of this graph needs whatever the budget, and what may be kept, in keep order.
struct Analysis {
  std::vector<Buffer> buffers;
  std::vector<Cached> cached;
  Layout layout;
  Bytes least_arena = 0;
  Bytes full_arena = 0;
};

Analysis analyse(const Graph& graph, bool kv_slots) {
  Analysis a;
  a.buffers = plan::live_ranges(graph);
  a.layout.activation_bytes = plan::assign_offsets(a.buffers);
  a.cached = plan::keep_order(graph, kv_slots);
  std::vector<bool> moves(graph.tensors.size(), false);
  Bytes largest = 0, kept = 0, all = 0;
  for (const Cached& c : a.cached) {
    all += c.bytes;
    moves[c.tensor.index()] = true;
    if (plan::always_resident(c)) {
      kept += c.bytes;
    } else {
      largest = std::max(largest, c.bytes);
    }
  }
  // As emit() places it.
  Bytes state = 0;
  for (size_t t = 0; t < graph.tensors.size(); ++t) {
    if (graph.tensors[t].role != Role::kState || moves[t]) continue;
    state = round_up(state, alignment_of(graph.tensors[t])) + device_bytes(graph.tensors[t]);
  }
  a.layout.state_bytes = round_up(state, kPage);
  const Bytes fixed = a.layout.activation_bytes + a.layout.state_bytes;
  a.least_arena = fixed + kept + largest;
  a.full_arena = fixed + all;
  return a;
}

// A disk gives its full rate only with several requests in flight: 1.05 GB/s with one of 1 MiB,
// 2.6 with eight, on the disk this was measured on. The ring is what bounds them.
constexpr Bytes kInFlight = 8 * kMiB;
// Of KV slots. Their ops take a tenth of a millisecond each and what they use is checked before, so
// that a thread set back by others of its machine (a time slice: 3 ms) has to find what the disk has
// brought meanwhile: beside two processes that read memory, a step of 291 MiB of KV at 3.5 GB/s took
// 290 ms with 8 MiB, 175 ms with 24. They cost 16 MiB more to read.
constexpr Bytes kSlotsInFlight = 24 * kMiB;

// Ring sizes to try, by doubling: from one that keeps the disk's queue full, or an eighth of the
// room where that is less; where the room is scarce, from the largest that is streamed (no overlap).
std::vector<Bytes> ring_candidates(const Analysis& a) {
  Bytes largest = 0, in_flight = kInFlight;
  Bytes room = a.layout.weight_end() - a.layout.weight_begin();
  for (const Cached& c : a.cached) {
    if (c.slot) in_flight = kSlotsInFlight;
    if (plan::always_resident(c)) {
      room -= c.bytes;
    } else {
      largest = std::max(largest, c.bytes);
    }
  }
  std::vector<Bytes> sizes = {largest};
  if (largest == 0) return sizes;  // nothing can be streamed
  const Bytes steady = std::min(largest + in_flight, std::max(2 * largest, room / 8));
  if (steady <= room / 2) sizes = {steady};
  for (Bytes ring = 2 * sizes[0]; ring <= std::min(room, 64 * kMiB); ring *= 2) {
    sizes.push_back(ring);
  }
  return sizes;
}

}  // namespace

Bytes least_arena_bytes(const Graph& graph, TierId kv_tier) {
  return analyse(graph, kv_tier.valid()).least_arena;
}
Bytes full_arena_bytes(const Graph& graph, TierId kv_tier) {
  return analyse(graph, kv_tier.valid()).full_arena;
}

StepRows typical_rows(const Graph& graph, int64_t position) {
  StepRows rows;
  const auto n = static_cast<size_t>(graph.max_rows);
  // A decode step seals a tile once in 64 times: that one is not typical.
  if (n == 1 && position % kKvTile == kKvTile - 1) ++position;
  rows.tokens.assign(n, 0);
  rows.sequences.assign(n, 0);
  for (size_t i = 0; i < n; ++i) {
    rows.positions.push_back(static_cast<int32_t>(position) + static_cast<int32_t>(i));
  }
  return rows;
}

Result<Program> plan_cyclic(const PlanRequest& request) {
  HR_CHECK(request.machine != nullptr && request.machine->tiers.size() >= 2,
           "a plan needs a machine with a file tier");
  Analysis a = analyse(*request.graph, request.kv_tier.valid());
  HR_CHECK(!request.kv_tier.valid() || request.kv_tier.index() < request.machine->tiers.size(),
           "KV moves to a tier that the machine has");
  a.layout.arena_bytes = round_down(request.arena_bytes, kPage);
  if (a.layout.arena_bytes < a.least_arena) {
    return error(Code::kDoesNotFit,
                 "%s needs an arena of at least %s (%lld bytes: KV that stays %s, activations %s, "
                 "smallest weights and ring %s), %s are left for it",
                 request.name.c_str(), human_bytes(a.least_arena).c_str(),
                 static_cast<long long>(a.least_arena), human_bytes(a.layout.state_bytes).c_str(),
                 human_bytes(a.layout.activation_bytes).c_str(),
                 human_bytes(a.least_arena - a.layout.state_bytes - a.layout.activation_bytes)
                     .c_str(),
                 human_bytes(std::max<Bytes>(0, request.arena_bytes)).c_str());
  }
  Program best;
  Nanos best_ns = 0;
  const StepRows rows = typical_rows(*request.graph, request.cost.positions);
  for (Bytes ring : ring_candidates(a)) {
    if (!plan::place_cached(*request.graph, a.cached, a.layout, ring)) continue;
    Program candidate = plan::emit(request, a.layout, a.buffers, a.cached);
    const Nanos ns = simulate(candidate, {.tiers = {}, .rows = &rows}).total_ns;
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
