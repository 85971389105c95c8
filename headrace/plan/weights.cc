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

std::vector<Cached> weights_of(const Graph& graph) {
  std::vector<int32_t> index(graph.tensors.size(), -1);
  std::vector<Cached> uses;
  for (size_t o = 0; o < graph.ops.size(); ++o) {
    for (TensorId id : graph.ops[o].inputs) {
      if (!id.valid() || graph.at(id).role != Role::kWeight) continue;
      int32_t& at = index[id.index()];
      if (at < 0) {
        at = static_cast<int32_t>(uses.size());
        Cached w;
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
    Cached w;
    w.tensor = TensorId(static_cast<int64_t>(t));
    w.bytes = device_bytes(graph.tensors[t]);
    w.first = w.last = static_cast<int32_t>(graph.ops.size());
    uses.push_back(w);
  }
  return uses;
}

// Slots of attention that is done in parts, by segment, then by op. Each is used by one op; the slots
// of one op (several sequences) are used at once.
std::vector<std::vector<Cached>> slots_by_segment(const Graph& graph) {
  std::vector<std::vector<Cached>> out;
  TensorId mask;  // that was made last
  int32_t select = -1;
  for (size_t o = 0; o < graph.ops.size(); ++o) {
    const Op& op = graph.ops[o];
    if (op.kind == OpKind::kSelectKv) {
      mask = op.outputs[0];
      select = static_cast<int32_t>(o);
    }
    if (op.kind != OpKind::kAttention) continue;
    if (op.iattr(Attr::kSegmentCount) == op.iattr(Attr::kSegments)) continue;
    bool first = true;
    for (const TensorId id : op.updates) {
      const KvSlot& slot = graph.at(id).slot;
      if (slot.layer < 0) continue;
      Cached c;
      c.tensor = id;
      c.slot = true;
      c.bytes = device_bytes(graph.at(id));
      c.first = c.last = static_cast<int32_t>(o);
      c.pinned = !first;
      if (op.inputs.size() > 2 && op.inputs[2] == mask) c.select = select;
      first = false;
      const auto segment = static_cast<size_t>(slot.segment);
      if (segment >= out.size()) out.resize(segment + 1);
      out[segment].push_back(c);
    }
  }
  return out;
}

bool used(const Graph& graph, const Cached& w) {
  return w.first < static_cast<int32_t>(graph.ops.size());
}

bool only_embedded(const Graph& graph, const Cached& w) {
  return used(graph, w) && graph.ops[static_cast<size_t>(w.last)].kind == OpKind::kEmbed;
}

// Streamed weights take turns, so no two of them may be in use over the same op. Those that end
// first are streamed (the greedy choice of the most disjoint intervals); the others are pinned: a
// weight that is used early and late, or all but one of those that one op uses at once.
// Precondition: `uses` ascend by last use.
void pin_overlapping(const Graph& graph, std::vector<Cached>& uses) {
  int32_t busy_until = -1;
  for (Cached& w : uses) {
    if (w.bytes <= kAlwaysResident || !used(graph, w)) continue;
    w.pinned = w.first <= busy_until;
    if (!w.pinned) busy_until = w.last;
  }
}

// Appends `uses` so that every prefix is spread evenly over them (van der Corput, base 2).
void append_spread(const std::vector<Cached>& uses, std::vector<Cached>& order) {
  const int bits = std::bit_width(uses.size());
  for (uint32_t i = 0; i < (1u << bits); ++i) {
    const uint32_t at = reversed_bits(i, bits);
    if (at < uses.size()) order.push_back(uses[at]);
  }
}

// The ring: slots in order of first use, from `begin` up, starting again when the end is near.
bool lay_out_ring(std::vector<Cached*>& streamed, Bytes begin, Bytes end) {
  Bytes at = begin;
  for (Cached* w : streamed) {
    if (at + w->bytes > end) at = begin;
    if (at + w->bytes > end) return false;
    w->offset = at;
    at += w->bytes;
  }
  return true;
}

bool overlap(const Cached& a, const Cached& b) {
  return a.offset < b.offset + b.bytes && b.offset < a.offset + a.bytes;
}

// Who had the bytes of streamed[j] last: youngest first, indices into `streamed`; those after j are of
// the cycle before. Looks back until every byte has been somebody's, at most one cycle.
std::vector<size_t> tenants_before(const std::vector<Cached*>& streamed, size_t j) {
  std::vector<size_t> out;
  const Cached& c = *streamed[j];
  std::vector<std::pair<Bytes, Bytes>> open = {{c.offset, c.offset + c.bytes}}, rest;
  for (size_t k = 1; k < streamed.size() && !open.empty(); ++k) {
    const size_t i = (j + streamed.size() - k) % streamed.size();
    const Bytes begin = streamed[i]->offset, end = begin + streamed[i]->bytes;
    if (!overlap(*streamed[i], c)) continue;
    rest.clear();
    bool last = false;
    for (const auto& [from, to] : open) {
      last |= begin < to && from < end;
      if (from < std::min(to, begin)) rest.push_back({from, std::min(to, begin)});
      if (std::max(from, end) < to) rest.push_back({std::max(from, end), to});
    }
    if (last) out.push_back(i);
    open.swap(rest);
  }
  return out;
}

// When may each load start? After the last use of the previous tenants of its place: those earlier
// in this cycle, else those of the cycle before. A place with one tenant needs no load at all.
bool set_releases(const std::vector<Cached>& all, std::vector<Cached*>& streamed) {
  for (size_t j = 0; j < streamed.size(); ++j) {
    Cached& c = *streamed[j];
    c.release = -1;
    c.wraps = false;
    c.before.clear();
    const std::vector<size_t> tenants = tenants_before(streamed, j);
    for (const size_t i : tenants) {
      c.before.push_back(static_cast<int32_t>(streamed[i] - all.data()));
    }
    if (tenants.empty()) {
      c.resident = true;
    } else if (tenants[0] < j) {
      c.release = streamed[tenants[0]]->last;
      if (c.release >= c.first) return false;
    } else if (!c.slot) {
      c.wraps = true;
      c.release = streamed[tenants[0]]->last;
    }
    c.release = std::max(c.release, c.select);
  }
  return true;
}

}  // namespace

bool always_resident(const Cached& c) {
  return c.pinned || (!c.slot && c.bytes <= kAlwaysResident);
}

std::vector<Cached> keep_order(const Graph& graph, bool kv_slots) {
  std::vector<Cached> uses = weights_of(graph);
  std::stable_sort(uses.begin(), uses.end(),
                   [](const Cached& a, const Cached& b) { return a.last < b.last; });
  pin_overlapping(graph, uses);
  std::vector<Cached> order, small, spread, embedded;
  for (const Cached& w : uses) {
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
  if (!kv_slots) return order;
  for (const std::vector<Cached>& segment : slots_by_segment(graph)) append_spread(segment, order);
  return order;
}

bool place_cached(const Graph& graph, std::vector<Cached>& weights, const Layout& layout,
                  Bytes ring_bytes) {
  Bytes total = 0;
  for (const Cached& w : weights) total += w.bytes;
  const Bytes room = layout.weight_end() - layout.weight_begin();
  const Bytes keep = total <= room ? total : room - ring_bytes;
  Bytes at = layout.weight_begin();
  // What stays whatever the budget; the prefix; then whatever else still fits, so that no room is
  // left that could hold a whole weight. Where all fits, the order alone decides: offsets are the
  // same in every Program of a session.
  for (Cached& w : weights) w.resident = false;
  const auto try_keep = [&](Cached& w) {
    if (w.resident || at + w.bytes > layout.weight_begin() + keep) return w.resident;
    w.offset = at;
    at += w.bytes;
    return w.resident = true;
  };
  if (total > room) {
    for (Cached& w : weights) {
      if (always_resident(w)) try_keep(w);
    }
  }
  for (Cached& w : weights) {
    if (!try_keep(w)) break;
  }
  for (Cached& w : weights) try_keep(w);
  for (const Cached& w : weights) {
    if (!w.resident && always_resident(w)) return false;
  }
  std::vector<Cached*> streamed;
  for (Cached& w : weights) {
    if (!w.resident && used(graph, w)) streamed.push_back(&w);
  }
  std::stable_sort(streamed.begin(), streamed.end(),
                   [](const Cached* a, const Cached* b) { return a->first < b->first; });
  return lay_out_ring(streamed, at, layout.weight_end()) && set_releases(weights, streamed);
}

}  // namespace headrace::plan
