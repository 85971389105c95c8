#include "headrace/plan/address_schedule.h"

#include <algorithm>
#include <tuple>

namespace headrace::plan {
namespace {

size_t at(int32_t i) { return static_cast<size_t>(i); }

constexpr TierId kAway{1};  // the tier that parts are away in
constexpr Nanos kNever = INT64_MAX;

int32_t rerun_slot(int32_t position) { return 2 * position + 1; }
int32_t op_slot(int32_t position) { return 2 * position + 2; }

struct Part {
  int32_t life = 0, to = -1;  // to: the life that it comes back to; -1: never
  Bytes begin = 0, end = 0;   // of the value
  int32_t gap = 0;            // number of the gap, over all lives
  int32_t open = 0;           // the slot after the touch before the gap
  int32_t need = 0;           // the first slot that needs its bytes
  int32_t avail = 0;          // the first slot before which it may come back
  int32_t use = kNoUse;       // the touch after the gap
  int32_t release = 0;        // the first slot before which it may be stored
  int32_t stored_by = -1;     // the part that stores it
  bool whole_gap = false;     // no part of the gap comes back before all of it is away
  Nanos out_ns = 0, in_ns = 0;
  static constexpr int32_t kNoUse = INT32_MAX;
};

// A run of bytes of a value that has a copy, and the part that made it.
struct Copy {
  Bytes begin = 0, end = 0;
  int32_t part = 0;
};

// ---------------------------------------------------------------------------- parts

class PartBuilder {
 public:
  PartBuilder(const State& state, const std::vector<Life>& lives, Bytes chunk)
      : p_(state.problem()), lives_(lives), chunk_(chunk), link_(p_.machine->tiers[kAway.index()]) {}

  std::vector<Part> run() {
    for (size_t i = 0; i < lives_.size(); ++i) visit(static_cast<int32_t>(i));
    return std::move(out_);
  }
  int32_t gaps() const { return gap_; }

 private:
  // Others that are touched in the gap and share bytes [begin, end) of the arena with the life.
  struct Guest {
    Bytes begin = 0, end = 0;
    int32_t first = 0, last = 0;
  };

  void visit(int32_t index) {
    const Life& x = lives_[at(index)];
    if (x.value < 0) return;
    const Value& value = p_.values[at(x.value)];
    if (x.value != now_) {
      copies_.clear();
      now_ = x.value;
      written_ = -1;
    }
    const int32_t exit = 2 * p_.size() + 1;
    for (size_t g = 0; g < x.touches.size(); ++g) {
      const int32_t a = x.touches[g];
      const int32_t written = last_write(value, a);
      if (written != written_) copies_.clear();
      written_ = written;
      if (g + 1 < x.touches.size()) {
        if (x.open[g]) add_kept(index, x.gaps[g], a, x.touches[g + 1]);
      } else if (x.end == LifeEnd::kMoves) {
        add_moved(index, a, lives_[at(index + 1)].touches.front());
      } else if (x.end == LifeEnd::kStays && x.open[g]) {
        add_kept(index, x.gaps[g], a, exit);
      }
    }
  }

  static int32_t last_write(const Value& value, int32_t slot) {
    int32_t last = 0;
    for (int32_t k : value.writes) {
      if (op_slot(k) <= slot) last = op_slot(k);
    }
    return last;
  }

  void find_guests(int32_t index, Bytes offset, int32_t a, int32_t b, const SlotSet* gap) {
    guests_.clear();
    const Bytes bytes = lives_[at(index)].bytes;
    for (size_t m = 0; m < lives_.size(); ++m) {
      const Life& y = lives_[m];
      if (static_cast<int32_t>(m) == index || y.offset >= offset + bytes) continue;
      if (y.offset + y.bytes <= offset) continue;
      if (gap != nullptr && !gap->meets(y.touched)) continue;
      Guest guest{std::max(y.offset, offset) - offset,
                  std::min(y.offset + y.bytes, offset + bytes) - offset, b, a};
      for (int32_t t : y.touches) {
        if (t <= a || t >= b) continue;
        guest.first = std::min(guest.first, t);
        guest.last = std::max(guest.last, t);
      }
      if (guest.first < b) guests_.push_back(guest);
    }
  }

