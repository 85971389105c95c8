// What a Program expects at entry and leaves at exit, from and to memory of the caller's.
#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "headrace/run/executor_state.h"

namespace headrace {
namespace {

struct Free {
  void operator()(std::byte* p) const { std::free(p); }
};
using Buffer = std::unique_ptr<std::byte, Free>;

// On a page boundary and of whole pages: what any tier accepts. Zero.
Result<Buffer> buffer_of(Bytes bytes) {
  const auto size = static_cast<size_t>(round_up(std::max<Bytes>(bytes, 1), kPage));
  Buffer out(static_cast<std::byte*>(std::aligned_alloc(kPage, size)));
  if (out == nullptr) {
    return error(Code::kDoesNotFit, "no memory for %zu bytes of state", size);
  }
  std::memset(out.get(), 0, size);
  return out;
}

// The range of `place` that a copy has, in whole units of its tier.
TierExtent extent_of(const ExecutorState& state, const Residency& r, Bytes bytes) {
  const CopyPlace& place = state.options.copies[r.tier.index()];
  const Bytes unit = state.tiers[r.tier.index()]->describe().alignment;
  return {place.object, place.offset + r.offset, round_up(bytes, unit)};
}

Result<TensorId> state_called(const Program& p, std::string_view name) {
  const Graph& g = *p.graph;
  for (size_t t = 0; t < g.tensors.size(); ++t) {
    if (g.tensors[t].role == Role::kState && g.tensors[t].name == name) {
      return TensorId(static_cast<int64_t>(t));
    }
  }
  return error(Code::kUsage, "program '%s' has no state tensor '%s'", p.name.c_str(),
               std::string(name).c_str());
}

Status encoded(const Program& p, const Residency& r) {
  return error(Code::kUnsupported, "'%s' is in form '%s' in tier '%s'",
               p.graph->at(r.tensor).name.c_str(), name_of(r.codec),
               p.tiers[r.tier.index()].name.c_str());
}

// The bytes of the tensor itself that `r` has: ranges count the rounding at its end as well.
Bytes own_bytes(const Tensor& t, const Residency& r) {
  return std::min(range_bytes(t, r.range), t.bytes - r.range.begin);
}

Status store_copy(ExecutorState& state, const Residency& r, std::span<const std::byte> from) {
  HR_ASSIGN(const Buffer buffer, buffer_of(static_cast<Bytes>(from.size())));
  std::memcpy(buffer.get(), from.data(), from.size());
  const TierExtent to = extent_of(state, r, static_cast<Bytes>(from.size()));
  Tier& tier = *state.tiers[r.tier.index()];
  HR_ASSIGN(const Ticket ticket,
            tier.store({buffer.get(), static_cast<size_t>(to.bytes)}, to));
  return tier.wait(ticket);
}

Status load_copy(ExecutorState& state, const Residency& r, std::span<std::byte> to) {
  HR_ASSIGN(const Buffer buffer, buffer_of(static_cast<Bytes>(to.size())));
  const TierExtent from = extent_of(state, r, static_cast<Bytes>(to.size()));
  Tier& tier = *state.tiers[r.tier.index()];
  HR_ASSIGN(const Ticket ticket,
            tier.load(from, {buffer.get(), static_cast<size_t>(from.bytes)}));
  HR_TRY(tier.wait(ticket));
  std::memcpy(to.data(), buffer.get(), to.size());
  return {};
}

Status load_weight(ExecutorState& state, const Program& p, const Residency& r) {
  const Tensor& t = p.graph->at(r.tensor);
  if (r.codec != Codec::kNone) return encoded(p, r);
  const Bytes bytes = range_bytes(t, r.range);
  const TierExtent from{t.source.file, load_extent(t.source).offset + r.range.begin, bytes};
  Tier& files = *state.tiers[p.source_tier.index()];
  if (r.tier == kDevice) {
    HR_ASSIGN(const Ticket ticket, files.load(from, state.arena.at(r.offset, bytes)));
    return files.wait(ticket);
  }
  HR_ASSIGN(const Buffer buffer, buffer_of(bytes));
  HR_ASSIGN(const Ticket ticket, files.load(from, {buffer.get(), static_cast<size_t>(bytes)}));
  HR_TRY(files.wait(ticket));
  return store_copy(state, r, {buffer.get(), static_cast<size_t>(bytes)});
}

}  // namespace

Status Executor::load_entry_state(const Prepared& prepared) {
  ExecutorState& s = *state_;
  const Program& p = prepared.body->program;
  HR_TRY(s.settle());
  for (const Residency& r : p.residencies) {
    if (!r.tensor.valid() || r.begin != kEntry) continue;
    const Tensor& t = p.graph->at(r.tensor);
    if (t.role != Role::kWeight) continue;
    if (p.source_tier.index() >= s.tiers.size() || s.tiers[p.source_tier.index()] == nullptr) {
      return error(Code::kUsage, "'%s' is in a file, and the executor was given no tier for files",
                   t.name.c_str());
    }
    HR_TRY(load_weight(s, p, r).within("entry state, '" + t.name + "'"));
  }
  for (Held& h : s.held) h.here = false;
  for (const PreparedProgram::Place& e : prepared.body->entry) {
    s.held[static_cast<size_t>(e.held)] = {true, e.offset};
  }
  s.current = nullptr;
  return {};
}

Status Executor::write_state(const Prepared& prepared, std::string_view name,
                             std::span<const std::byte> bytes) {
  ExecutorState& s = *state_;
  const Program& p = prepared.body->program;
  HR_ASSIGN(const TensorId id, state_called(p, name));
  const Tensor& t = p.graph->at(id);
  if (static_cast<Bytes>(bytes.size()) != t.bytes) {
    return error(Code::kUsage, "state '%s' has %lld bytes, not %zu", t.name.c_str(),
                 static_cast<long long>(t.bytes), bytes.size());
  }
  HR_TRY(s.settle());
  for (const Residency& r : p.residencies) {
    if (r.tensor != id || r.begin != kEntry) continue;
    if (r.codec != Codec::kNone) return encoded(p, r);
    const Bytes own = own_bytes(t, r);
    if (own <= 0) continue;
    const auto from = bytes.subspan(static_cast<size_t>(r.range.begin), static_cast<size_t>(own));
    if (r.tier == kDevice) {
      std::memcpy(s.arena.at(r.offset, own).data(), from.data(), from.size());
    } else {
      HR_TRY(store_copy(s, r, from).within("state '" + t.name + "'"));
    }
  }
  return {};
}

Result<std::vector<std::byte>> Executor::read_state(const Prepared& prepared,
                                                    std::string_view name) {
  ExecutorState& s = *state_;
  const Program& p = prepared.body->program;
  HR_ASSIGN(const TensorId id, state_called(p, name));
  const Tensor& t = p.graph->at(id);
  HR_TRY(s.settle());
  std::vector<const Residency*> places;
  for (const Residency& r : p.residencies) {
    if (r.tensor == id && r.end == p.exit() && own_bytes(t, r) > 0) places.push_back(&r);
  }
  // A copy may be older than what the device has, or than a copy stored later: the newest last.
  std::stable_sort(places.begin(), places.end(), [](const Residency* a, const Residency* b) {
    const bool a_here = a->tier == kDevice, b_here = b->tier == kDevice;
    return a_here != b_here ? b_here : a->begin < b->begin;
  });
  std::vector<std::byte> out(static_cast<size_t>(t.bytes));
  for (const Residency* r : places) {
    if (r->codec != Codec::kNone) return encoded(p, *r);
    const std::span<std::byte> to(out.data() + r->range.begin,
                                  static_cast<size_t>(own_bytes(t, *r)));
    if (r->tier == kDevice) {
      std::memcpy(to.data(), s.arena.at(r->offset, own_bytes(t, *r)).data(), to.size());
    } else {
      HR_TRY(load_copy(s, *r, to).within("state '" + t.name + "'"));
    }
  }
  return out;
}

}  // namespace headrace
