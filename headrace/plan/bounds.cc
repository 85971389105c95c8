#include "headrace/plan/bounds.h"

#include <algorithm>

#include "headrace/plan/bounds_dual.h"

namespace headrace::plan {

Nanos cycle_link_ns(const Problem& p) {
  if (!p.cyclic || p.machine->tiers.size() < 2) return 0;
  // Bytes that may stay from cycle to cycle: what no op needs for what it makes.
  Bytes busiest = 0;
  std::vector<Bytes> busy = p.workspace;
  Bytes touched = 0, written = 0;
  for (const Value& v : p.values) {
    const bool coded = v.rule != nullptr && !v.rule->codecs.empty();
    if (v.persistent) {
      if (v.touches.empty() || coded) continue;
      const auto& reads = p.reads[static_cast<size_t>(v.touches.front())];
      const int32_t id = p.value_of[v.tensor.index()];
      if (std::count(reads.begin(), reads.end(), id) > 0) touched += v.bytes;  // not made anew
      if (!v.writes.empty()) written += v.bytes;
    } else if (v.producer >= 0) {
      // At its own op for certain; what later ops read may be made anew, but is there as well.
      busy[static_cast<size_t>(v.producer)] += v.bytes;
    }
  }
  for (Bytes b : busy) busiest = std::max(busiest, b);
  const Bytes stay = std::max<Bytes>(0, p.budget - p.fixed_bytes - busiest);
  const double loads = static_cast<double>(std::max<Bytes>(0, touched - stay));
  const double stores = static_cast<double>(std::max<Bytes>(0, written - stay));
  // Streams work side by side; each at its fastest tier's rate.
  const auto& tiers = p.machine->tiers;
  std::vector<double> in, out;
  const auto note = [](std::vector<double>& rates, StreamId stream, double rate) {
    if (rates.size() <= stream.index()) rates.resize(stream.index() + 1, 0);
    rates[stream.index()] = std::max(rates[stream.index()], rate);
  };
  for (size_t t = 1; t < tiers.size(); ++t) {
    const TierId id(static_cast<int64_t>(t));
    note(in, link_stream(tiers, id, InstrKind::kLoad), tiers[t].load_bytes_per_s);
    note(out, link_stream(tiers, id, InstrKind::kStore), tiers[t].store_bytes_per_s);
  }
  double in_rate = 0, out_rate = 0;
  for (double rate : in) in_rate += rate;
  for (double rate : out) out_rate += rate;
  double seconds = loads / in_rate;
  if (out_rate > 0) seconds = std::max(seconds, stores / out_rate);
  // One link with one direction at a time carries both.
  if (tiers.size() == 2 && !tiers[1].duplex && out_rate > 0) {
    seconds = loads / in_rate + stores / out_rate;
  }
  return static_cast<Nanos>(seconds * (1 - 1e-6) * 1e9);
}

namespace {

constexpr int kPatience = 8;    // steps without gain before they get shorter
// Prices of the windows to begin with: where ops run again for little, low ones are of use.
constexpr double kShares[] = {1.0, 0.9, 0.75, 0.5, 0.25, 0.1, 0.04, 0.016, 0.006};
constexpr double kMiddle = 0.25;  // with a knapsack up to here, without one from here on
// Steps shorter than this share of Polyak's length gain nothing that is worth their time.
constexpr double kShortest = 1.0 / 64;
constexpr double kShortestSmall = 1.0 / 1024;
constexpr int kToldShare = 5;
constexpr int32_t kSmall = 200;  // positions: both starts are followed, to the end

// What must cross the link in each cycle, whatever the order, where that is more.
Bound with_cycle(const Problem& p, Bound bound) {
  const Nanos link = cycle_link_ns(p);
  bound.link_ns = std::max(bound.link_ns, link);
  if (link <= bound.total_ns) return bound;
  bound.total_ns = link;
  bound.reason = text_of("what cannot stay on the device from cycle to cycle takes %.3f ms of the "
                         "link", static_cast<double>(link) * 1e-6);
  return bound;
}

// Prices and the bound that they give.
struct Point {
  double bound = 0;
  BoundDual::Prices prices;
};

// The best of the windows' prices around position k.
Point best_windows(BoundDual& dual, int32_t k, bool knapsack) {
  const auto [from, to] = dual.windows(k);
  dual.clear_prices();
  Point best{dual.compute_s(), dual.prices()};
  for (double share : kShares) {
    if (knapsack ? share > kMiddle : share < kMiddle) continue;
    dual.price_windows(k, from, to, share, knapsack);
    const double bound = dual.evaluate();
    if (bound > best.bound) best = {bound, dual.prices()};
  }
  return best;
}

// Subgradient steps from `best`, towards `target` seconds.
Point ascend(BoundDual& dual, Point best, int iterations, double target, double shortest) {
  dual.set(best.prices);
  double factor = 1;
  int stuck = 0;
  for (int i = 0; i < iterations; ++i) {
    const double bound = dual.evaluate();
    if (bound > best.bound * (1 + 1e-6)) {
      best = {bound, dual.prices()};
      stuck = 0;
    } else if (++stuck >= kPatience) {
      // Shorter steps from the best prices.
      factor *= 0.5;
      if (factor < shortest) break;
      stuck = 0;
      dual.set(best.prices);
      dual.evaluate();
    }
    if (dual.norm() <= 0 || best.bound >= target) break;
    dual.step(factor * std::max(0.0, target - bound) / dual.norm());
  }
  return best;
}

Bound bound_of_order(const Problem& p, int iterations, Nanos upper_ns) {
  Bound out;
  out.compute_ns = compute_ns(p);
  out.total_ns = out.compute_ns;
  out.reason = text_of("every op runs once: %.3f ms", static_cast<double>(out.compute_ns) * 1e-6);
  if (p.size() == 0 || p.machine->tiers.size() < 2) return out;
  BoundDual dual(p);
  if (!dual.over_budget()) return out;
  const int32_t k = dual.fullest();
  const double target = static_cast<double>(upper_ns) * 1e-9;
  const bool small = p.size() <= kSmall;
  // Where ops may be reordered the bound of this order is told, and no plan is judged by it.
  if (p.request->reorder && !small) iterations /= kToldShare;
  const double shortest = small ? kShortestSmall : kShortest;
  const Point full = best_windows(dual, k, false), knapsack = best_windows(dual, k, true);
  double best = std::max(full.bound, knapsack.bound);
  // The start that is higher does not always lead higher.
  for (const Point* start : {&full, &knapsack}) {
    if ((!small && start->bound < best) || best >= target) continue;
    best = std::max(best, ascend(dual, *start, iterations, target, shortest).bound);
    if (full.bound >= knapsack.bound) break;
  }
  // Sums of doubles: a millionth is more than they can be off.
  const Nanos link = static_cast<Nanos>(best * (1 - 1e-6) * 1e9);
  out.link_ns = link;
  if (link <= out.compute_ns) return out;
  out.total_ns = link;
  const OpId op = p.order[static_cast<size_t>(k)];
  out.reason = text_of("in this order, %s more than the budget are live at op '%s'; getting them "
                       "out of the way and back takes %.3f ms more than the %.3f ms of compute",
                       human_bytes(static_cast<Bytes>(dual.over(k))).c_str(),
                       p.graph->at(op).name.c_str(),
                       static_cast<double>(link - out.compute_ns) * 1e-6,
                       static_cast<double>(out.compute_ns) * 1e-6);
  return out;
}

}  // namespace

Bound lower_bound(const Problem& p, int iterations, Nanos upper_ns) {
  return with_cycle(p, bound_of_order(p, iterations, upper_ns));
}

}  // namespace headrace::plan
