#include "headrace/plan/placement.h"

#include <algorithm>
#include <functional>
#include <memory>
#include <numeric>
#include <tuple>
#include <queue>

#include "headrace/plan/improve.h"
#include "headrace/plan/placement_build.h"

namespace headrace::plan {
namespace {

size_t at(int32_t i) { return static_cast<size_t>(i); }

// Seconds asked for each second of transfer, beside the stalls it causes.
constexpr double kPrices[] = {0.5, 0.0, 0.15, 1.0, 2.0};

// Loads as late as possible may cost one part in this many of the step.
constexpr Nanos kLateShare = 2000;

// The turn of a drop of what only ops that run again needed.
constexpr int32_t kAfterReruns = -2;

OpId op_at(const Problem& p, int32_t position) {
  return position >= 0 && position < p.size() ? p.order[at(position)] : OpId();
}

// Actions of one state and its timeline.
class Writer {
 public:
  Writer(const State& state, const std::vector<Piece>& pieces, const Timeline& timeline)
      : s_(state), p_(state.problem()), pieces_(pieces), t_(timeline) {}

  Schedule run() {
    out_.at_entry.assign(at(s_.values()), false);
    for (int32_t v = 0; v < s_.values(); ++v) {
      const Value& value = p_.values[at(v)];
      const bool source = value.persistent || value.on_device_at_entry || value.home.valid();
      out_.at_entry[at(v)] = value.producer < 0 && source;
    }
    mark_stores();
    for (size_t i = 0; i < pieces_.size();) i = write_piece(i);
    for (int32_t v = 0; v < s_.values(); ++v) write_gaps(v);
    for (int32_t k = 0; k < p_.size(); ++k) write_reruns(k);
    std::vector<int32_t> order(out_.actions.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(),
                     [this](int32_t a, int32_t b) { return key(a) < key(b); });
    std::vector<Action> sorted;
    for (int32_t i : order) sorted.push_back(out_.actions[at(i)]);
    out_.actions = std::move(sorted);
    return std::move(out_);
  }

 private:
  // Stores come before drops, drops free bytes for loads, loads bring what ops that run again read.
  // Transfers of one kind stand in the order in which they were issued.
  std::tuple<int32_t, int, int32_t> key(int32_t i) const {
    constexpr int kRank[] = {0, 2, 1, 3, 0, 3};
    const Action& a = out_.actions[at(i)];
    if (turns_[at(i)] == kAfterReruns) return {a.before, 4, 0};
    return {a.before, kRank[static_cast<size_t>(a.kind)], turns_[at(i)]};
  }

  void mark_stores() {
    stores_.assign(pieces_.size(), false);
    for (size_t i = 0; i < pieces_.size(); ++i) {
      if (t_.listed[i].drop < 0 || pieces_[i].stored_by < 0) continue;
      stores_[at(pieces_[i].stored_by)] = true;
    }
  }

  // Neighbouring pieces listed together become one transfer. Returns the next piece.
  size_t write_piece(size_t i) {
    const Piece& x = pieces_[i];
    const Bytes all = p_.values[at(x.value)].bytes;
    Bytes begin = x.range.begin, bytes = x.bytes;
    size_t next = i + 1;
    while (next < pieces_.size() && same(i, next) &&
           pieces_[next].range.begin == begin + bytes) {
      bytes += pieces_[next].bytes;
      ++next;
    }
    const Range range = begin == 0 && bytes == all ? Range{} : Range{begin, bytes};
    const Listed& l = t_.listed[i];
    if (x.wraps) out_.at_entry[at(x.value)] = false;
    if (x.wraps && x.in < 0) return next;  // untouched: away all cycle long
    if (stores_[i] && l.store >= 0) {
      add(ActionKind::kStore, l.store, x.value, range, x.tier, l.store_turn);
    }
    if (l.drop >= 0) {
      add(ActionKind::kDrop, l.drop, x.value, range, TierId(),
          x.passes && l.drop == x.after ? kAfterReruns : 0);
    }
    if (l.load >= 0 && (l.drop >= 0 || x.wraps)) {
      add(ActionKind::kLoad, l.load, x.value, range, x.tier, l.load_turn);
    }
    return next;
  }

