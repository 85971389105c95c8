#include "headrace/plan/address_schedule.h"

#include <algorithm>
#include <tuple>

#include "headrace/plan/address_parts.h"

namespace headrace::plan {
namespace {

size_t at(int32_t i) { return static_cast<size_t>(i); }

constexpr Nanos kNever = INT64_MAX;

class AddressWalk {
 public:
  AddressWalk(const State& state, const std::vector<Life>& lives, const Parts& parts,
              Schedule* schedule)
      : s_(state), p_(state.problem()), lives_(lives), parts_(parts.parts), schedule_(schedule),
        latency_(p_.machine->tiers[kAway.index()].latency_ns), stored_(parts_.size(), kNever),
        loaded_(parts_.size(), kNever), dropped_(parts_.size(), false), left_(at(parts.gaps), 0) {
    const std::vector<TierInfo>& tiers = p_.machine->tiers;
    out_ = at(link_stream(tiers, kAway, InstrKind::kStore).value);
    in_ = at(link_stream(tiers, kAway, InstrKind::kLoad).value);
    link_free_.assign(std::max(out_, in_) + 1, 0);
    order();
    find_blockers();
  }

  AddressTimeline run() {
    enter();
    for (int32_t slot = 1; slot <= 2 * p_.size(); ++slot) visit(slot);
    result_.total_ns = now_;
    return std::move(result_);
  }

 private:
  const Part& part(int32_t i) const { return parts_[at(i)]; }
  Nanos stored(int32_t i) const { return stored_[at(part(i).stored_by)]; }
  static int32_t position_of(int32_t slot) { return (slot - 1) / 2; }

  void order() {
    for (size_t i = 0; i < parts_.size(); ++i) {
      by_need_.push_back(static_cast<int32_t>(i));
      by_open_.push_back(static_cast<int32_t>(i));
      if (part(static_cast<int32_t>(i)).use != Part::kNoUse) {
        by_use_.push_back(static_cast<int32_t>(i));
      }
      ++left_[at(parts_[i].gap)];
    }
    next_of_copy_.assign(parts_.size(), -1);
    for (size_t i = 0; i < parts_.size(); ++i) {
      const int32_t by = parts_[i].stored_by;
      if (by == static_cast<int32_t>(i)) continue;
      next_of_copy_[i] = next_of_copy_[at(by)];
      next_of_copy_[at(by)] = static_cast<int32_t>(i);
    }
    const auto sort = [&](std::vector<int32_t>& list, auto key) {
      std::sort(list.begin(), list.end(), [&](int32_t a, int32_t b) {
        return std::tuple(key(part(a)), a) < std::tuple(key(part(b)), b);
      });
    };
    sort(by_need_, [](const Part& x) { return std::pair(x.need, x.open); });
    sort(by_open_, [](const Part& x) { return std::pair(x.open, x.need); });
    sort(by_use_, [](const Part& x) { return std::pair(x.use, x.avail); });
  }

  // What must have been given up before a part comes back: bytes that others hold there in gaps that
  // go on at its use.
  void find_blockers() {
    std::vector<size_t> first(lives_.size() + 1, 0);  // parts of a life stand together
    for (const Part& x : parts_) ++first[at(x.life) + 1];
    for (size_t i = 0; i < lives_.size(); ++i) first[i + 1] += first[i];
    std::vector<int32_t> sharing;  // lives with parts that share bytes with the life `to`
    int32_t to = -1;
    first_blocker_.push_back(0);
    for (const Part& x : parts_) {
      if (x.use != Part::kNoUse) {
        if (x.to != to) find_sharing(x.to, first, sharing);
        to = x.to;
        const Bytes base = lives_[at(x.to)].offset;
        for (const int32_t life : sharing) {
          const Bytes other = lives_[at(life)].offset;
          for (size_t j = first[at(life)]; j < first[at(life) + 1]; ++j) {
            const Part& y = parts_[j];
            if (other + y.begin >= base + x.end || base + x.begin >= other + y.end) continue;
            // What is touched in between comes back later anyhow (Part::avail).
            const bool over = y.open > x.use || (y.use <= x.use && !y.whole_gap);
            const bool blocks = y.gap == x.gap ? x.whole_gap : !over;
            if (blocks) blockers_.push_back(static_cast<int32_t>(j));
          }
        }
      }
      first_blocker_.push_back(blockers_.size());
    }
  }

