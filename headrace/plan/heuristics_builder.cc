#include "headrace/plan/heuristics_builder.h"

#include <algorithm>
#include <tuple>

namespace headrace::plan {
namespace {

// The longest idle gap of the values that a rule wants remote.
void mark_required(const Problem& p, std::vector<IdleGap>& gaps) {
  for (size_t i = 0; i < gaps.size();) {
    size_t end = i, longest = i;
    for (; end < gaps.size() && gaps[end].value == gaps[i].value; ++end) {
      const auto length = [&](size_t g) { return gaps[g].before - gaps[g].after; };
      if (length(end) > length(longest)) longest = end;
    }
    const PlacementRule* rule = p.values[static_cast<size_t>(gaps[i].value)].rule;
    if (rule != nullptr && rule->remote) gaps[longest].must = true;
    i = end;
  }
}

}  // namespace

TierId storing_tier(const Problem& p, const Value& value) {
  TierId best;
  for (size_t t = 1; t < p.machine->tiers.size(); ++t) {
    const TierInfo& tier = p.machine->tiers[t];
    if (!may_store(p, value, TierId(static_cast<int64_t>(t)))) continue;
    if (tier.capacity > 0 && value.bytes > tier.capacity) continue;
    const bool better = !best.valid() || tier.load_bytes_per_s >
                                             p.machine->tiers[best.index()].load_bytes_per_s;
    if (better) best = TierId(static_cast<int64_t>(t));
  }
  return best;
}

std::vector<IdleGap> idle_gaps(const Problem& p) {
  std::vector<IdleGap> gaps;
  const int32_t n = p.size();
  for (size_t i = 0; i < p.values.size(); ++i) {
    const Value& v = p.values[i];
    if (v.rule != nullptr && v.rule->pinned) continue;
    if (!v.home.valid() && !storing_tier(p, v).valid()) continue;
    const int32_t id = static_cast<int32_t>(i);
    if (v.touches.empty()) {
      // Nobody touches it: it can be away all the time.
      if (v.persistent && n > 0) gaps.push_back({id, -1, n});
      continue;
    }
    if (v.persistent && !p.cyclic && v.touches.front() > 0) {
      gaps.push_back({id, -1, v.touches.front()});
    }
    for (size_t t = 1; t < v.touches.size(); ++t) {
      if (v.touches[t] - v.touches[t - 1] > 1) gaps.push_back({id, v.touches[t - 1], v.touches[t]});
    }
    if (!v.persistent) continue;
    const int32_t last = v.touches.back();
    // A part alone cannot cross the end of a cycle: what is there at entry is whole.
    const bool part = v.rule != nullptr && v.rule->remote && v.rule->remote_max_bytes > 0 &&
                      v.rule->remote_max_bytes < v.bytes;
    if (p.cyclic && !part && v.touches.front() + n - last > 1) {
      gaps.push_back({id, last, v.touches.front() + n});
    } else if (!p.cyclic && last + 1 < n) {
      gaps.push_back({id, last, n});
    }
  }
  mark_required(p, gaps);
  return gaps;
}

namespace {

class GapScheduler {
 public:
  explicit GapScheduler(const Problem& p) : p_(p) { s_.at_entry.assign(p.values.size(), false); }

  Schedule run(std::vector<MovedGap> moved) {
    for (size_t v = 0; v < p_.values.size(); ++v) {
      s_.at_entry[v] = p_.values[v].producer < 0;
    }
    std::stable_sort(moved.begin(), moved.end(), [](const MovedGap& a, const MovedGap& b) {
      return std::tie(a.gap.value, a.gap.after) < std::tie(b.gap.value, b.gap.after);
    });
    for (size_t i = 0; i < moved.size();) {
      size_t end = i;
      while (end < moved.size() && moved[end].gap.value == moved[i].gap.value) ++end;
      one_value(moved, i, end);
      i = end;
    }
    // Before one position: what leaves comes first.
    const auto rank = [](const Action& a) { return a.kind == ActionKind::kLoad ? 1 : 0; };
    std::stable_sort(s_.actions.begin(), s_.actions.end(), [&](const Action& a, const Action& b) {
      return std::pair(a.before, rank(a)) < std::pair(b.before, rank(b));
    });
    return std::move(s_);
  }

 private:
  void push(ActionKind kind, int32_t before, int32_t v, TierId tier) {
    Action a;
    a.kind = kind;
    a.before = before;
    a.value = v;
    a.tier = tier;
    if (kind != ActionKind::kDrop && remote_bytes(v) > 0) a.range = {0, remote_bytes(v)};
    if (kind == ActionKind::kDrop && remote_bytes(v) > 0) a.range = {0, remote_bytes(v)};
    s_.actions.push_back(a);
  }

  // A rule may allow a part alone to leave.
  Bytes remote_bytes(int32_t v) const {
    const Value& value = p_.values[static_cast<size_t>(v)];
    if (value.rule == nullptr || !value.rule->remote || value.rule->remote_max_bytes == 0) return 0;
    const Bytes unit = alignment_of(p_.graph->at(value.tensor));
    const Bytes part = round_down(value.rule->remote_max_bytes, unit);
    return part >= value.bytes ? 0 : part;
  }

  void one_value(const std::vector<MovedGap>& moved, size_t begin, size_t end) {
    const int32_t v = moved[begin].gap.value;
    const Value& value = p_.values[static_cast<size_t>(v)];
    const int32_t n = p_.size();
    const TierId tier = value.home.valid() ? value.home : storing_tier(p_, value);
    const bool away_at_entry = p_.cyclic && moved[end - 1].gap.before >= n;
    const bool never_there = value.home.valid() && !p_.cyclic && moved[begin].gap.after < 0;
    // The last position that a copy knows.
    int32_t stored = away_at_entry || value.home.valid() ? 0 : -1;
    if (away_at_entry || never_there) s_.at_entry[static_cast<size_t>(v)] = false;
    if (away_at_entry && value.touches.empty()) return;
    for (size_t i = begin; i < end; ++i) {
      const MovedGap& m = moved[i];
      const int32_t from = m.gap.after + 1;
      if (!(never_there && m.gap.after < 0)) {
        if (!value.home.valid() && (stored < 0 || written_since(value, stored, from))) {
          push(ActionKind::kStore, from, v, tier);
        }
        stored = from;
        push(ActionKind::kDrop, std::min(m.drop, n), v, tier);
      }
      if (m.gap.before < n) push(ActionKind::kLoad, m.load, v, tier);
      if (m.gap.before > n || (m.gap.before == n && p_.cyclic)) {
        push(ActionKind::kLoad, m.load - n, v, tier);
      }
    }
  }

  static bool written_since(const Value& value, int32_t from, int32_t to) {
    const auto at = std::lower_bound(value.writes.begin(), value.writes.end(), from);
    return at != value.writes.end() && *at < to;
  }

  const Problem& p_;
  Schedule s_;
};

}  // namespace

Schedule schedule_of(const Problem& problem, std::vector<MovedGap> moved) {
  return GapScheduler(problem).run(std::move(moved));
}

void judge_policy(const Problem& p, PolicySchedule& r) {
  r.peak_bytes = peak_of(schedule_profile(p, r.schedule));
  r.fits = r.peak_bytes <= p.budget;
  if (!r.fits && r.reason.empty()) {
    r.reason = text_of("peaks at %s", human_bytes(r.peak_bytes).c_str());
  }
}

}  // namespace headrace::plan
