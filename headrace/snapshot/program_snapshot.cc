#include "headrace/snapshot/program_snapshot.h"

#include <algorithm>
#include <map>

namespace headrace {
namespace {

class Writer {
 public:
  explicit Writer(const Timeline& t) : t_(t), p_(*t.program) {}

  MemorySnapshot write() {
    for (size_t tier = 0; tier < t_.tiers.size(); ++tier) write_tier(tier);
    return std::move(s_);
  }

 private:
  using Held = std::map<Bytes, const TimelineHolding*>;  // by offset
  struct Change {
    Nanos time = 0;
    bool begins = false;
    const TimelineHolding* holding = nullptr;
  };

  void write_tier(size_t tier) {
    std::vector<Change> changes;
    for (const TimelineHolding& h : t_.holdings) {
      if (residency(h).tier.index() != tier) continue;
      changes.push_back({h.begin_ns, true, &h});
      changes.push_back({std::max(h.begin_ns + 1, h.end_ns), false, &h});
    }
    // Ends before begins of the same time; nothing lasts less than a nanosecond.
    std::stable_sort(changes.begin(), changes.end(), [](const Change& a, const Change& b) {
      return a.time != b.time ? a.time < b.time : a.begins < b.begins;
    });
    std::vector<SnapshotEvent> events;
    Held held;
    for (const Change& c : changes) {
      const Bytes offset = residency(*c.holding).offset;
      if (c.begins) {
        if (overlaps(held, *c.holding)) continue;
        held[offset] = c.holding;
        events.push_back(event(EventKind::kAlloc, c));
        continue;
      }
      const auto it = held.find(offset);
      if (it == held.end() || it->second != c.holding) continue;
      if (residency(*c.holding).end == p_.exit()) continue;  // stays
      held.erase(it);
      events.push_back(event(EventKind::kFreeRequested, c));
      events.push_back(event(EventKind::kFreeCompleted, c));
    }
    s_.traces.push_back(std::move(events));
    write_segment(tier, held);
  }

  const Residency& residency(const TimelineHolding& h) const {
    return p_.residencies[static_cast<size_t>(h.residency)];
  }

  bool overlaps(const Held& held, const TimelineHolding& h) const {
    const Residency& r = residency(h);
    auto next = held.lower_bound(r.offset);
    if (next != held.end() && next->first < r.offset + r.bytes) return true;
    if (next == held.begin()) return false;
    const Residency& before = residency(*std::prev(next)->second);
    return before.offset + before.bytes > r.offset;
  }

  SnapshotEvent event(EventKind kind, const Change& c) {
    const Residency& r = residency(*c.holding);
    SnapshotEvent e;
    e.kind = kind;
    e.address = r.offset;
    e.size = r.bytes;
    e.time_us = c.time / 1000;
    e.stack = stack_of(r);
    return e;
  }

  // Innermost first: what it is, then what fills it.
  int32_t stack_of(const Residency& r) {
    std::vector<int32_t> frames;
    if (r.tensor.valid()) {
      const Tensor& t = p_.graph->at(r.tensor);
      frames.push_back(frame(t.name, name_of(shown_class(t))));
    } else {
      frames.push_back(frame(p_.graph->ops[r.op.index()].name, "workspace"));
    }
    if (r.begin == kEntry) {
      frames.push_back(frame("there at entry", ""));
    } else {
      const Instr& i = p_.instrs[r.begin.index()];
      frames.push_back(frame(name_of(i.kind) + std::string(" ") + subject_of(p_, i), "",
                             r.begin.value));
    }
    const auto [it, fresh] = stacks_.try_emplace(frames, s_.stacks.size());
    if (fresh) s_.stacks.push_back(std::move(frames));
    return static_cast<int32_t>(it->second);
  }
  int32_t frame(std::string name, std::string file, int64_t line = 0) {
    const auto key = std::make_tuple(name, file, line);
    const auto [it, fresh] = frames_.try_emplace(key, s_.frames.size());
    if (fresh) s_.frames.push_back({std::move(name), std::move(file), line});
    return static_cast<int32_t>(it->second);
  }

  void write_segment(size_t tier, const Held& held) {
    SnapshotSegment s;
    s.device = static_cast<int32_t>(tier);
    Bytes at = 0;
    const auto free_until = [&](Bytes end) {
      if (end > at) s.blocks.push_back({at, end - at, 0, BlockState::kFree, -1});
    };
    for (const auto& [offset, h] : held) {
      const Residency& r = residency(*h);
      free_until(offset);
      s.blocks.push_back({offset, r.bytes, r.bytes, BlockState::kActive, stack_of(r)});
      at = offset + r.bytes;
    }
    s.bytes = std::max(at, tier == 0 ? p_.arena_bytes : t_.tiers[tier].peak);
    free_until(s.bytes);
    if (s.bytes > 0) s_.segments.push_back(std::move(s));
  }

  const Timeline& t_;
  const Program& p_;
  MemorySnapshot s_;
  std::map<std::vector<int32_t>, size_t> stacks_;
  std::map<std::tuple<std::string, std::string, int64_t>, size_t> frames_;
};

}  // namespace

MemorySnapshot snapshot_of(const Timeline& timeline) { return Writer(timeline).write(); }

}  // namespace headrace
