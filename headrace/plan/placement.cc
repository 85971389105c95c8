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

// Turns of drops that have a place of their own: of what only ops that run again needed, of a plain
// value once it is encoded, of an encoded form once it is decoded.
constexpr int32_t kAfterReruns = -2;
constexpr int32_t kEncoded = -3;
constexpr int32_t kDecoded = -4;

OpId op_at(const Problem& p, int32_t position) {
  return position >= 0 && position < p.size() ? p.order[at(position)] : OpId();
}

bool remote_in_part(const Value& v) {
  return v.rule != nullptr && v.rule->remote && v.rule->remote_max_bytes > 0 &&
         v.rule->remote_max_bytes < v.bytes;
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
  // Stores come before drops, drops free bytes for encoded forms and loads, loads bring what is
  // decoded, and all of it is there for ops that run again. A value is given up as soon as it is
  // encoded, a form once it is decoded. Transfers of one kind stand in the order in which they
  // were issued.
  std::tuple<int32_t, int, int32_t> key(int32_t i) const {
    enum Rank { kStores, kDrops, kEncodes, kEncodedStores, kLoads, kDecodes, kReruns, kPassed };
    constexpr int kRank[] = {kStores, kLoads, kDrops, kReruns, kEncodes, kDecodes};
    const Action& a = out_.actions[at(i)];
    const int32_t turn = turns_[at(i)];
    if (turn == kAfterReruns) return {a.before, kPassed, 0};
    if (turn == kEncoded) return {a.before, kEncodes, a.value};
    if (turn == kDecoded) return {a.before, kDecodes, a.value};
    // Stored as soon as it is made.
    const std::vector<Coding>& made = s_.codings(a.before);
    const bool fresh = a.kind == ActionKind::kStore && a.codec != Codec::kNone &&
                       std::binary_search(made.begin(), made.end(), Coding{a.value, a.codec, true});
    return {a.before, fresh ? kEncodedStores : kRank[static_cast<size_t>(a.kind)], turn};
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
    const Bytes all = x.codec == Codec::kNone ? p_.values[at(x.value)].bytes : x.bytes;
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
      add(ActionKind::kStore, l.store, x.value, range, x.tier, l.store_turn, x.codec);
    }
    if (l.drop >= 0) {
      add(ActionKind::kDrop, l.drop, x.value, range, TierId(),
          x.passes && l.drop == x.after ? kAfterReruns : 0, x.codec);
    }
    if (l.load >= 0 && (l.drop >= 0 || x.wraps)) {
      add(ActionKind::kLoad, l.load, x.value, range, x.tier, l.load_turn, x.codec);
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
      if (g.codec != Codec::kNone) write_codec(v, g.codec, span);
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
      for (const Gap& other : s_.codec_ways(v, i)) {
        const Nanos ns = 2 * codec_cost(p_, v, other.codec);
        const bool better = c.compress_ns == Choice::kNever || ns < c.compress_ns;
        if (other.way == Way::kCompress && better) c.compress_ns = ns;
      }
      c.added_ns = g.way == Way::kRecompute ? c.recompute_ns : 0;
      if (g.codec != Codec::kNone) c.added_ns = 2 * codec_cost(p_, v, g.codec);
      out_.choices.push_back(c);
    }
  }

  // Transfers of the form are those of its piece.
  void write_codec(int32_t v, Codec codec, const Span& span) {
    add(ActionKind::kEncode, span.lo, v, Range{}, TierId(), v, codec);
    add(ActionKind::kDrop, span.lo, v, Range{}, TierId(), kEncoded);
    add(ActionKind::kDecode, span.before, v, Range{}, TierId(), v, codec);
    add(ActionKind::kDrop, span.before, v, Range{}, TierId(), kDecoded, codec);
  }

  void write_reruns(int32_t k) {
    std::vector<int32_t> list = s_.reruns(k);
    std::sort(list.begin(), list.end(), [this](int32_t a, int32_t b) {
      return std::pair(p_.values[at(a)].producer, a) < std::pair(p_.values[at(b)].producer, b);
    });
    for (int32_t v : list) add(ActionKind::kRecompute, k, v, Range{}, TierId());
  }

  void add(ActionKind kind, int32_t before, int32_t value, const Range& range, TierId tier,
           int32_t turn = 0, Codec codec = Codec::kNone) {
    Action a;
    a.kind = kind;
    a.before = before;
    a.value = value;
    a.range = range;
    a.tier = tier;
    a.codec = codec;
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
  // What a rule sends away in part cannot move whole.
  if (!options.parts && std::any_of(problem.values.begin(), problem.values.end(), remote_in_part)) {
    return result;
  }
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
  const Nanos most = timeline.total_ns + timeline.total_ns / kLateShare;
  if (late.total_ns <= most) timeline = std::move(late);
  result.fits = true;
  result.predicted_ns = timeline.total_ns;
  result.schedule = Writer(improved.state, pieces, timeline).run();
  return result;
}

}  // namespace headrace::plan
