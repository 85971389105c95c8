#include "headrace/plan/transfers.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <queue>
#include <tuple>

namespace headrace::plan {
namespace {

size_t at(int32_t i) { return static_cast<size_t>(i); }

constexpr int32_t kNone = -1;
// Lead of a load over its use, where there is room: whichever is more.
constexpr int32_t kLeadOps = 5;
constexpr double kLeadShare = 0.15;

// Indices of pieces by a position, ascending.
class ByPosition {
 public:
  template <typename Key>
  ByPosition(int32_t positions, const std::vector<Piece>& pieces, Key key)
      : begin_(at(positions) + 2, 0), index_(pieces.size()) {
    for (const Piece& p : pieces) ++begin_[at(key(p)) + 1];
    std::partial_sum(begin_.begin(), begin_.end(), begin_.begin());
    std::vector<int32_t> next(begin_.begin(), begin_.end() - 1);
    for (size_t i = 0; i < pieces.size(); ++i) {
      index_[at(next[at(key(pieces[i]))]++)] = static_cast<int32_t>(i);
    }
  }
  const int32_t* begin(int32_t k) const { return index_.data() + begin_[at(k)]; }
  const int32_t* end(int32_t k) const { return index_.data() + begin_[at(k) + 1]; }

 private:
  std::vector<int32_t> begin_;
  std::vector<int32_t> index_;
};

enum class Phase : uint8_t {
  kThere,      // on the device
  kPending,    // its gap is open and its store has not ended
  kAway,
  kBack,       // loaded, or on the way
  kCancelled,  // its store did not end in time: it stays
};

class Walk {
 public:
  Walk(const State& state, const std::vector<Piece>& pieces, const std::vector<Nanos>& not_before)
      : p_(state.problem()),
        s_(state),
        pieces_(pieces),
        not_before_(not_before),
        n_(p_.size()),
        profile_(state.planned()),
        released_(n_, pieces, [this](const Piece& x) { return std::min(x.release, n_); }),
        opened_(n_, pieces, [this](const Piece& x) { return std::min(opens(x), n_); }),
        closed_(n_, pieces, [this](const Piece& x) { return std::min(x.use, n_); }),
        phase_(pieces.size(), Phase::kThere),
        stored_(pieces.size(), kUnknown),
        loaded_(pieces.size(), 0),
        dependents_(pieces.size(), kNone),
        next_dependent_(pieces.size(), kNone) {
    int32_t streams = 0;
    for (const Piece& x : pieces) streams = std::max({streams, x.out, x.in});
    ready_.resize(at(streams) + 1);
    loads_.resize(at(streams) + 1);
    link_free_.assign(at(streams) + 1, 0);
    for (size_t i = 0; i < pieces.size(); ++i) {
      const int32_t by = pieces[i].stored_by;
      if (by < 0 || by == static_cast<int32_t>(i)) continue;
      next_dependent_[i] = dependents_[at(by)];
      dependents_[at(by)] = static_cast<int32_t>(i);
    }
    out_.listed.resize(pieces.size());
    out_.begin_ns.resize(at(n_), 0);
  }

  Timeline run() {
    for (size_t i = 0; i < pieces_.size(); ++i) {
      // Around the cycle: away when the cycle begins.
      if (pieces_[i].wraps) start_away(static_cast<int32_t>(i));
    }
    for (int32_t k = 0; k < n_; ++k) position(k);
    finish();
    out_.total_ns = now_;
    out_.loaded_ns = std::move(loaded_);
    out_.stored_ns = std::move(stored_);
    return std::move(out_);
  }

 private:
  static constexpr Nanos kUnknown = INT64_MAX;
  using Entry = std::tuple<int64_t, int64_t, int32_t>;  // smallest first; last: the piece
  using Heap = std::priority_queue<Entry, std::vector<Entry>, std::greater<Entry>>;

