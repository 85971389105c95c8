#include "headrace/plan/improve.h"

#include <algorithm>
#include <iterator>
#include <tuple>

#include "headrace/base/split_mix.h"
#include "headrace/plan/placement_build.h"

namespace headrace::plan {
namespace {

size_t at(int32_t i) { return static_cast<size_t>(i); }

// Schedules tried: this many positions and pieces walked over in all, within bounds.
constexpr int64_t kWalked = 60'000;
constexpr int64_t kLeastTries = 10;
constexpr int64_t kMostTries = 3'000;
// Tolerance for worse states at the begin, as a share of the step: small steps have time to come
// back.
constexpr double kTolerance = 0.01;
constexpr double kSmallTolerance = 0.1;
constexpr int32_t kSmall = 200;  // positions
constexpr Bytes kGrain = 64 * kKiB;
constexpr double kPrices[] = {0.0, 0.05, 0.15, 0.3, 0.5, 1.0, 2.0};

class Search {
 public:
  Search(State state, double effort) : s_(std::move(state)), p_(s_.problem()) {
    chunk_ = best_chunk();
    now_ = evaluate();
    best_ = s_;
    best_ns_ = now_;
    const int64_t size = p_.size() + 4 * static_cast<int64_t>(pieces_);
    tries_ = std::clamp(kWalked / std::max<int64_t>(1, size), kLeastTries, kMostTries);
    tries_ = static_cast<int64_t>(static_cast<double>(tries_) * effort);
    compute_ns_ = plan::compute_ns(p_);
  }

  Improved run() {
    for (int64_t i = 0; i < tries_ && best_ns_ > compute_ns_; ++i) {
      const double left = 1 - static_cast<double>(i) / static_cast<double>(tries_);
      step((p_.size() <= kSmall ? kSmallTolerance : kTolerance) * left * left);
    }
    s_ = std::move(best_);
    s_.begin();
    prune();
    const Nanos pruned = evaluate();
    if (pruned > best_ns_) {
      s_.rollback();
    } else {
      s_.commit();
      best_ns_ = pruned;
    }
    const Bytes before = chunk_;
    chunk_ = best_chunk();
    const Nanos rechunked = evaluate();
    if (rechunked > best_ns_) chunk_ = before;
    best_ns_ = std::min(best_ns_, rechunked);
    return {std::move(s_), chunk_, best_ns_, work_};
  }

 private:
  struct Place {
    int32_t value, gap;
  };

  uint64_t random() { return random_.next(); }
  int32_t below(size_t n) { return random_.below(n); }
  double unit() { return random_.unit(); }

  Nanos evaluate() {
    ++work_;
    const std::vector<Piece> pieces = pieces_of(s_, chunk_);
    pieces_ = pieces.size();
    Timeline t = schedule_transfers(s_, pieces);
    stalls_ = std::move(t.stalls);
    return t.total_ns;
  }

  // Smaller pieces cost nothing in time and come and go as bytes do; but each needs its extent.
  Bytes best_chunk() {
    Bytes most = 0;
    for (int32_t v = 0; v < s_.values(); ++v) {
      for (const Gap& g : s_.value(v).gaps) {
        if (g.way == Way::kMove) most = std::max(most, g.moved);
      }
    }
    Bytes best = 0;
    Nanos best_ns = 0;
    for (int parts : {1, 2, 4, 8}) {
      if (parts > 1 && !s_.parts()) break;
      chunk_ = parts == 1 ? 0 : round_up(most / parts, kGrain);
      const Nanos ns = evaluate();
      // A third of a percent is worth the parts.
      if (parts == 1 || ns < best_ns - best_ns / 300) {
        best = chunk_;
        best_ns = ns;
      }
    }
    return best;
  }