  bool same(size_t i, size_t j) const {
    const Piece &a = pieces_[i], &b = pieces_[j];
    const bool own_a = a.stored_by == static_cast<int32_t>(i);
    const bool own_b = b.stored_by == static_cast<int32_t>(j);
    return a.value == b.value && a.gap == b.gap && a.tier == b.tier &&
           t_.listed[i].store == t_.listed[j].store && t_.listed[i].drop == t_.listed[j].drop &&
           t_.listed[i].load == t_.listed[j].load && own_a == own_b && stores_[i] == stores_[j];
  }

  void write_gaps(int32_t v) {
    const ValueState& state = s_.value(v);
    for (int32_t i = 0; i < static_cast<int32_t>(state.gaps.size()); ++i) {
      const Gap& g = state.gaps[at(i)];
      const Span span = s_.span(v, i);
      if (g.way == Way::kKeep || !span.exists) continue;
      if (g.way == Way::kRecompute) {
        const bool passes = span.after >= 0 && s_.passing(v, span.after) > 0;
        add(ActionKind::kDrop, passes ? span.after : span.after + 1, v, Range{}, TierId(),
            passes ? kAfterReruns : 0);
      }
      Choice c;
      c.tensor = p_.values[at(v)].tensor;
      c.way = g.way;
      c.tier = g.tier;
      c.codec = g.codec;
      c.after = op_at(p_, span.after);
      c.before = op_at(p_, span.before);
      c.freed_bytes = p_.values[at(v)].bytes - s_.kept_bytes(v, g);
      if (g.way == Way::kMove && g.moved < p_.values[at(v)].bytes) c.range = {0, g.moved};
      c.recompute_ns = p_.values[at(v)].can_recompute
                           ? p_.cost[at(p_.values[at(v)].producer)]
                           : Choice::kNever;
      c.added_ns = g.way == Way::kRecompute ? c.recompute_ns : 0;
      out_.choices.push_back(c);
    }
  }

  void write_reruns(int32_t k) {
    std::vector<int32_t> list = s_.reruns(k);
    std::sort(list.begin(), list.end(), [this](int32_t a, int32_t b) {
      return std::pair(p_.values[at(a)].producer, a) < std::pair(p_.values[at(b)].producer, b);
    });
    for (int32_t v : list) add(ActionKind::kRecompute, k, v, Range{}, TierId());
  }

  void add(ActionKind kind, int32_t before, int32_t value, const Range& range, TierId tier,
           int32_t turn = 0) {
    Action a;
    a.kind = kind;
    a.before = before;
    a.value = value;
    a.range = range;
    a.tier = tier;
    out_.actions.push_back(a);
    turns_.push_back(turn);
  }

  const State& s_;
  const Problem& p_;
  const std::vector<Piece>& pieces_;
  const Timeline& t_;
  std::vector<bool> stores_;  // by piece: its store is made
  std::vector<int32_t> turns_;  // by action
  Schedule out_;
};

}  // namespace

Result<Placement> place(const Problem& problem, const PlaceOptions& options) {
  Placement result;
  HR_ASSIGN(const State start, ruled_state(problem, options));
  std::unique_ptr<State> best;
  Nanos best_ns = 0;
  for (double price : kPrices) {
    State state = start;
    const Unfit unfit = build(state, {.price = price});
    ++result.work;
    if (unfit.position >= 0) {
      if (result.worst_position < 0 || unfit.bytes < result.missing_bytes) {
        result.worst_position = unfit.position;
        result.missing_bytes = unfit.bytes;
      }
      continue;
    }
    const Nanos ns = schedule_transfers(state, pieces_of(state, 0)).total_ns;
    if (best == nullptr || ns < best_ns) {
      best = std::make_unique<State>(std::move(state));
      best_ns = ns;
    }
    if (start.fits()) break;
  }
  if (best == nullptr) return result;
  Improved improved{std::move(*best), 0, best_ns, 0};
  if (options.improve) improved = improve(std::move(improved.state), options.effort);
  result.work += improved.work;
  const std::vector<Piece> pieces = pieces_of(improved.state, improved.chunk);
  Timeline timeline = schedule_transfers(improved.state, pieces);
  Timeline late = schedule_transfers(improved.state, pieces,
                                     late_starts(improved.state, pieces, timeline));
  if (late.total_ns <= timeline.total_ns + timeline.total_ns / kLateShare) timeline = std::move(late);
  result.fits = true;
  result.predicted_ns = timeline.total_ns;
  result.schedule = Writer(improved.state, pieces, timeline).run();
  return result;
}

}  // namespace headrace::plan
