#include "headrace/plan/placement_build.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <queue>

#include "headrace/base/split_mix.h"

namespace headrace::plan {
namespace {

size_t at(int32_t i) { return static_cast<size_t>(i); }

// Parts of values that move are multiples of this.
constexpr Bytes kGrain = 64 * kKiB;
// Of two ways that cost the same, the one whose gap covers more of what is over budget: this many
// seconds per byte of the slowest link, at most.
constexpr double kCoverWeight = 1e-3;
// Chains of ops that may be tried in one construction, for each value and position; a chain is at
// most 64 ops. After that ways without running again are all there is.
constexpr int64_t kTrials = 40;
constexpr double kNever = std::numeric_limits<double>::infinity();  // a ratio

struct Option {
  double ratio = 0;  // seconds (ns) per useful byte; smaller is better
  Gap gap;           // way kRecompute: by running again; kKeep: nothing possible
  Nanos out_ns = 0, in_ns = 0;
  // Ops in which the transfers cost nothing.
  int32_t out_lo = 0, out_hi = -1, in_lo = 0, in_hi = -1;
};

class Construction {
 public:
  Construction(State& state, const BuildOptions& options)
      : s_(state), p_(state.problem()), options_(options), price_(options.price),
        tiers_(p_.machine->tiers), no_reruns_(at(p_.size()), false),
        exact_(at(state.values())), exact_when_(at(state.values()), 0) {
    std::vector<Nanos> free = p_.cost;
    int32_t streams = 0;
    for (size_t t = 1; t < tiers_.size(); ++t) {
      const TierId tier(static_cast<int64_t>(t));
      streams = std::max({streams, link_stream(tiers_, tier, InstrKind::kStore).value,
                          link_stream(tiers_, tier, InstrKind::kLoad).value});
      byte_ns_ = std::max(byte_ns_, 1e9 / tiers_[t].load_bytes_per_s +
                                        (tiers_[t].store_bytes_per_s > 0
                                             ? 1e9 / tiers_[t].store_bytes_per_s
                                             : 0));
    }
    links_.assign(at(streams) + 1, Calendar(free));
    over_before_.assign(at(p_.size()) + 1, 0);
    for (int32_t k = 0; k < p_.size(); ++k) {
      over_before_[at(k) + 1] = over_before_[at(k)] + (s_.over(k) > 0 ? 1 : 0);
    }
    for (int32_t v = 0; v < s_.values(); ++v) {
      for (int32_t i = 0; i < static_cast<int32_t>(s_.value(v).gaps.size()); ++i) book(v, i);
    }
  }

  Unfit run() {
    int64_t left = 50 * (int64_t{s_.values()} + p_.size());
    while (!s_.fits()) {
      const int32_t worst = s_.planned().argmax();
      const Bytes over = s_.over(worst);
      left -= free_at(worst) + 1;
      if (left < 0) return {worst, over};
      if (s_.over(worst) <= 0) continue;
      // What runs again before it may be what is too much there.
      if (no_reruns_[at(worst)] || s_.reruns(worst).empty()) return {worst, s_.over(worst)};
      no_reruns_[at(worst)] = true;
      while (!s_.reruns(worst).empty()) {
        const int32_t v = s_.reruns(worst).front();
        s_.set(v, s_.gap_at(v, worst - 1), Gap{});
      }
    }
    return {};
  }

 private:
  using Entry = std::pair<double, int32_t>;  // ratio, or less than it; value

  // Commits ways until position `w` fits, or nothing is left to commit. Returns the commits. Chains
  // are tried only for what could be the best: the rest waits with the least that its ratio can be.
  int64_t free_at(int32_t w) {
    std::priority_queue<Entry, std::vector<Entry>, std::greater<Entry>> heap;
    const auto push = [&](int32_t v) {
      const Option o = best_option(v, w, false);
      if (o.gap.way != Way::kKeep) heap.push({o.ratio, v});
    };
    ++version_;
    for (int32_t v = 0; v < s_.values(); ++v) push(v);
    int64_t commits = 0;
    while (!heap.empty() && s_.over(w) > 0) {
      const auto [ratio, v] = heap.top();
      heap.pop();
      const double next = heap.empty() ? kNever : heap.top().first * (1 + 1e-9) + 1e-12;
      Option& o = exact_[at(v)];
      if (exact_when_[at(v)] != version_) {
        const Option least = best_option(v, w, false);
        if (least.gap.way == Way::kKeep) continue;
        if (least.ratio > next) {
          heap.push({least.ratio, v});
          continue;
        }
        o = best_option(v, w, true);
        exact_when_[at(v)] = version_;
      }
      if (o.gap.way == Way::kKeep) continue;
      if (o.ratio > next) {
        heap.push({o.ratio, v});
        continue;
      }
      commit(v, w, o);
      ++version_;
      ++commits;
      push(v);
    }
    return commits;
  }