  void find_sharing(int32_t to, const std::vector<size_t>& first,
                    std::vector<int32_t>& sharing) const {
    const Life& x = lives_[at(to)];
    sharing.clear();
    for (size_t i = 0; i < lives_.size(); ++i) {
      const Life& y = lives_[i];
      if (first[i] == first[i + 1] || y.offset >= x.offset + x.bytes) continue;
      if (x.offset < y.offset + y.bytes) sharing.push_back(static_cast<int32_t>(i));
    }
  }

  void enter() {
    if (schedule_ == nullptr) return;
    schedule_->at_entry.assign(p_.values.size(), false);
    for (const Life& x : lives_) {
      if (x.value >= 0 && x.touches.front() == 0) schedule_->at_entry[at(x.value)] = true;
    }
  }

  void visit(int32_t slot) {
    const int32_t k = position_of(slot);
    const bool again = slot == rerun_slot(k);
    if (again && s_.reruns(k).empty()) return;
    end_lives(slot);
    Nanos start = now_;
    for (; open_ < by_open_.size() && part(by_open_[open_]).open <= slot; ++open_) {
      const int32_t i = by_open_[open_];
      if (stored(i) != kNever) drop(i, slot);
    }
    for (; forced_ < by_need_.size() && part(by_need_[forced_]).need <= slot; ++forced_) {
      const int32_t i = by_need_[forced_];
      force_out(i, slot);
      start = std::max(start, stored(i));
    }
    for (; used_ < by_use_.size() && part(by_use_[used_]).use <= slot; ++used_) {
      const int32_t i = by_use_[used_];
      if (loaded_[at(i)] == kNever) force_back(i, slot);
      start = std::max(start, loaded_[at(i)]);
    }
    const Nanos took = again ? s_.extra_ns(k) : p_.cost[at(k)];
    if (start > now_) result_.stalls.push_back(slot);
    fill(slot, start + took);
    if (again) run_again(k);
    now_ = start + took;
  }

  void force_out(int32_t i, int32_t slot) {
    if (dropped_[at(i)]) return;
    const int32_t by = part(i).stored_by;
    if (stored_[at(by)] == kNever) store(by, slot);
    drop(i, slot);
  }

  void force_back(int32_t i, int32_t slot) {
    if (part(i).whole_gap) {
      for (int32_t j = 0; j < static_cast<int32_t>(parts_.size()); ++j) {
        if (part(j).gap == part(i).gap) force_out(j, slot);
      }
    }
    force_out(i, slot);
    for (size_t b = first_blocker_[at(i)]; b < first_blocker_[at(i) + 1]; ++b) {
      force_out(blockers_[b], slot);
    }
    load(i, slot);
  }

  void store(int32_t i, int32_t slot) {
    const Part& x = part(i);
    link_free_[out_] = std::max(link_free_[out_], now_) + x.out_ns;
    stored_[at(i)] = link_free_[out_] + latency_;
    result_.transfer_ns += x.out_ns;
    list(ActionKind::kStore, i, slot);
    // Of gaps that are open already and have this copy.
    for (int32_t j = i; j >= 0; j = next_of_copy_[at(j)]) {
      if (part(j).open <= slot) drop(j, slot);
    }
  }

  void drop(int32_t i, int32_t slot) {
    if (dropped_[at(i)]) return;
    dropped_[at(i)] = true;
    --left_[at(part(i).gap)];
    list(ActionKind::kDrop, i, slot);
  }

  // When the bytes that it comes back to are given up, and its copy is complete.
  Nanos ready(int32_t i) const {
    Nanos when = std::max(now_, stored(i));
    for (size_t b = first_blocker_[at(i)]; b < first_blocker_[at(i) + 1]; ++b) {
      when = std::max(when, stored(blockers_[b]));
    }
    return when;
  }

  void load(int32_t i, int32_t slot) {
    link_free_[in_] = std::max(link_free_[in_], ready(i)) + part(i).in_ns;
    loaded_[at(i)] = link_free_[in_] + latency_;
    result_.transfer_ns += part(i).in_ns;
    list(ActionKind::kLoad, i, slot);
  }

  bool may_load(int32_t i, int32_t slot, Nanos until) const {
    const Part& x = part(i);
    if (loaded_[at(i)] != kNever || !dropped_[at(i)] || x.avail > slot) return false;
    if (x.whole_gap && left_[at(x.gap)] > 0) return false;
    for (size_t b = first_blocker_[at(i)]; b < first_blocker_[at(i) + 1]; ++b) {
      if (!dropped_[at(blockers_[b])]) return false;
    }
    return ready(i) < until;
  }