  std::vector<Place> away(bool taken) {
    std::vector<Place> out;
    for (int32_t v = 0; v < s_.values(); ++v) {
      if (!s_.movable(v)) continue;
      const auto& gaps = s_.value(v).gaps;
      for (int32_t i = 0; i < static_cast<int32_t>(gaps.size()); ++i) {
        if ((gaps[at(i)].way != Way::kKeep) != taken) continue;
        const Span s = s_.span(v, i);
        if (s.exists && (s.lo <= s.hi || s.lo2 <= s.hi2) && !forced(v, i)) out.push_back({v, i});
      }
    }
    return out;
  }
  // What a rule asks for is not taken back.
  bool forced(int32_t v, int32_t) const {
    const PlacementRule* rule = p_.values[at(v)].rule;
    return rule != nullptr && rule->remote;
  }

  void step(double tolerance) {
    BuildOptions o;
    o.price = kPrices[below(std::size(kPrices))];
    o.noise = unit() < 0.3 ? 0 : unit();
    o.seed = random();
    s_.begin();
    const double kind = unit();
    if (kind < 0.4) {
      ruin_one(o);
    } else if (kind < 0.8) {
      ruin_around();
    } else {
      force_one();
    }
    bool good = build(s_, o).position < 0;
    if (good) {
      prune();
      const std::vector<Stall> before = stalls_;
      const Nanos ns = evaluate();
      good = ns <= now_ + static_cast<Nanos>(tolerance * unit() * static_cast<double>(best_ns_));
      if (good) now_ = ns;
      if (!good) stalls_ = before;
    }
    if (!good) return s_.rollback();
    s_.commit();
    if (now_ >= best_ns_) return;
    best_ = s_;
    best_ns_ = now_;
  }

  void ruin_one(BuildOptions& o) {
    const std::vector<Place> all = away(true);
    if (all.empty()) return;
    const Place x = all[at(below(all.size()))];
    if (unit() < 0.7) {
      o.banned_value = x.value;
      o.banned_before = s_.span(x.value, x.gap).before;
      o.banned_way = s_.value(x.value).gaps[at(x.gap)].way;
    }
    s_.set(x.value, x.gap, Gap{});
  }

  void ruin_around() {
    int32_t w = below(at(p_.size()));
    if (!stalls_.empty() && unit() < 0.6) w = stalls_[at(below(stalls_.size()))].position;
    if (unit() < 0.5) w = std::clamp(w - 3 + below(7), 0, p_.size() - 1);
    constexpr double kShares[] = {0.2, 0.5, 1.0};
    double share = kShares[below(3)];
    std::vector<Place> around;
    for (const Place& x : away(true)) {
      const Span s = s_.span(x.value, x.gap);
      const bool covers = (s.lo <= w && w <= s.hi) || (s.lo2 <= w && w <= s.hi2) ||
                          s.after == w || s.before == w;
      if (covers) around.push_back({x.value, s.before});
    }
    share = std::min(share, 60.0 / static_cast<double>(around.size() + 1));
    for (const Place& x : around) {
      if (unit() < share) take_back(x.value, x.gap);
    }
  }

  // The gap of `v` that ends at position `before`, if it is still one: others may have changed it.
  void take_back(int32_t v, int32_t before) {
    const auto& gaps = s_.value(v).gaps;
    for (int32_t i = 0; i < static_cast<int32_t>(gaps.size()); ++i) {
      if (gaps[at(i)].way == Way::kKeep) continue;
      const Span s = s_.span(v, i);
      if (!s.exists || s.before != before) continue;
      s_.set(v, i, Gap{});
      return;
    }
  }

