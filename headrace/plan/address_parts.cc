#include "headrace/plan/address_parts.h"

#include <algorithm>

namespace headrace::plan {
namespace {

size_t at(int32_t i) { return static_cast<size_t>(i); }

// A run of bytes of a value that has a copy, and the part that made it.
struct Copy {
  Bytes begin = 0, end = 0;
  int32_t part = 0;
};

class PartBuilder {
 public:
  PartBuilder(const State& state, const std::vector<Life>& lives, Bytes chunk)
      : p_(state.problem()), lives_(lives), chunk_(chunk),
        link_(p_.machine->tiers[kAway.index()]) {}

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

  // All of it: it leaves for the guests of the old extent, and comes back after those of the new.
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

}  // namespace

Parts parts_of(const State& state, const std::vector<Life>& lives, Bytes chunk) {
  PartBuilder builder(state, lives, chunk);
  Parts result;
  result.parts = builder.run();
  result.gaps = builder.gaps();
  return result;
}

}  // namespace headrace::plan