  // Puts transfers into the queues as long as they begin before `until`.
  void fill(int32_t slot, Nanos until) {
    while (true) {
      int32_t out = -1, back = -1;
      if (std::max(link_free_[out_], now_) < until) {
        while (needs_ < by_need_.size() && is_stored(by_need_[needs_])) ++needs_;
        for (size_t n = needs_; n < by_need_.size() && out < 0; ++n) {
          const int32_t i = by_need_[n];
          if (!is_stored(i) && part(i).release <= slot) out = i;
        }
      }
      if (std::max(link_free_[in_], now_) < until) {
        while (uses_ < by_use_.size() && loaded_[at(by_use_[uses_])] != kNever) ++uses_;
        for (size_t u = uses_; u < by_use_.size() && back < 0; ++u) {
          if (may_load(by_use_[u], slot, until)) back = by_use_[u];
        }
      }
      if (out < 0 && back < 0) return;
      const bool shared = in_ == out_ && out >= 0 && back >= 0;
      if (out >= 0 && (!shared || part(out).need <= part(back).use)) {
        store(out, slot);
      } else {
        load(back, slot);
      }
    }
  }
  // Stored already, or by another part.
  bool is_stored(int32_t i) const { return part(i).stored_by != i || stored_[at(i)] != kNever; }

  // ---- the schedule

  void list(ActionKind kind, int32_t i, int32_t slot) {
    if (schedule_ == nullptr) return;
    const Part& x = part(i);
    const Life& life = lives_[at(x.life)];
    Action a;
    a.kind = kind;
    a.before = position_of(slot);
    a.value = life.value;
    const bool whole = x.begin == 0 && x.end == life.bytes;
    a.range = whole ? Range{} : Range{x.begin, x.end - x.begin};
    if (kind != ActionKind::kDrop) a.tier = kAway;
    schedule_->actions.push_back(a);
  }

  // Lives that end before their op runs again.
  void end_lives(int32_t slot) {
    if (schedule_ == nullptr) return;
    for (const Life& x : lives_) {
      if (x.end != LifeEnd::kRerun || x.touches.back() >= slot) continue;
      const bool before = x.touches.back() < ended_;
      if (before) continue;
      Action a;
      a.kind = ActionKind::kDrop;
      a.before = position_of(slot);
      a.value = x.value;
      schedule_->actions.push_back(a);
    }
    ended_ = slot;
  }

  void run_again(int32_t k) {
    if (schedule_ == nullptr) return;
    std::vector<int32_t> list = s_.reruns(k);
    std::sort(list.begin(), list.end(), [this](int32_t a, int32_t b) {
      return std::pair(p_.values[at(a)].producer, a) < std::pair(p_.values[at(b)].producer, b);
    });
    for (int32_t v : list) {
      Action a;
      a.kind = ActionKind::kRecompute;
      a.before = k;
      a.value = v;
      schedule_->actions.push_back(a);
    }
  }

  const State& s_;
  const Problem& p_;
  const std::vector<Life>& lives_;
  const std::vector<Part>& parts_;
  Schedule* schedule_;
  const Nanos latency_;
  std::vector<Nanos> stored_, loaded_;  // by part: when it has ended
  std::vector<bool> dropped_;
  std::vector<int32_t> left_;           // by gap: parts that are not dropped
  std::vector<int32_t> by_need_, by_open_, by_use_;
  std::vector<int32_t> next_of_copy_;   // by part: the next that has the copy that one part made
  std::vector<size_t> first_blocker_;   // by part, into blockers_
  std::vector<int32_t> blockers_;
  std::vector<Nanos> link_free_;        // by stream
  size_t out_ = 0, in_ = 0;             // streams
  size_t open_ = 0, needs_ = 0, uses_ = 0, forced_ = 0, used_ = 0;
  int32_t ended_ = 0;                   // lives with a last touch before this slot have been ended
  Nanos now_ = 0;
  AddressTimeline result_;
};

}  // namespace

AddressTimeline schedule_in_addresses(const State& state, const std::vector<Life>& lives,
                                      Bytes chunk, Schedule* schedule) {
  const Parts parts = parts_of(state, lives, chunk);
  return AddressWalk(state, lives, parts, schedule).run();
}

}  // namespace headrace::plan
