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

std::string named(const Program& p, const Residency& r) {
  return "state '" + p.graph->at(r.tensor).name + "', tier '" + p.tiers[r.tier.index()].name + "'";
}

// The bytes of the tensor itself that `r` has: ranges count the rounding at its end as well.
Bytes own_bytes(const Tensor& t, const Residency& r) {
  return std::min(range_bytes(t, r.range), t.bytes - r.range.begin);
}

// The part of a copy that a transfer of whole units moves, and how far into it the wanted bytes are.
struct Part {
  TierExtent extent;
  size_t skew = 0;
};
Part part_of(const ExecutorState& state, const Residency& r, Bytes begin, Bytes bytes) {
  const CopyPlace& place = state.options.copies[r.tier.index()];
  const Bytes unit = state.tiers[r.tier.index()]->describe().alignment;
  const Bytes wanted = place.offset + r.offset + begin;
  const Bytes from = round_down(wanted, unit);
  return {{place.object, from, round_up(wanted + bytes - from, unit)},
          static_cast<size_t>(wanted - from)};
}

Status transfer(Tier& tier, const TierExtent& extent, std::span<std::byte> memory, bool stores) {
  HR_ASSIGN(const Ticket ticket, stores ? tier.store(memory, extent) : tier.load(extent, memory));
  return tier.wait(ticket);
}

// Bytes [begin, begin + from.size()) of the copy `r`, which has `own_bytes` of its tensor.
Status store_copy(ExecutorState& state, const Residency& r, Bytes own_bytes, Bytes begin,
                  std::span<const std::byte> from) {
  const Part part = part_of(state, r, begin, static_cast<Bytes>(from.size()));
  HR_ASSIGN(const Buffer buffer, buffer_of(part.extent.bytes));
  const std::span<std::byte> memory(buffer.get(), static_cast<size_t>(part.extent.bytes));
  Tier& tier = *state.tiers[r.tier.index()];
  // What lies around in the first and the last unit stays; past the tensor's end there is nothing.
  const Bytes unit = tier.describe().alignment, end = begin + static_cast<Bytes>(from.size());
  const Bytes moved_end = begin - static_cast<Bytes>(part.skew) + part.extent.bytes;
  const bool keeps_last = moved_end > end && (end < own_bytes || moved_end > r.bytes);
  const auto keep = [&](Bytes at) {
    const TierExtent far{part.extent.object, part.extent.offset + at, unit};
    return transfer(tier, far,
                    memory.subspan(static_cast<size_t>(at), static_cast<size_t>(unit)), false);
  };
  if (part.skew > 0) HR_TRY(keep(0));
  if (keeps_last) HR_TRY(keep(part.extent.bytes - unit));
  std::memcpy(memory.data() + part.skew, from.data(), from.size());
  return transfer(tier, part.extent, memory, true);
}

Status load_copy(ExecutorState& state, const Residency& r, Bytes begin, std::span<std::byte> to) {
  const Part part = part_of(state, r, begin, static_cast<Bytes>(to.size()));
  HR_ASSIGN(const Buffer buffer, buffer_of(part.extent.bytes));
  const std::span<std::byte> memory(buffer.get(), static_cast<size_t>(part.extent.bytes));
  HR_TRY(transfer(*state.tiers[r.tier.index()], part.extent, memory, false));
  std::memcpy(to.data(), memory.data() + part.skew, to.size());
  return {};
}

// What of bytes [begin, begin + bytes) of a tensor the residency has: [first, end) of the tensor.
struct Overlap {
  Bytes first = 0, end = 0;
  bool empty() const { return first >= end; }
};
Overlap overlap_of(const Tensor& t, const Residency& r, Bytes begin, Bytes bytes) {
  return {std::max(begin, r.range.begin),
          std::min(begin + bytes, r.range.begin + own_bytes(t, r))};
}

Status check_part(const Tensor& t, Bytes begin, size_t bytes) {
  if (begin >= 0 && static_cast<Bytes>(bytes) <= t.bytes - begin) return {};
  return error(Code::kUsage, "state '%s' has %lld bytes, not %zu from %lld on", t.name.c_str(),
               static_cast<long long>(t.bytes), bytes, static_cast<long long>(begin));
}

// Ok when state is where the Program has it at entry, or is nowhere yet.
Status check_places(const ExecutorState& s, const PreparedProgram& p, const Tensor& t,
                    bool ran_last) {
  for (const StatePlace& place : p.state_entry) {
    if (ran_last || s.names.name_of(place.held) != t.name || s.agrees(place)) continue;
    return error(Code::kUsage, "state '%s' is not where program '%s' has it in tier '%s' at entry",
                 t.name.c_str(), p.program.name.c_str(),
                 p.program.tiers[place.tier.index()].name.c_str());
  }
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
  return store_copy(state, r, bytes, 0, {buffer.get(), static_cast<size_t>(bytes)});
}

// True when `places` together have all of bytes [begin, begin + bytes).
bool covered(const Tensor& t, std::vector<const Residency*> places, Bytes begin, Bytes bytes) {
  std::sort(places.begin(), places.end(), [](const Residency* a, const Residency* b) {
    return a->range.begin < b->range.begin;
  });
  Bytes at = begin;
  for (const Residency* r : places) {
    const Overlap part = overlap_of(t, *r, begin, bytes);
    if (part.first <= at) at = std::max(at, part.end);
  }
  return at >= begin + bytes;
}

