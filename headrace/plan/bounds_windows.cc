// Prices to begin with: those of the fullest position and of the windows of ops around it in which
// what is too much there must leave and return.
//
// Why they give a bound. Price the link's time in the windows at `share` of a second each. A step
// lasts at least its ops, less `share` of what they last inside the windows (that time pays for
// transfers beside them), plus the least that it costs to free what is over the budget at k: a
// fractional knapsack over the gaps across k, each by its cheapest way - its bytes' link time
// inside the windows at that price, or the seconds of its op, less the share of them that transfers
// may use. In any plan each byte that is not there at k has paid at least that. The price of memory
// at which the knapsack is full makes the dual's value at least this sum (a Lagrangian of one
// constraint is exact), and what is reported is evaluate() at these prices, a bound whatever they
// are.
#include <algorithm>
#include <utility>
#include <vector>

#include "headrace/plan/bounds_dual.h"

namespace headrace::plan {

std::pair<int32_t, int32_t> BoundDual::windows(int32_t k) const {
  // Bytes of gaps across k by where they begin and end.
  std::vector<double> begins(slots_ + 1, 0), ends(slots_ + 1, 0);
  const int32_t slot = 2 * k + 1;
  for (const BoundVersion& v : versions_) {
    for (const BoundGap& g : v.gaps) {
      if (g.lo > slot || g.hi <= slot) continue;
      begins[v.store ? at(std::max(g.since, 0)) : 0] += v.bytes;
      ends[g.load ? at(g.hi) : slots_] += v.bytes;
    }
  }
  double rate_out = 1, rate_in = 1;
  for (const TierInfo& t : p_.machine->tiers) {
    rate_out = std::max(rate_out, t.store_bytes_per_s);
    rate_in = std::max(rate_in, t.load_bytes_per_s);
  }
  const auto search = [&](bool out) {
    double compute = 0, best = 0;
    const double need = over(k);
    int32_t where = out ? k + 1 : k;  // an empty window
    double outside = 0;
    for (double b : out ? begins : ends) outside += b;
    // Wider and wider: what begins (ends) inside must cross the link there.
    double inside = 0;
    for (int32_t i = 1;; ++i) {
      const int32_t o = out ? k - i : k + i;
      if (o < 0 || o >= n_) break;
      // Slots [2 o, 2 k] for stores, [2 k + 2, 2 o] for loads.
      if (out) {
        compute += cost_s_[at(o)];
        inside += begins[at(2 * o)] + begins[at(2 * o + 1)];
        if (i == 1) inside += begins[at(2 * k)] + begins[at(slot)];
      } else {
        if (i > 1) compute += cost_s_[at(o - 1)];
        inside += ends[at(2 * o + 1)] + ends[at(2 * o)];
      }
      const double forced = need - (outside - inside);
      const double gain = forced / (out ? rate_out : rate_in) - compute;
      if (gain > best) {
        best = gain;
        where = o;
      }
    }
    return where;
  };
  return {search(true), search(false)};
}

void BoundDual::clear_prices() {
  for (auto& stream : price_) std::fill(stream.begin(), stream.end(), 0);
  std::fill(memory_.begin(), memory_.end(), 0);
}

void BoundDual::price_windows(int32_t k, int32_t from, int32_t to, double share, bool knapsack) {
  clear_prices();
  double dearest = 0;
  for (size_t t = 1; t < load_stream_.size(); ++t) {
    const TierInfo& tier = p_.machine->tiers[t];
    const bool out = from <= k && tier.store_bytes_per_s > 0, in = to > k;
    dearest = std::max(dearest, (out ? share / tier.store_bytes_per_s : 0) +
                                    (in ? share / tier.load_bytes_per_s : 0));
    const auto fill = [&](std::vector<double>& price, int32_t lo, int32_t hi) {
      for (int32_t j = std::max(lo, 0); j < hi && j < static_cast<int32_t>(slots_); ++j) {
        price[at(j)] = share;
      }
    };
    if (out) fill(price_[store_stream_[t]], 2 * from, 2 * k + 1);
    if (in) fill(price_[load_stream_[t]], 2 * k + 2, 2 * to + 1);
  }
  // Streams that more than one tier uses, or both directions, share a second.
  for (size_t j = 0; j < slots_; ++j) {
    double sum = 0;
    for (const auto& stream : price_) sum += stream[j];
    if (sum <= 1) continue;
    for (auto& stream : price_) stream[j] /= sum;
  }
  prepare();
  memory_[at(k)] = knapsack ? knapsack_price(k) : dearest;
}

// The price of a byte at k at which as many bytes as are over the budget there go elsewhere.
double BoundDual::knapsack_price(int32_t k) const {
  std::vector<std::pair<double, double>> ways;  // seconds per byte, bytes
  const int32_t slot = 2 * k + 1;
  for (const BoundVersion& v : versions_) {
    for (const BoundGap& g : v.gaps) {
      const bool across = slot < g.head || (g.lo <= slot && slot < g.hi);
      if (across) ways.push_back({relief(v, g, slot), v.bytes});
    }
  }
  std::sort(ways.begin(), ways.end());
  double need = over(k), price = 0;
  for (const auto& [ratio, bytes] : ways) {
    if (ratio == kInfinity) break;
    price = ratio;
    need -= bytes;
    if (need <= 0) break;
  }
  return price;
}

// The least seconds for a byte of the gap that is away in `slot`, at the prices of the links.
double BoundDual::relief(const BoundVersion& v, const BoundGap& g, int32_t slot) const {
  double best = kInfinity;
  const auto price = [&](size_t stream, int32_t begin, int32_t end) {
    const auto found = cheap_[stream].max(begin, end);
    return found.at < 0 ? kInfinity : -found.value;
  };
  const bool plain = g.head == 0 && v.ratio >= 1;
  for (int32_t t : v.tiers) {
    const TierInfo& tier = p_.machine->tiers[at(t)];
    double s = 0;
    if (g.load && plain) s += price(load_stream_[at(t)], slot + 1, g.hi) / tier.load_bytes_per_s;
    if (v.store && plain) {
      s += price(store_stream_[at(t)], std::min(g.since, g.lo), slot) / tier.store_bytes_per_s;
    }
    best = std::min(best, s);
  }
  if (g.rerun_s == kInfinity) return best;
  const double left = std::max(0.0, 1 - spare_max_.max(g.lo, g.hi).value);
  return std::min(best, g.rerun_s * left / v.bytes);
}

}  // namespace headrace::plan