  // The best way for what `v` holds at position `w`. Not `exact`: an op that runs again is taken to
  // need nothing else to, and only the ratio and whether there is a way are of use.
  Option best_option(int32_t v, int32_t w, bool exact) {
    Option best;
    if (!s_.movable(v)) return best;
    const int32_t gap = s_.gap_at(v, w);
    if (gap < 0) return best;
    const Gap& now = s_.value(v).gaps[at(gap)];
    const bool coded = now.way == Way::kCompress;
    if (now.way != Way::kKeep && now.way != Way::kMove && !coded) return best;
    const Bytes kept = s_.kept_bytes(v, now);
    if (kept <= 0) return best;
    const Bytes over = s_.over(w);
    if (over <= 0) return best;
    const bool banned =
        v == options_.banned_value && s_.span(v, gap).before == options_.banned_before;
    for (size_t t = 1; t < tiers_.size() && !coded; ++t) {
      const TierId tier(static_cast<int64_t>(t));
      if (now.way == Way::kMove && now.tier != tier) continue;
      if (banned && options_.banned_way == Way::kMove) continue;
      const Option o = move_option(v, gap, tier, kept, over);
      if (o.gap.way != Way::kKeep && (best.gap.way == Way::kKeep || o.ratio < best.ratio)) best = o;
    }
    for (const Gap& to : codec_swaps(v, gap)) {
      if (banned && options_.banned_way == to.way) continue;
      const Option o = swap_option(v, gap, w, to, exact);
      if (o.gap.way != Way::kKeep && (best.gap.way == Way::kKeep || o.ratio < best.ratio)) best = o;
    }
    const double least = banned && options_.banned_way == Way::kRecompute
                             ? kNever
                             : least_rerun(v, gap, std::min(kept, over));
    if (least < (best.gap.way == Way::kKeep ? kNever : best.ratio)) {
      Option o;
      if (exact) {
        o = rerun_option(v, gap, w, over);
      } else {
        o.ratio = least;
        o.gap.way = Way::kRecompute;
      }
      if (o.gap.way != Way::kKeep && (best.gap.way == Way::kKeep || o.ratio < best.ratio)) best = o;
    }
    if (best.gap.way != Way::kKeep) best.ratio += kCoverWeight * byte_ns_ * uncovered(v, gap);
    if (options_.noise > 0) best.ratio *= 1 + options_.noise * random(v);
    return best;
  }

  // The least ratio of running the op of `v` again for `useful` bytes: its own seconds, or none
  // where it may run again for another of its outputs already. kNever: not possible.
  double least_rerun(int32_t v, int32_t gap, Bytes useful) const {
    const Value& value = p_.values[at(v)];
    if (trials_ <= 0 || !s_.may_rerun(v, gap)) return kNever;
    if (no_reruns_[at(s_.span(v, gap).before)]) return kNever;
    if (p_.births[at(value.producer)].size() > 1) return 0;
    return static_cast<double>(p_.cost[at(value.producer)]) / static_cast<double>(useful);
  }

  // In [0, 1), the same for a value throughout.
  double random(int32_t v) const {
    return unit_of(mixed(options_.seed + kSplitMixStep * (static_cast<uint64_t>(v) + 1)));
  }

  // Takes the link time of a gap that is moved already.
  void book(int32_t v, int32_t gap) {
    const Gap& g = s_.value(v).gaps[at(gap)];
    if (!s_.span(v, gap).exists) return;
    if (g.way == Way::kMove) take(g.tier, window(v, gap, g.tier, g.moved));
    if (g.way == Way::kMoveCompressed) {
      take(g.tier, encoded_window(v, gap, g.tier, s_.encoded_form(v, g.codec)));
    }
  }

