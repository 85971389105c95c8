// The relaxation whose Lagrangian dual gives the bounds of bounds.h: prices of memory by op, of
// link time by slot and stream, and what every gap does at these prices. Internal to bounds*.cc.
//
// Vocabulary
//   slot     2 k: between op k - 1 and op k; 2 k + 1: op k.
//   version  a value from one write to the next: one store serves all its gaps.
//   price    seconds for a byte held by an op; of a second of a link in a slot, at most 1 in all.
#pragma once

#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

#include "headrace/plan/problem.h"

namespace headrace::plan {

inline constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Maxima over ranges of slots, with where they are. Build O(n), query O(log n).
class RangeMax {
 public:
  template <typename Value>
  void build(size_t n, Value value) {
    n_ = n;
    top_.resize(2 * n);
    for (size_t i = 0; i < n; ++i) top_[n + i] = {value(i), static_cast<int32_t>(i)};
    for (size_t i = n; i-- > 1;) top_[i] = better(top_[2 * i], top_[2 * i + 1]);
  }
  struct Entry {
    double value = -kInfinity;
    int32_t at = -1;
  };
  // Of slots [begin, end).
  Entry max(int32_t begin, int32_t end) const {
    Entry best;
    size_t lo = static_cast<size_t>(std::max(begin, 0)) + n_;
    size_t hi = static_cast<size_t>(std::max(end, 0)) + n_;
    for (; lo < hi; lo /= 2, hi /= 2) {
      if (lo & 1) best = better(best, top_[lo++]);
      if (hi & 1) best = better(best, top_[--hi]);
    }
    return best;
  }

 private:
  static Entry better(const Entry& a, const Entry& b) { return b.value > a.value ? b : a; }
  size_t n_ = 0;
  std::vector<Entry> top_;
};

// A gap, in slots: away at most in [lo, hi), the slots after one touch and before the next.
struct BoundGap {
  int32_t lo = 0, hi = 0;
  int32_t head = 0;          // across the end of a cycle: also away in [0, head)
  int32_t since = 0;         // the store may be in any slot from here on
  bool load = true;          // must come back
  double rerun_s = kInfinity;  // seconds of its op, shared among the op's outputs
};

// Gaps of one version of a value: one store serves them all.
struct BoundVersion {
  double bytes = 0;
  bool store = true;         // has no other copy
  double ratio = 1;          // encoded over plain bytes, of the smallest form that rules allow
  std::vector<int32_t> tiers;
  std::vector<BoundGap> gaps;
};

class BoundDual {
 public:
  explicit BoundDual(const Problem& p);

  double compute_s() const {
    double sum = 0;
    for (double c : cost_s_) sum += c;
    return sum;
  }
  bool over_budget() const {
    return std::any_of(over_.begin(), over_.end(), [](double o) { return o > 0; });
  }
  int32_t fullest() const {
    return static_cast<int32_t>(std::max_element(over_.begin(), over_.end()) - over_.begin());
  }
  double over(int32_t k) const { return over_[static_cast<size_t>(k)]; }

  // The bound at the present prices; the subgradient is kept for step().
  double evaluate();
  void step(double length);
  void clear_prices();
  // Prices of one position and of the windows around it: `share` for a second of the link there;
  // for a byte what it takes to cross both windows, or, by `knapsack`, what the last byte that must
  // go takes.
  void price_windows(int32_t k, int32_t from, int32_t to, double share, bool knapsack);
  // The windows that bind most when the bytes over budget at k leave and return.
  std::pair<int32_t, int32_t> windows(int32_t k) const;
  double norm() const { return norm_; }

  struct Prices {
    std::vector<double> memory;
    std::vector<std::vector<double>> link;
  };
  Prices prices() const { return {memory_, price_}; }
  void set(const Prices& p) {
    memory_ = p.memory;
    price_ = p.link;
  }

 private:
  static double seconds(Nanos ns) { return static_cast<double>(ns) * 1e-9; }

  void add_value(const Value& v);
  BoundVersion version_of(const Value& v) const;
  void prepare();
  double knapsack_price(int32_t k) const;
  double relief(const BoundVersion& v, const BoundGap& g, int32_t slot) const;
  double gain(const BoundVersion& v);

  // How a gap is spent at the present prices, per byte.
  struct Way {
    double gain = 0;
    int32_t tier = -1, load = -1, store = -1, rerun = -1;
    double scale = 1;   // of the bytes that cross links
    bool away = false;
  };
  Way best_move(const BoundVersion& v, const BoundGap& g, bool store) const;
  Way best_rerun(const BoundVersion& v, const BoundGap& g) const;
  void take(const BoundVersion& v, const BoundGap& g, const Way& way);
  double held_price(const BoundGap& g) const {
    return sum_[at(g.hi)] - sum_[at(g.lo)] + sum_[at(g.head)];
  }
  static size_t at(int32_t i) { return static_cast<size_t>(i); }

  const Problem& p_;
  const int32_t n_;
  const size_t slots_;
  std::vector<double> cost_s_, over_;
  std::vector<BoundVersion> versions_;
  std::vector<size_t> load_stream_, store_stream_;  // by tier
  double rate_ = 1;
  std::vector<double> memory_;               // by position: price of a byte, in seconds
  std::vector<std::vector<double>> price_;   // by stream, slot: of a second of the link
  std::vector<double> sum_;                  // by slot: memory prices of the slots before
  std::vector<RangeMax> load_max_, store_max_;  // by tier
  std::vector<RangeMax> cheap_;              // by stream: of the negated prices
  RangeMax spare_max_;                       // 1 - what is left of a slot's second
  std::vector<double> memory_grad_, away_;   // by position; away_ by slot, as differences
  std::vector<std::vector<double>> link_grad_;
  std::vector<Way> stored_, moves_, reruns_;  // scratch of gain()
  std::vector<double> rest_;
  double norm_ = 0;
};

}  // namespace headrace::plan