// Bytes [begin, begin + out.size()) of a tensor from those of its residencies that `there` names.
template <typename There>
Status read_places(ExecutorState& s, const Program& p, TensorId id, Bytes begin,
                   std::span<std::byte> out, There there) {
  const Tensor& t = p.graph->at(id);
  std::vector<const Residency*> places;
  for (const Residency& r : p.residencies) {
    if (r.tensor != id || !there(r)) continue;
    if (!overlap_of(t, r, begin, static_cast<Bytes>(out.size())).empty()) places.push_back(&r);
  }
  // A copy may be older than what the device has, or than a copy stored later: the newest last.
  std::stable_sort(places.begin(), places.end(), [](const Residency* a, const Residency* b) {
    const bool a_here = a->tier == kDevice, b_here = b->tier == kDevice;
    return a_here != b_here ? b_here : a->begin < b->begin;
  });
  if (!covered(t, places, begin, static_cast<Bytes>(out.size()))) {
    return error(Code::kUsage, "'%s' is nowhere", t.name.c_str());
  }
  for (const Residency* r : places) {
    if (r->codec != Codec::kNone) return encoded(p, *r);
    const Overlap part = overlap_of(t, *r, begin, static_cast<Bytes>(out.size()));
    const auto to = out.subspan(static_cast<size_t>(part.first - begin),
                                static_cast<size_t>(part.end - part.first));
    const Bytes inside = part.first - r->range.begin;
    if (r->tier == kDevice) {
      std::memcpy(to.data(), s.arena.at(r->offset + inside, part.end - part.first).data(),
                  to.size());
    } else {
      HR_TRY(load_copy(s, *r, inside, to).within(named(p, *r)));
    }
  }
  return {};
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
  s.state_of = nullptr;
  return {};
}

Status Executor::write_state(const Prepared& prepared, std::string_view name,
                             std::span<const std::byte> bytes, Bytes begin) {
  ExecutorState& s = *state_;
  const Program& p = prepared.body->program;
  HR_ASSIGN(const TensorId id, state_called(p, name));
  const Tensor& t = p.graph->at(id);
  HR_TRY(check_part(t, begin, bytes.size()));
  const bool ran_last = s.state_of == prepared.body && s.state_at_exit;
  HR_TRY(check_places(s, *prepared.body, t, ran_last));
  HR_TRY(s.settle());
  if (s.state_of == nullptr) s.set_state(prepared.body, false);
  for (const Residency& r : p.residencies) {
    if (r.tensor != id || !(ran_last ? r.end == p.exit() : r.begin == kEntry)) continue;
    if (r.codec != Codec::kNone) return encoded(p, r);
    const Overlap part = overlap_of(t, r, begin, static_cast<Bytes>(bytes.size()));
    if (part.empty()) continue;
    const auto from = bytes.subspan(static_cast<size_t>(part.first - begin),
                                    static_cast<size_t>(part.end - part.first));
    const Bytes inside = part.first - r.range.begin;
    if (r.tier == kDevice) {
      std::memcpy(s.arena.at(r.offset + inside, part.end - part.first).data(), from.data(),
                  from.size());
    } else {
      HR_TRY(store_copy(s, r, own_bytes(t, r), inside, from).within(named(p, r)));
    }
  }
  return {};
}

Status Executor::read_state(const Prepared& prepared, std::string_view name,
                            std::span<std::byte> out, Bytes begin) {
  ExecutorState& s = *state_;
  // A step that was left halfway has updated some of it and not the rest.
  if (!s.failed.ok()) return s.failed.within("state is lost after an error");
  const Program& p = prepared.body->program;
  HR_ASSIGN(const TensorId id, state_called(p, name));
  const Tensor& t = p.graph->at(id);
  HR_TRY(check_part(t, begin, out.size()));
  HR_TRY(s.settle());
  return read_places(s, p, id, begin, out,
                     [&](const Residency& r) { return r.end == p.exit(); });
}

Status Executor::read_abandoned(std::string_view name, std::span<std::byte> out) {
  ExecutorState& s = *state_;
  HR_CHECK(s.abandoned_at != kEntry, "read_abandoned() after abandon()");
  const Program& p = s.current->program;
  const auto& tensors = p.graph->tensors;
  const auto t = std::find_if(tensors.begin(), tensors.end(),
                              [&](const Tensor& each) { return each.name == name; });
  if (t == tensors.end()) {
    return error(Code::kUsage, "program '%s' has no tensor '%s'", p.name.c_str(),
                 std::string(name).c_str());
  }
  HR_TRY(check_part(*t, 0, out.size()));
  return read_places(s, p, TensorId(t - tensors.begin()), 0, out, [&](const Residency& r) {
    return r.begin < s.abandoned_at && r.end > s.abandoned_at;
  });
}

Result<std::vector<std::byte>> Executor::read_state(const Prepared& prepared,
                                                    std::string_view name) {
  HR_ASSIGN(const TensorId id, state_called(prepared.body->program, name));
  const Bytes bytes = prepared.body->program.graph->at(id).bytes;
  std::vector<std::byte> out(static_cast<size_t>(bytes));
  HR_TRY(read_state(prepared, name, out, 0));
  return out;
}

}  // namespace headrace