  const Piece& piece(int32_t i) const { return pieces_[at(i)]; }
  static int32_t opens(const Piece& x) {
    return x.after + (x.codec != Codec::kNone ? 2 : x.passes ? 0 : 1);
  }
  Nanos op_ns(int32_t k) const { return p_.cost[at(k)] + s_.extra_ns(k); }
  Bytes over(int32_t k) const { return profile_.at_position(k) + pending_ - p_.budget; }

  void start_away(int32_t i) {
    phase_[at(i)] = Phase::kAway;
    if (piece(i).in >= 0) push_load(i);
  }

  void push_load(int32_t i) {
    loads_[at(piece(i).in)].push({piece(i).use, -piece(i).priority, i});
  }

  void position(int32_t k) {
    open(k);
    drop_stored(k, now_);
    close(k);
    fill_stores(k, now_ + op_ns(k));
    memory_ = now_;
    Nanos start = load_due(k);
    if (s_.extra_ns(k) > 0) {  // what runs again needs no bytes of the op itself
      while (true) {
        const Bytes missing = over(k) + s_.passing_bytes(k) - s_.op_bytes(k);
        if (missing <= 0) break;
        wait_for_store(k, missing);
      }
    }
    start = std::max(start, memory_);
    while (over(k) > 0) wait_for_store(k, over(k));
    const Nanos memory = memory_;
    start = std::max(start, memory - s_.extra_ns(k));
    if (start > now_) {
      const Nanos stores = std::clamp<Nanos>(memory - now_, 0, start - now_);
      out_.stalls.push_back({k, start - now_ - stores, stores});
    }
    drop_stored(k, start);
    fill_loads(k, memory, start + op_ns(k));
    fill_stores(k, start + op_ns(k));
    now_ = start + op_ns(k);
    out_.begin_ns[at(k)] = now_ - p_.cost[at(k)];
  }

  void open(int32_t k) {
    for (int32_t i : deferred_) push_load(i);
    deferred_.clear();
    for (auto* i = released_.begin(k); i != released_.end(k); ++i) {
      const Piece& x = piece(*i);
      if (x.out >= 0) ready_[at(x.out)].push({x.need, x.after, *i});
    }
    for (auto* i = opened_.begin(k); i != opened_.end(k); ++i) open_piece(*i, k);
  }

  void open_piece(int32_t i, int32_t k) {
    const int32_t by = piece(i).stored_by;
    const Nanos end = by < 0 ? 0 : stored_[at(by)];
    if (end <= now_) {
      drop(i, k);
      return;
    }
    phase_[at(i)] = Phase::kPending;
    pending_ += piece(i).bytes;
    if (end != kUnknown) stores_.push({end, i, i});
    issued_ += end != kUnknown ? piece(i).bytes : 0;
  }

  void drop(int32_t i, int32_t k) {
    phase_[at(i)] = Phase::kAway;
    out_.listed[at(i)].drop = k;
    if (piece(i).in < 0 || piece(i).wraps) return;
    // What is given up only once ops have run again before k comes back after k.
    if (piece(i).passes && piece(i).after == k) {
      deferred_.push_back(i);
    } else {
      push_load(i);
    }
  }

  void drop_stored(int32_t k, Nanos time) {
    while (!stores_.empty() && std::get<0>(stores_.top()) <= time) pop_store(k);
  }

  Nanos pop_store(int32_t k) {
    const auto [end, unused, i] = stores_.top();
    stores_.pop();
    if (phase_[at(i)] != Phase::kPending) return 0;
    pending_ -= piece(i).bytes;
    issued_ -= piece(i).bytes;
    drop(i, k);
    return end;
  }

  // What is still pending when it is touched again stays: it was never dropped.
  void close(int32_t k) {
    for (auto* i = closed_.begin(k); i != closed_.end(k); ++i) {
      if (piece(*i).wraps || phase_[at(*i)] != Phase::kPending) continue;
      phase_[at(*i)] = Phase::kCancelled;
      pending_ -= piece(*i).bytes;
      const int32_t by = piece(*i).stored_by;
      if (by >= 0 && stored_[at(by)] != kUnknown) issued_ -= piece(*i).bytes;
    }
  }