  void force_one() {
    const std::vector<Place> all = away(false);
    if (all.empty()) return;
    const Place x = all[at(below(all.size()))];
    const Value& value = p_.values[at(x.value)];
    const double dead = unit() < 0.5 ? 0 : 1e18;  // whether dead inputs run again as well
    if (value.can_recompute && unit() < 0.5 && s_.try_rerun(x.value, x.gap, dead)) return;
    const std::vector<TierInfo>& tiers = p_.machine->tiers;
    const std::vector<Gap> coded = s_.codec_ways(x.value, x.gap);
    if (!coded.empty() && unit() < 0.5) {
      const Gap& g = coded[at(below(coded.size()))];
      const bool room = !g.tier.valid() || s_.tier_has_room(x.value, x.gap, g.tier,
                                                            s_.encoded_form(x.value, g.codec));
      if (room) s_.set(x.value, x.gap, g);
      return;
    }
    if (tiers.size() < 2) return;
    const TierId tier(1 + below(tiers.size() - 1));
    const bool takes = tiers[tier.index()].store_bytes_per_s > 0 || value.home == tier;
    if (!takes || !s_.allowed_tier(x.value, tier)) return;
    if (!s_.tier_has_room(x.value, x.gap, tier, value.bytes)) return;
    s_.set(x.value, x.gap, {Way::kMove, Codec::kNone, tier, value.bytes});
  }

  // Gives up what is not needed to fit, dear things first.
  void prune() {
    std::vector<std::pair<double, Place>> order;
    for (const Place& x : away(true)) {
      const Gap& g = s_.value(x.value).gaps[at(x.gap)];
      const Value& value = p_.values[at(x.value)];
      const Bytes freed = value.bytes - s_.kept_bytes(x.value, g);
      const double ns = g.way == Way::kRecompute
                            ? static_cast<double>(p_.cost[at(value.producer)])
                            : ns_of(x.value, g, freed);
      order.push_back({-ns / static_cast<double>(std::max<Bytes>(1, freed)),
                       {x.value, s_.span(x.value, x.gap).before}});
    }
    std::sort(order.begin(), order.end(), [](const auto& a, const auto& b) {
      return std::tuple(a.first, a.second.value, a.second.gap) <
             std::tuple(b.first, b.second.value, b.second.gap);
    });
    for (const auto& [ratio, x] : order) prune(x.value, x.gap);
  }

  // What moving and codecs cost, for an order of ways: half of the link's time may be hidden.
  double ns_of(int32_t v, const Gap& g, Bytes freed) const {
    double ns = 0;
    if (g.codec != Codec::kNone) {
      ns = 2 * static_cast<double>(codec_cost(p_, v, g.codec));
      freed = s_.encoded_form(v, g.codec);
    }
    if (!g.tier.valid()) return ns;
    const double rate = p_.machine->tiers[g.tier.index()].load_bytes_per_s;
    return ns + 0.5 * static_cast<double>(freed) / rate * 1e9;
  }

  void prune(int32_t v, int32_t before) {
    const auto& gaps = s_.value(v).gaps;
    for (int32_t i = 0; i < static_cast<int32_t>(gaps.size()); ++i) {
      const Gap g = gaps[at(i)];
      const Span s = s_.span(v, i);
      if (g.way == Way::kKeep || !s.exists || s.before != before) continue;
      const Bytes most = std::max(s_.planned().max(s.lo, s.hi), s_.planned().max(s.lo2, s.hi2));
      const Bytes room = p_.budget - most;
      const Bytes freed = p_.values[at(v)].bytes - s_.kept_bytes(v, g);
      Gap less;
      if (freed > room) {
        if (g.way != Way::kMove || room < kGrain || s_.moves_whole(s)) return;
        less = g;
        less.moved = g.moved - round_down(room, kGrain);
        if (less.moved <= 0) return;
      }
      s_.begin();
      s_.set(v, i, less);
      if (s_.fits()) {
        s_.commit();
      } else {
        s_.rollback();
      }
      return;
    }
  }

  State s_;
  const Problem& p_;
  State best_ = s_;
  Nanos now_ = 0, best_ns_ = 0, compute_ns_ = 0;
  Bytes chunk_ = 0;
  int64_t tries_ = 0, work_ = 0;
  size_t pieces_ = 0;
  SplitMix random_{1};
  std::vector<Stall> stalls_;
};

}  // namespace

Improved improve(State state, double effort) { return Search(std::move(state), effort).run(); }

}  // namespace headrace::plan