  // The share of the positions over budget at the begin that the gap does not cover.
  double uncovered(int32_t v, int32_t gap) const {
    const Span s = s_.span(v, gap);
    const auto count = [&](int32_t lo, int32_t hi) {
      return lo > hi ? 0 : over_before_[at(hi) + 1] - over_before_[at(lo)];
    };
    const double covered = count(s.lo, s.hi) + count(s.lo2, s.hi2);
    return 1 - covered / std::max(1, over_before_.back());
  }

  // Whether a copy of the first `bytes` is in `tier` without a store for this gap.
  bool copied(int32_t v, int32_t gap, TierId tier, Bytes bytes) const {
    const Value& value = p_.values[at(v)];
    const Span span = s_.span(v, gap);
    const auto last_write = [&](int32_t position) {
      const auto next = std::upper_bound(value.writes.begin(), value.writes.end(), position);
      return next == value.writes.begin() ? -1 : *(next - 1);
    };
    const int32_t written = last_write(span.after);
    if (value.home == tier && written < 0) return true;
    const ValueState& state = s_.value(v);
    if (p_.cyclic && value.persistent && value.writes.empty() &&
        (span.wraps || !span.loads_back || state.gaps.back().tier == tier)) {
      return true;
    }
    for (int32_t i = 0; i < static_cast<int32_t>(state.gaps.size()); ++i) {
      const Gap& g = state.gaps[at(i)];
      if (i == gap || g.way != Way::kMove || g.tier != tier || g.moved < bytes) continue;
      if (last_write(s_.span(v, i).after) == written) return true;
    }
    return false;
  }

  // When `bytes` of a gap can be stored and loaded at no cost, and how long that takes.
  Option window(int32_t v, int32_t gap, TierId tier, Bytes bytes) const {
    Option o;
    const TierInfo& link = tiers_[tier.index()];
    const bool has_copy = copied(v, gap, tier, s_.value(v).gaps[at(gap)].moved + bytes);
    const Span s = s_.span(v, gap);
    const Bytes budget = p_.budget;
    int32_t first = s_.planned().first_above(s.lo, s.hi, budget);
    if (first < 0) first = s.wraps ? p_.size() : s.hi + 1;
    int32_t last = s.wraps ? s_.planned().last_above(s.lo2, s.hi2, budget)
                           : s_.planned().last_above(s.lo, s.hi, budget);
    if (last < 0) last = s.wraps ? -1 : s.lo - 1;
    const auto& writes = p_.values[at(v)].writes;
    const auto next = std::upper_bound(writes.begin(), writes.end(), s.after);
    o.out_lo = next == writes.begin() ? 0 : *(next - 1) + 1;
    o.out_hi = first - 1;
    o.in_lo = last + 1;
    o.in_hi = s.before - 1;
    const auto size = static_cast<double>(bytes);
    if (!has_copy) o.out_ns = static_cast<Nanos>(size / link.store_bytes_per_s * 1e9);
    if (s.loads_back) o.in_ns = static_cast<Nanos>(size / link.load_bytes_per_s * 1e9);
    return o;
  }

  Option move_option(int32_t v, int32_t gap, TierId tier, Bytes kept, Bytes over) const {
    Option o;
    const TierInfo& link = tiers_[tier.index()];
    const bool whole = s_.moves_whole(s_.span(v, gap));
    const Bytes part = whole ? kept : std::min(kept, round_up(over, kGrain));
    const Bytes had = s_.value(v).gaps[at(gap)].moved;
    if (!s_.allowed_tier(v, tier) || !s_.tier_has_room(v, gap, tier, part)) return o;
    const bool has_copy = copied(v, gap, tier, had + part);
    if (!has_copy && link.store_bytes_per_s <= 0) return o;
    o = window(v, gap, tier, part);
    const double bytes = static_cast<double>(part);
    const Nanos late = late_ns(tier, o);
    o.ratio = (static_cast<double>(late) + price_ * static_cast<double>(o.out_ns + o.in_ns)) /
              std::min(bytes, static_cast<double>(over));
    o.gap = {Way::kMove, Codec::kNone, tier, had + part};
    return o;
  }