  void add_kept(int32_t index, const SlotSet& gap, int32_t a, int32_t b) {
    find_guests(index, lives_[at(index)].offset, a, b, &gap);
    if (guests_.empty()) return;
    cuts_.clear();
    for (const Guest& g : guests_) cuts_.insert(cuts_.end(), {g.begin, g.end});
    std::sort(cuts_.begin(), cuts_.end());
    cuts_.erase(std::unique(cuts_.begin(), cuts_.end()), cuts_.end());
    const bool exits = b > 2 * p_.size();
    Part run = start(index, exits ? -1 : index, a, exits ? Part::kNoUse : b);
    for (size_t i = 0; i + 1 < cuts_.size(); ++i) {
      int32_t need = b, last = a;
      for (const Guest& g : guests_) {
        if (g.begin > cuts_[i] || g.end < cuts_[i + 1]) continue;
        need = std::min(need, g.first);
        last = std::max(last, g.last);
      }
      const bool same = run.end == cuts_[i] && run.need == need && run.avail == last + 1;
      if (!same) {
        push(run);
        run.begin = cuts_[i];
        run.need = need;
        run.avail = last + 1;
        run.end = need < b ? cuts_[i + 1] : run.begin;
      } else if (need < b) {
        run.end = cuts_[i + 1];
      }
    }
    push(run);
    ++gap_;
  }

  // All of it: it leaves for the guests of the old extent, and comes back after those of the new one.
  void add_moved(int32_t index, int32_t a, int32_t b) {
    const Life& from = lives_[at(index)];
    const Life& to = lives_[at(index + 1)];
    find_guests(index, from.offset, a, b, nullptr);
    std::vector<Guest> leaving = guests_;
    find_guests(index + 1, to.offset, a, b, nullptr);
    cuts_ = {0, from.bytes};
    for (const Guest& g : leaving) cuts_.insert(cuts_.end(), {g.begin, g.end});
    for (const Guest& g : guests_) cuts_.insert(cuts_.end(), {g.begin, g.end});
    std::sort(cuts_.begin(), cuts_.end());
    cuts_.erase(std::unique(cuts_.begin(), cuts_.end()), cuts_.end());
    Part run = start(index, index + 1, a, b);
    run.whole_gap = true;
    for (size_t i = 0; i + 1 < cuts_.size(); ++i) {
      const auto covers = [&](const Guest& g) {
        return g.begin <= cuts_[i] && g.end >= cuts_[i + 1];
      };
      int32_t need = b, last = a;
      for (const Guest& g : leaving) need = covers(g) ? std::min(need, g.first) : need;
      for (const Guest& g : guests_) last = covers(g) ? std::max(last, g.last) : last;
      if (run.need != need || run.avail != last + 1 || run.end == run.begin) {
        push(run);
        run.begin = cuts_[i];
        run.need = need;
        run.avail = last + 1;
      }
      run.end = cuts_[i + 1];
    }
    push(run);
    ++gap_;
  }

  Part start(int32_t index, int32_t to, int32_t a, int32_t b) const {
    Part run;
    run.life = index;
    run.to = to;
    run.gap = gap_;
    run.open = a + 1;
    run.use = b;
    const Life& x = lives_[at(index)];
    run.release = std::max(written_, x.reborn ? x.touches.front() : 0) + 1;
    return run;
  }

  // Splits at copies and chunks.
  void push(const Part& run) {
    for (Bytes begin = run.begin; begin < run.end;) {
      Part part = run;
      part.begin = begin;
      part.end = chunk_ > 0 ? std::min(run.end, begin + chunk_) : run.end;
      const Copy* copy = nullptr;
      for (const Copy& c : copies_) {
        if (c.begin <= begin && begin < c.end) copy = &c;
        if (c.begin > begin) part.end = std::min(part.end, c.begin);
      }
      if (copy != nullptr) part.end = std::min(part.end, copy->end);
      const auto bytes = static_cast<double>(part.end - part.begin);
      if (copy != nullptr) {
        part.stored_by = copy->part;
      } else {
        part.stored_by = static_cast<int32_t>(out_.size());
        part.out_ns = static_cast<Nanos>(bytes / link_.store_bytes_per_s * 1e9);
        copies_.push_back({part.begin, part.end, part.stored_by});
      }
      if (part.use != Part::kNoUse) {
        part.in_ns = static_cast<Nanos>(bytes / link_.load_bytes_per_s * 1e9);
      }
      begin = part.end;
      out_.push_back(part);
    }
  }

