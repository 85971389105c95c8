// The passes `residents` and `ring`.
#include <algorithm>
#include <bit>

#include "headrace/plan/passes.h"

namespace headrace::plan {
namespace {

// Norms and biases: together well under a percent, and a load of a few KiB is all latency.
constexpr Bytes kAlwaysResident = 64 * kKiB;
// Weights below this are kept before larger ones: page rounding at both ends of a small extent is
// read again in every cycle (a 68 KiB weight costs 6 % more than its bytes, a 1 MiB tile 0.4 %).
constexpr Bytes kKeptFirst = 256 * kKiB;

uint32_t reversed_bits(uint32_t i, int bits) {
  uint32_t out = 0;
  for (int b = 0; b < bits; ++b) out |= ((i >> b) & 1u) << (bits - 1 - b);
  return out;
}

std::vector<WeightUse> weight_uses(const Graph& graph) {
  std::vector<int32_t> index(graph.tensors.size(), -1);
  std::vector<WeightUse> uses;
  for (size_t o = 0; o < graph.ops.size(); ++o) {
    for (TensorId id : graph.ops[o].inputs) {
      if (!id.valid() || graph.at(id).role != Role::kWeight) continue;
      int32_t& at = index[id.index()];
      if (at < 0) {
        at = static_cast<int32_t>(uses.size());
        WeightUse w;
        w.tensor = id;
        w.bytes = device_bytes(graph.at(id));
        w.first = static_cast<int32_t>(o);
        uses.push_back(w);
      }
      uses[static_cast<size_t>(at)].last = static_cast<int32_t>(o);
    }
  }
  for (size_t t = 0; t < graph.tensors.size(); ++t) {
    if (graph.tensors[t].role != Role::kWeight || index[t] >= 0) continue;
    WeightUse w;
    w.tensor = TensorId(static_cast<int64_t>(t));
    w.bytes = device_bytes(graph.tensors[t]);
    w.first = w.last = static_cast<int32_t>(graph.ops.size());
    uses.push_back(w);
  }
  return uses;
}

bool used(const Graph& graph, const WeightUse& w) {
  return w.first < static_cast<int32_t>(graph.ops.size());
}

bool only_embedded(const Graph& graph, const WeightUse& w) {
  return used(graph, w) && graph.ops[static_cast<size_t>(w.last)].kind == OpKind::kEmbed;
}

// Streamed weights take turns, so no two of them may be in use over the same op. Those that end
// first are streamed (the greedy choice of the most disjoint intervals); the others are pinned: a
// weight that is used early and late, or all but one of those that one op uses at once.
// Precondition: `uses` ascend by last use.
void pin_overlapping(const Graph& graph, std::vector<WeightUse>& uses) {
  int32_t busy_until = -1;
  for (WeightUse& w : uses) {
    if (w.bytes <= kAlwaysResident || !used(graph, w)) continue;
    w.pinned = w.first <= busy_until;
    if (!w.pinned) busy_until = w.last;
  }
}

// Appends `uses` so that every prefix is spread evenly over them (van der Corput, base 2).
void append_spread(const std::vector<WeightUse>& uses, std::vector<WeightUse>& order) {
  const int bits = std::bit_width(uses.size());
  for (uint32_t i = 0; i < (1u << bits); ++i) {
    const uint32_t at = reversed_bits(i, bits);
    if (at < uses.size()) order.push_back(uses[at]);
  }
}

// The ring: slots in order of first use, from `begin` up, starting again when the end is near.
bool lay_out_ring(std::vector<WeightUse*>& streamed, Bytes begin, Bytes end) {
  Bytes at = begin;
  for (WeightUse* w : streamed) {
    if (at + w->bytes > end) at = begin;
    if (at + w->bytes > end) return false;
    w->offset = at;
    at += w->bytes;
  }
  return true;
}

bool overlap(const WeightUse& a, const WeightUse& b) {
  return a.offset < b.offset + b.bytes && b.offset < a.offset + a.bytes;
}

// When may each load start? After the last use of the previous tenants of its slot: those earlier
// in this cycle, else those of the cycle before. A slot with one tenant needs no load at all.
bool set_releases(std::vector<WeightUse*>& streamed) {
  const size_t n = streamed.size();
  for (size_t j = 0; j < n; ++j) {
    WeightUse& w = *streamed[j];
    w.release = -1;
    w.wraps = false;
    // Walking backwards over at most one ring's worth of slots finds the youngest tenant; older
    // ones ended before it, since no two streamed weights are in use at once.
    for (size_t i = j; i-- > 0 && w.release < 0;) {
      if (overlap(*streamed[i], w)) w.release = streamed[i]->last;
    }
    if (w.release >= w.first) return false;
    if (w.release >= 0) continue;
    w.wraps = true;
    for (size_t i = n; i-- > j + 1 && w.release < 0;) {
      if (overlap(*streamed[i], w)) w.release = streamed[i]->last;
    }
    if (w.release < 0) w.resident = true;
  }
  return true;
}

}  // namespace

bool always_resident(const WeightUse& w) { return w.bytes <= kAlwaysResident || w.pinned; }

std::vector<WeightUse> keep_order(const Graph& graph) {
  std::vector<WeightUse> uses = weight_uses(graph);
  std::stable_sort(uses.begin(), uses.end(),
                   [](const WeightUse& a, const WeightUse& b) { return a.last < b.last; });
  pin_overlapping(graph, uses);
  std::vector<WeightUse> order, small, spread, embedded;
  for (const WeightUse& w : uses) {
    if (w.bytes <= kAlwaysResident) {
      order.push_back(w);
    } else if (only_embedded(graph, w)) {
      embedded.push_back(w);
    } else {
      (w.bytes <= kKeptFirst ? small : spread).push_back(w);
    }
  }
  append_spread(small, order);
  append_spread(spread, order);
  order.insert(order.end(), embedded.begin(), embedded.end());
  return order;
}

bool place_weights(const Graph& graph, std::vector<WeightUse>& weights, const Layout& layout,
                   Bytes ring_bytes) {
  Bytes total = 0;
  for (const WeightUse& w : weights) total += w.bytes;
  const Bytes room = layout.weight_end() - layout.weight_begin();
  const Bytes keep = total <= room ? total : room - ring_bytes;
  Bytes at = layout.weight_begin();
  // What stays whatever the budget; the prefix; then whatever else still fits, so that no room is
  // left that could hold a whole weight. Where all fits, the order alone decides: offsets are the
  // same in every Program of a session.
  for (WeightUse& w : weights) w.resident = false;
  const auto try_keep = [&](WeightUse& w) {
    if (w.resident || at + w.bytes > layout.weight_begin() + keep) return w.resident;
    w.offset = at;
    at += w.bytes;
    return w.resident = true;
  };
  if (total > room) {
    for (WeightUse& w : weights) {
      if (always_resident(w)) try_keep(w);
    }
  }
  for (WeightUse& w : weights) {
    if (!try_keep(w)) break;
  }
  for (WeightUse& w : weights) try_keep(w);
  for (const WeightUse& w : weights) {
    if (!w.resident && always_resident(w)) return false;
  }
  std::vector<WeightUse*> streamed;
  for (WeightUse& w : weights) {
    if (!w.resident && used(graph, w)) streamed.push_back(&w);
  }
  std::stable_sort(streamed.begin(), streamed.end(),
                   [](const WeightUse* a, const WeightUse* b) { return a->first < b->first; });
  return lay_out_ring(streamed, at, layout.weight_end()) && set_releases(streamed);
}

}  // namespace headrace::plan