  // Waits until the next pending store has ended; stores are issued until those on their way free
  // `bytes`.
  void wait_for_store(int32_t k, Bytes bytes) {
    while (issued_ < bytes) {
      size_t best = ready_.size();
      for (size_t s = 0; s < ready_.size(); ++s) {
        if (ready_[s].empty()) continue;
        if (best == ready_.size() || link_free_[s] < link_free_[best]) best = s;
      }
      HR_CHECK(best < ready_.size(), "bytes pending that no store can free");
      issue_store(k, best);
    }
    memory_ = std::max(memory_, pop_store(k));
  }

  void issue_store(int32_t k, size_t s) {
    const int32_t i = std::get<2>(ready_[s].top());
    ready_[s].pop();
    const bool encodes = piece(i).codec != Codec::kNone && piece(i).release == k;
    const Nanos made = now_ + (encodes ? s_.extra_ns(k) : 0);
    const Nanos end = std::max(link_free_[s], made) + piece(i).out_ns;
    link_free_[s] = end;
    stored_[at(i)] = end + piece(i).latency_ns;
    out_.listed[at(i)].store = k;
    out_.listed[at(i)].store_turn = turn_++;
    now_pending(i);
    for (int32_t d = dependents_[at(i)]; d != kNone; d = next_dependent_[at(d)]) now_pending(d);
  }

  void now_pending(int32_t i) {
    if (phase_[at(i)] != Phase::kPending) return;
    stores_.push({stored_[at(piece(i).stored_by)], i, i});
    issued_ += piece(i).bytes;
  }

  // Stores that nobody waits for any more are not made.
  bool wanted(int32_t i) const {
    if (phase_[at(i)] != Phase::kCancelled) return true;
    for (int32_t d = dependents_[at(i)]; d != kNone; d = next_dependent_[at(d)]) {
      if (phase_[at(d)] != Phase::kCancelled) return true;
    }
    return false;
  }

  void fill_stores(int32_t k, Nanos until) {
    for (size_t s = 0; s < ready_.size(); ++s) {
      while (!ready_[s].empty() && std::max(link_free_[s], now_) < until) {
        if (!wanted(std::get<2>(ready_[s].top()))) {
          ready_[s].pop();
          continue;
        }
        issue_store(k, s);
      }
    }
  }

  // Loads of what op k touches, each as soon as there is room for it without the bytes that only
  // the op itself needs. Returns when the last of them, or of those issued before, has ended.
  Nanos load_due(int32_t k) {
    Bytes left = 0;  // counted in the profile, and not issued yet
    for (auto* i = closed_.begin(k); i != closed_.end(k); ++i) {
      if (phase_[at(*i)] == Phase::kAway && piece(*i).in >= 0) left += piece(*i).bytes;
    }
    for (size_t s = 0; s < loads_.size() && left > 0; ++s) {
      while (!loads_[s].empty() && std::get<0>(loads_[s].top()) <= k) {
        left -= piece(std::get<2>(loads_[s].top())).bytes;
        while (true) {
          const Bytes missing = over(k) + s_.passing_bytes(k) - s_.op_bytes(k) - left;
          if (missing <= 0) break;
          wait_for_store(k, missing);
        }
        issue_load(k, s, memory_);
      }
    }
    Nanos end = 0;
    for (auto* i = closed_.begin(k); i != closed_.end(k); ++i) {
      if (phase_[at(*i)] == Phase::kBack) end = std::max(end, loaded_[at(*i)]);
    }
    return end;
  }

  Nanos issue_load(int32_t k, size_t s, Nanos memory) {
    const int32_t i = std::get<2>(loads_[s].top());
    loads_[s].pop();
    const Piece& x = piece(i);
    Nanos begin = std::max(link_free_[s], memory > now_ ? memory : now_);
    if (x.stored_by >= 0 && stored_[at(x.stored_by)] != kUnknown) {
      begin = std::max(begin, stored_[at(x.stored_by)]);
    }
    link_free_[s] = begin + x.in_ns;
    loaded_[at(i)] = link_free_[s] + x.latency_ns;
    phase_[at(i)] = Phase::kBack;
    out_.listed[at(i)].load = k;
    out_.listed[at(i)].load_turn = turn_++;
    profile_.add(k, x.use - 1, x.bytes);
    return loaded_[at(i)];
  }