  const Problem& p_;
  const std::vector<Life>& lives_;
  const Bytes chunk_;
  const TierInfo& link_;
  std::vector<Part> out_;
  std::vector<Copy> copies_;  // of the value and version at hand
  std::vector<Guest> guests_;
  std::vector<Bytes> cuts_;
  int32_t now_ = -1, written_ = -1;
  int32_t gap_ = 0;
};

// ---------------------------------------------------------------------------- walk

class AddressWalk {
 public:
  AddressWalk(const State& state, const std::vector<Life>& lives, const std::vector<Part>& parts,
              int32_t gaps, Schedule* schedule)
      : s_(state), p_(state.problem()), lives_(lives), parts_(parts), schedule_(schedule),
        latency_(p_.machine->tiers[kAway.index()].latency_ns), stored_(parts.size(), kNever),
        loaded_(parts.size(), kNever), dropped_(parts.size(), false), left_(at(gaps), 0) {
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

  void find_sharing(int32_t to, const std::vector<size_t>& first, std::vector<int32_t>& sharing) const {
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

bool can_plan_in_addresses(const Problem& p) {
  const std::vector<TierInfo>& tiers = p.machine->tiers;
  if (p.size() > kMostAddressPositions || p.cyclic || tiers.size() != 2 || p.fixed_bytes > 0 ||
      !p.request->workload->rules.empty() || tiers[1].store_bytes_per_s <= 0) {
    return false;
  }
  Bytes all = 0;
  for (const Value& v : p.values) {
    all += v.bytes;
    if (v.home.valid() || v.rule != nullptr) return false;
    if (p.graph->at(v.tensor).alignment != kLine) return false;
    const bool there = v.persistent || v.on_device_at_entry;
    if (v.producer < 0 && !there) return false;
  }
  return tiers[1].capacity <= 0 || tiers[1].capacity >= 2 * all;
}

namespace {

void add_gaps(Life& life, int32_t until) {
  for (int32_t t : life.touches) life.touched.add(t);
  for (size_t i = 0; i < life.touches.size(); ++i) {
    const bool last = i + 1 == life.touches.size();
    const int32_t lo = life.touches[i] + 1;
    const int32_t hi = (last ? until : life.touches[i + 1]) - 1;
    life.gaps.emplace_back();
    life.gaps.back().add(lo, hi);
    life.open.push_back(lo <= hi);
  }
}

// The lives of one value.
void add_lives(const State& state, int32_t v, std::vector<Life>& out) {
  const Problem& p = state.problem();
  const Value& value = p.values[at(v)];
  const ValueState& s = state.value(v);
  Life fresh;
  fresh.value = v;
  fresh.bytes = value.bytes;
  Life life = fresh;
  const auto end = [&](LifeEnd how, int32_t until) {
    life.end = how;
    add_gaps(life, until);
    out.push_back(std::move(life));
    life = fresh;
  };
  if (value.producer < 0) life.touches.push_back(0);
  for (size_t i = 0; i < s.touches.size(); ++i) {
    const Touch& t = s.touches[i];
    const std::vector<int32_t>& list = state.reruns(t.position);
    const bool reborn = std::find(list.begin(), list.end(), v) != list.end();
    const int32_t slot = reborn || t.demands > 0 ? rerun_slot(t.position) : op_slot(t.position);
    if (!life.touches.empty()) {
      const Gap& g = s.gaps[i];
      if (reborn) {
        end(LifeEnd::kRerun, life.touches.back() + 1);
      } else if (g.way == Way::kMove && g.moved == value.bytes && slot > life.touches.back() + 1) {
        end(LifeEnd::kMoves, slot);
      }
    }
    if (life.touches.empty()) life.reborn = reborn;
    life.touches.push_back(slot);
    if (t.own && slot != op_slot(t.position)) life.touches.push_back(op_slot(t.position));
  }
  if (life.touches.empty()) return;
  const int32_t exit = 2 * p.size() + 1;
  if (value.persistent) {
    end(LifeEnd::kStays, exit);
  } else {
    end(LifeEnd::kDead, life.touches.back() + 1);
  }
}

}  // namespace

std::vector<Life> lives_of(const State& state) {
  const Problem& p = state.problem();
  std::vector<Life> lives;
  for (int32_t v = 0; v < state.values(); ++v) add_lives(state, v, lives);
  const auto add_workspace = [&](int32_t position, int32_t slot) {
    if (p.workspace[at(position)] <= 0) return;
    Life life;
    life.position = position;
    life.bytes = round_up(p.workspace[at(position)], kLine);
    life.touches.push_back(slot);
    add_gaps(life, slot + 1);
    lives.push_back(std::move(life));
  };
  for (int32_t k = 0; k < p.size(); ++k) {
    for (int32_t v : state.reruns(k)) {
      const int32_t producer = p.values[at(v)].producer;
      if (p.graph->at(p.order[at(producer)]).outputs.size() > 1) return {};
      add_workspace(producer, rerun_slot(k));
    }
    add_workspace(k, op_slot(k));
  }
  return lives;
}

AddressTimeline schedule_in_addresses(const State& state, const std::vector<Life>& lives, Bytes chunk,
                                      Schedule* schedule) {
  PartBuilder builder(state, lives, chunk);
  const std::vector<Part> parts = builder.run();
  return AddressWalk(state, lives, parts, builder.gaps(), schedule).run();
}

std::vector<Extent> extents_of(const std::vector<Life>& lives) {
  std::vector<Extent> extents;
  for (const Life& x : lives) {
    Extent e;
    e.value = x.value;
    e.op_position = x.position;
    e.last_position = (x.touches.back() - 1) / 2;
    e.among_reruns = x.touches.back() % 2 == 1;
    if (x.touches.back() == 0) e.last_position = -1;
    e.offset = x.offset;
    extents.push_back(e);
  }
  return extents;
}

}  // namespace headrace::plan