  // The same for an encoded form: no other gap's copy stands for it.
  Option encoded_window(int32_t v, int32_t gap, TierId tier, Bytes bytes) const {
    Option o = window(v, gap, tier, bytes);
    o.out_lo = s_.span(v, gap).lo;
    o.out_ns = static_cast<Nanos>(static_cast<double>(bytes) /
                                  tiers_[tier.index()].store_bytes_per_s * 1e9);
    return o;
  }

  // Ways with a codec that what the gap has now may be replaced by: those of a kept value; for one
  // that stays encoded, the form moves too, or all of the value does.
  std::vector<Gap> codec_swaps(int32_t v, int32_t gap) const {
    const Gap& now = s_.value(v).gaps[at(gap)];
    if (now.way == Way::kMove) return {};
    std::vector<Gap> ways = s_.codec_ways(v, gap);
    if (now.way == Way::kKeep) return ways;
    std::erase_if(ways, [&](const Gap& g) {
      return g.way != Way::kMoveCompressed || g.codec != now.codec;
    });
    for (size_t t = 1; t < tiers_.size(); ++t) {
      const TierId tier(static_cast<int64_t>(t));
      if (tiers_[t].store_bytes_per_s <= 0 || !s_.allowed_tier(v, tier)) continue;
      ways.push_back({Way::kMove, Codec::kNone, tier, p_.values[at(v)].bytes});
    }
    return ways;
  }

  Nanos coding_ns(int32_t v, const Gap& g) const {
    return g.codec == Codec::kNone ? 0 : 2 * codec_cost(p_, v, g.codec);
  }

  // The way of a gap is replaced by one with a codec, or the other way round. Not `exact`: whether
  // the bytes at the encoding and the decoding are there is not looked at.
  Option swap_option(int32_t v, int32_t gap, int32_t w, const Gap& to, bool exact) {
    Option o;
    const Gap now = s_.value(v).gaps[at(gap)];
    const Bytes over = s_.over(w);
    const bool held = to.way == Way::kMoveCompressed && w == s_.span(v, gap).lo;
    const Bytes freed = s_.kept_bytes(v, now) -
                        (held ? s_.encoded_form(v, to.codec) : s_.kept_bytes(v, to));
    if (freed <= 0) return o;
    Nanos late = 0, moving = 0;
    if (to.tier.valid()) {
      const Bytes bytes = to.codec == Codec::kNone ? to.moved : s_.encoded_form(v, to.codec);
      if (!s_.tier_has_room(v, gap, to.tier, bytes)) return o;
      o = to.codec == Codec::kNone ? window(v, gap, to.tier, bytes)
                                   : encoded_window(v, gap, to.tier, bytes);
      late = late_ns(to.tier, o);
      moving = o.out_ns + o.in_ns;
    }
    if (exact) {
      const Bytes before_max = s_.planned().max();
      s_.begin();
      s_.set(v, gap, to);
      const bool good = s_.over(w) < over && s_.planned().max() <= before_max;
      s_.rollback();
      if (!good) return Option();
    }
    const double ns = static_cast<double>(late + coding_ns(v, to) - coding_ns(v, now)) +
                      price_ * static_cast<double>(moving);
    o.ratio = std::max(0.0, ns) / static_cast<double>(std::min(freed, over));
    o.gap = to;
    return o;
  }

  // By how much the transfers are longer than the link's free time where they cost nothing.
  Nanos late_ns(TierId tier, const Option& o) const {
    const int32_t out = link_stream(tiers_, tier, InstrKind::kStore).value;
    const int32_t in = link_stream(tiers_, tier, InstrKind::kLoad).value;
    return std::max<Nanos>(0, o.out_ns - links_[at(out)].free_between(o.out_lo, o.out_hi)) +
           std::max<Nanos>(0, o.in_ns - links_[at(in)].free_between(o.in_lo, o.in_hi));
  }