  void fill_loads(int32_t k, Nanos memory, Nanos until) {
    for (size_t s = 0; s < loads_.size(); ++s) {
      while (!loads_[s].empty() && std::max(link_free_[s], now_) < until) {
        const int32_t i = std::get<2>(loads_[s].top());
        if (!not_before_.empty() && until < not_before_[at(i)]) break;
        const Piece& x = piece(i);
        const Bytes room = p_.budget - x.bytes;
        if (profile_.at_position(k) + pending_ > room) break;
        if (profile_.max(k, x.use - 1) > room) break;
        issue_load(k, s, memory);
      }
    }
  }

  // The end: in a cycle, what is to be away at the next begin is stored and dropped.
  void finish() {
    if (!p_.cyclic) return;
    open(n_);
    Nanos end = now_;
    fill_stores(n_, kUnknown);
    while (!stores_.empty()) end = std::max(end, pop_store(n_));
    now_ = end;
  }

  const Problem& p_;
  const State& s_;
  const std::vector<Piece>& pieces_;
  const std::vector<Nanos>& not_before_;  // by piece; empty: no limit
  int32_t n_;
  Profile profile_;  // planned bytes, with loads issued so far
  ByPosition released_, opened_, closed_;
  std::vector<Phase> phase_;
  std::vector<Nanos> stored_, loaded_;
  std::vector<int32_t> dependents_, next_dependent_;
  std::vector<Heap> ready_, loads_;  // by stream
  std::vector<int32_t> deferred_;    // loads to be queued at the next position
  Heap stores_;                      // issued stores of open gaps, by end
  std::vector<Nanos> link_free_;
  Nanos memory_ = 0;   // when the bytes that op k needs are there
  Bytes pending_ = 0;  // of open gaps, not dropped yet
  Bytes issued_ = 0;   // of these: the store is on its way
  Nanos now_ = 0;
  int32_t turn_ = 0;
  Timeline out_;
};

}  // namespace

Timeline schedule_transfers(const State& state, const std::vector<Piece>& pieces,
                            const std::vector<Nanos>& not_before) {
  HR_CHECK(state.fits(), "transfers are scheduled for what fits");
  return Walk(state, pieces, not_before).run();
}

std::vector<Nanos> late_starts(const State& state, const std::vector<Piece>& pieces,
                               const Timeline& timeline) {
  std::vector<int32_t> order;
  for (size_t i = 0; i < pieces.size(); ++i) {
    if (timeline.listed[i].load >= 0) order.push_back(static_cast<int32_t>(i));
  }
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    const Piece &x = pieces[at(a)], &y = pieces[at(b)];
    return std::pair(x.use, -x.priority) > std::pair(y.use, -y.priority);
  });
  std::vector<Nanos> next;  // by stream: when the load after this one must start
  std::vector<Nanos> starts(pieces.size(), 0);
  for (int32_t i : order) {
    const Piece& x = pieces[at(i)];
    if (next.size() <= at(x.in)) next.resize(at(x.in) + 1, INT64_MAX);
    const Nanos use = timeline.begin_ns[at(x.use)] - state.extra_ns(x.use) - x.latency_ns;
    const Nanos start = std::min(use, next[at(x.in)]) - x.in_ns;
    next[at(x.in)] = start;
    const Nanos ops = timeline.begin_ns[at(x.use)] -
                      timeline.begin_ns[at(std::max(0, x.use - kLeadOps))];
    const Nanos copy = static_cast<Nanos>(kLeadShare * static_cast<double>(x.in_ns));
    starts[at(i)] = std::min(start, start - std::max(ops, copy));
  }
  return starts;
}

}  // namespace headrace::plan