  Option rerun_option(int32_t v, int32_t gap, int32_t w, Bytes over) {
    Option o;
    --trials_;
    const Nanos before_ns = s_.extra_ns();
    const Bytes before_max = s_.planned().max();
    s_.begin();
    const bool done = s_.try_rerun(v, gap, byte_ns_);
    const Bytes freed = over - s_.over(w);
    const Nanos added = s_.extra_ns() - before_ns;
    const bool good = done && freed > 0 && s_.planned().max() <= before_max;
    s_.rollback();
    if (!good) return o;
    o.ratio = static_cast<double>(added) / static_cast<double>(std::min(freed, over));
    o.gap.way = Way::kRecompute;
    return o;
  }

  void commit(int32_t v, int32_t w, const Option& o) {
    const int32_t gap = s_.gap_at(v, w);
    if (o.gap.way == Way::kRecompute) {
      HR_CHECK(s_.try_rerun(v, gap, byte_ns_), "it could be tried");
      return;
    }
    s_.set(v, gap, o.gap);
    if (o.gap.tier.valid()) take(o.gap.tier, o);
  }

  void take(TierId tier, const Option& o) {
    const int32_t out = link_stream(tiers_, tier, InstrKind::kStore).value;
    const int32_t in = link_stream(tiers_, tier, InstrKind::kLoad).value;
    if (o.out_ns > 0) links_[at(out)].take_early(o.out_lo, o.out_hi, o.out_ns);
    if (o.in_ns > 0) links_[at(in)].take_late(o.in_lo, o.in_hi, o.in_ns);
  }

  State& s_;
  const Problem& p_;
  const BuildOptions& options_;
  double price_;
  int64_t trials_ = kTrials * (int64_t{s_.values()} + p_.size());
  const std::vector<TierInfo>& tiers_;
  double byte_ns_ = 0;                // to the slowest tier and back
  std::vector<Calendar> links_;       // by stream
  std::vector<bool> no_reruns_;       // by position: what ran again before it was too much there
  std::vector<int32_t> over_before_;  // positions over budget at the begin, before position k
  int64_t version_ = 0;               // of the state and the position that is to fit
  std::vector<Option> exact_;         // by value: its best way, with the chain that it needs
  std::vector<int64_t> exact_when_;   // by value: the version that it is of
};

}  // namespace

Result<State> ruled_state(const Problem& problem, const PlaceOptions& options) {
  State state(problem, options);
  const std::vector<TierInfo>& tiers = problem.machine->tiers;
  for (int32_t v = 0; v < state.values(); ++v) {
    const Value& value = problem.values[at(v)];
    if (value.rule == nullptr || !value.rule->remote) continue;
    int32_t longest = -1, length = 0;
    for (int32_t i = 0; i < static_cast<int32_t>(state.value(v).gaps.size()); ++i) {
      const Span s = state.span(v, i);
      const Bytes most = value.rule->remote_max_bytes;
      const bool part = most > 0 && most < value.bytes;
      if (part && state.moves_whole(s)) continue;
      const int32_t positions = s.exists ? s.hi - s.lo + 1 + s.hi2 - s.lo2 + 1 : 0;
      if (positions > length) longest = i, length = positions;
    }
    const Bytes asked = value.rule->remote_max_bytes;
    const Bytes unit = alignment_of(problem.graph->at(value.tensor));
    const Bytes bytes = asked > 0 ? std::min(value.bytes, round_down(asked, unit)) : value.bytes;
    bool done = false;
    for (size_t t = 1; t < tiers.size() && longest >= 0 && !done; ++t) {
      const TierId tier(static_cast<int64_t>(t));
      const bool takes = tiers[t].store_bytes_per_s > 0 || value.home == tier;
      if (!takes || !state.allowed_tier(v, tier)) continue;
      if (!state.tier_has_room(v, longest, tier, bytes)) continue;
      state.set(v, longest, {Way::kMove, Codec::kNone, tier, bytes});
      done = true;
    }
    if (!done) {
      return error(Code::kUsage, "'%s' must be remote in its longest idle gap, but %s",
                   problem.graph->at(value.tensor).name.c_str(),
                   longest < 0 ? "it has none" : "no allowed tier has room for it");
    }
  }
  return state;
}

Unfit build(State& state, const BuildOptions& options) {
  return Construction(state, options).run();
}

}  // namespace headrace::plan
