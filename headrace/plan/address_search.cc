#include "headrace/plan/address_search.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "headrace/base/split_mix.h"
#include "headrace/plan/address_parts.h"

namespace headrace::plan {
namespace {

size_t at(int32_t i) { return static_cast<size_t>(i); }

constexpr double kImpossible = 1e6;  // price of a byte that an op needs for two lives
constexpr double kTransferWeight = 0.01;  // seconds of transfer, against seconds of the step
constexpr int kOrders = 24;          // in which all lives are placed at the begin
constexpr int kRelocations = 40;
constexpr int64_t kPlacings = 20;   // times that each life may be placed in one order
constexpr int64_t kAllPlacings = 1000;  // and in all orders at the begin

// Bytes [begin, end) of the arena, and what each of them costs.
struct Priced {
  Bytes begin = 0, end = 0;
  double price = 0;
};

class AddressSearch {
 public:
  AddressSearch(const State& start, int64_t tries, double tolerance)
      : s_(start), p_(start.problem()), tries_(tries), tolerance_(tolerance) {
    const TierInfo& link = p_.machine->tiers[kAway.index()];
    out_price_ = 1 / link.store_bytes_per_s;
    in_price_ = 1 / link.load_bytes_per_s;
  }

  AddressPlan run() {
    AddressPlan plan;
    lives_ = lives_of(s_);
    if (lives_.empty()) return plan;
    find_ways_out();
    for (const Life& x : lives_) chunk_ = std::max(chunk_, x.bytes / 4);
    chunk_ = round_up(chunk_, kLine);
    placings_ = kAllPlacings * static_cast<int64_t>(lives_.size());
    if (!place_whatever_moves()) return plan;
    best_chunk();
    now_ = evaluate();
    State best_state = s_;
    std::vector<Life> best = lives_;
    Cost best_cost = now_;
    const Nanos compute = compute_ns(p_);
    for (int64_t i = 0; i < tries_ && best_cost.ns > compute; ++i) {
      if (i == tries_ / 2) {
        best_chunk();
        now_ = evaluate();
      }
      const double left = 1 - static_cast<double>(i) / static_cast<double>(tries_);
      const double tolerance = tolerance_ * left * left * left;
      if (!step(tolerance * unit() * static_cast<double>(best_cost.ns))) continue;
      if (now_.sum() >= best_cost.sum()) continue;
      best_cost = now_;
      best = lives_;
      best_state = s_;
    }
    lives_ = std::move(best);
    s_ = std::move(best_state);
    best_chunk();
    plan.found = true;
    plan.predicted_ns =
        schedule_in_addresses(s_, lives_, chunk_, &plan.schedule).total_ns;
    plan.extents = extents_of(lives_);
    plan.work = work_;
    return plan;
  }

 private:
  struct Cost {
    Nanos ns = 0, transfer_ns = 0;
    double sum() const {
      return static_cast<double>(ns) + kTransferWeight * static_cast<double>(transfer_ns);
    }
  };

  uint64_t random() { return random_.next(); }
  int32_t below(size_t n) { return random_.below(n); }
  double unit() { return random_.unit(); }

  Cost evaluate() {
    ++work_;
    AddressTimeline t = schedule_in_addresses(s_, lives_, chunk_, nullptr);
    stalls_ = std::move(t.stalls);
    return {t.total_ns, t.transfer_ns};
  }

  // Of the largest life, a half or a quarter: smaller parts come and go sooner.
  void best_chunk() {
    Bytes most = 0;
    for (const Life& x : lives_) most = std::max(most, x.bytes);
    Bytes best = 0;
    double best_sum = 0;
    for (const int parts : {1, 2, 4, 8, 16}) {
      chunk_ = parts == 1 ? 0 : round_up(most / parts, kLine);
      const double sum = evaluate().sum();
      if (parts == 1 || sum < best_sum * (1 - 1e-6)) {
        best = chunk_;
        best_sum = sum;
      }
    }
    chunk_ = best;
  }

  // ---- extents

  // Where the lives have no extents as they are, one of those that others had to make room for most
  // is moved in one of its gaps, and comes back elsewhere.
  bool place_whatever_moves() {
    for (int round = 0; round < kRelocations && placings_ > 0; ++round) {
      if (place_all()) return true;
      const double most = *std::max_element(stubborn_.begin(), stubborn_.end());
      gaps_.clear();
      for (size_t i = 0; i < stubborn_.size(); ++i) {
        const Life& x = lives_[i];
        for (size_t g = 0; g + 1 < x.touches.size(); ++g) {
          if (x.value < 0 || !x.open[g] || stubborn_[i] < most / 3) continue;
          const int32_t before = (x.touches[g + 1] - 1) / 2;
          const int32_t gap = s_.gap_at(x.value, before - 1);
          if (gap >= 0) gaps_.push_back({x.value, gap});
        }
      }
      if (gaps_.empty()) return false;
      const auto [v, gap] = gaps_[at(below(gaps_.size()))];
      if (s_.value(v).gaps[at(gap)].way != Way::kRecompute) {
        s_.set(v, gap, {Way::kMove, Codec::kNone, kAway, p_.values[at(v)].bytes});
      }
      lives_ = lives_of(s_);
      find_ways_out();
    }
    return false;
  }

  // All lives anew; of several orders the one that does best.
  bool place_all() {
    std::vector<Life> best;
    double best_sum = 0;
    for (int round = 0; round < kOrders && placings_ > 0; ++round) {
      if (!place_in_order(round)) continue;
      const double sum = evaluate().sum();
      if (!best.empty() && sum >= best_sum) continue;
      best_sum = sum;
      best = lives_;
      if (tries_ == 0) break;
    }
    if (best.empty()) return false;
    lives_ = std::move(best);
    return true;
  }

  // By bytes x time^q, blurred from the second round of each q on.
  bool place_in_order(int round) {
    constexpr double kWeights[] = {1, 0.5, 0, 2};
    const double q = kWeights[round % 4];
    const double blur = round < 4 ? 0 : 0.7 * unit();
    std::vector<std::pair<double, int32_t>> order;
    for (size_t i = 0; i < lives_.size(); ++i) {
      Life& x = lives_[i];
      x.offset = -1;
      const int32_t until = x.end == LifeEnd::kStays ? 2 * p_.size() : x.touches.back();
      const double time = until - x.touches.front() + 1;
      order.push_back({std::log(static_cast<double>(x.bytes) * std::pow(time, q)) +
                           blur * 4 * (unit() - 0.5),
                       static_cast<int32_t>(i)});
    }
    stubborn_.assign(lives_.size(), 1);
    return put_back(std::move(order), round % 2 == 0 ? 0 : 0.3,
                    kPlacings * static_cast<int64_t>(lives_.size()));
  }

  // Where the life costs least. False: it is larger than the budget.
  bool place(int32_t index, double noise) {
    Life& x = lives_[at(index)];
    x.offset = -1;
    if (x.bytes > p_.budget) return false;
    price(index, noise);
    const Bytes top = p_.budget - x.bytes;
    sum_up();
    candidates_ = {0, top};
    for (const Priced& i : priced_) {
      if (i.end <= top) candidates_.push_back(i.end);
      if (i.begin >= x.bytes) candidates_.push_back(i.begin - x.bytes);
    }
    std::sort(candidates_.begin(), candidates_.end());
    candidates_.erase(std::unique(candidates_.begin(), candidates_.end()), candidates_.end());
    if (random() % 2 == 0) std::reverse(candidates_.begin(), candidates_.end());
    double best = -1;
    for (const Bytes offset : candidates_) {
      if (offset % kLine != 0) continue;
      const double cost = area(offset + x.bytes) - area(offset);
      if (best >= 0 && cost >= best - 1e-12) continue;
      best = cost;
      x.offset = offset;
    }
    return x.offset >= 0;
  }

  // Slots that copies of whole lives take, see Life::leaving.
  void find_ways_out() {
    for (size_t i = 0; i + 1 < lives_.size(); ++i) {
      Life& from = lives_[i];
      if (from.value < 0 || from.end != LifeEnd::kMoves) continue;
      Life& to = lives_[i + 1];
      const int32_t a = from.touches.back(), b = to.touches.front();
      const double bytes = static_cast<double>(from.bytes);
      double left = 1.5e9 * bytes * out_price_;
      for (int32_t slot = a + 1; slot < b && left > 0; ++slot) {
        from.leaving.add(slot);
        left -= ns_of(slot);
      }
      left = 1.5e9 * bytes * in_price_;
      for (int32_t slot = b - 1; slot > a && left > 0; --slot) {
        to.coming.add(slot);
        left -= ns_of(slot);
      }
    }
  }
  double ns_of(int32_t slot) const {
    return slot % 2 == 0 ? static_cast<double>(p_.cost[at(slot / 2 - 1)]) : 0;
  }

  // What it costs others and the life itself to share bytes: by intervals, which add up.
  void price(int32_t index, double noise) {
    const Life& x = lives_[at(index)];
    priced_.clear();
    guests_.assign(x.gaps.size(), {});
    for (size_t m = 0; m < lives_.size(); ++m) {
      const Life& y = lives_[m];
      if (static_cast<int32_t>(m) == index || y.offset < 0) continue;
      if (y.touched.meets(x.touched)) {
        priced_.push_back({y.offset, y.offset + y.bytes, kImpossible * stubborn_[m]});
        continue;
      }
      const double waits = (y.leaving.meets(x.touched) ? out_price_ : 0) +
                           (x.leaving.meets(y.touched) ? out_price_ : 0) +
                           (y.coming.meets(x.touched) ? in_price_ : 0) +
                           (x.coming.meets(y.touched) ? in_price_ : 0);
      if (waits > 0) {
        priced_.push_back({y.offset, y.offset + y.bytes, waits * (1 + noise * unit())});
      }
      for (size_t g = 0; g < y.gaps.size(); ++g) {
        if (costs(y, g) && y.gaps[g].meets(x.touched)) {
          add_kept(static_cast<int32_t>(m), g, index, gap_price(y, g) * (1 + noise * unit()));
        }
      }
      for (size_t g = 0; g < x.gaps.size(); ++g) {
        if (!costs(x, g) || !x.gaps[g].meets(y.touched)) continue;
        guests_[g].push_back({y.offset, y.offset + y.bytes});
      }
    }
    for (size_t g = 0; g < x.gaps.size(); ++g) {
      if (guests_[g].empty()) continue;
      merge(guests_[g]);
      const double price = gap_price(x, g) * (1 + noise * unit());
      for (const auto& [begin, end] : guests_[g]) priced_.push_back({begin, end, price});
    }
  }

  // What is away in gap g costs: it stays otherwise.
  static bool costs(const Life& x, size_t g) {
    if (!x.open[g]) return false;
    return g + 1 < x.gaps.size() || x.end == LifeEnd::kStays;
  }

  double gap_price(const Life& x, size_t g) const {
    const bool back = g + 1 < x.gaps.size();
    const double price = out_price_ + (back ? in_price_ : 0);
    if (!back) return price;
    // Short gaps hide nothing.
    const int32_t a = std::max(0, (x.touches[g] - 1) / 2), b = (x.touches[g + 1] - 1) / 2;
    const int32_t ops = b - a;
    return price * (1 + 4.0 / (1 + ops));
  }

  // The bytes of y that are there in its gap g so far.
  void add_kept(int32_t m, size_t g, int32_t without, double price) {
    const Life& y = lives_[at(m)];
    taken_.clear();
    for (size_t i = 0; i < lives_.size(); ++i) {
      const Life& z = lives_[i];
      const bool meets = z.offset >= 0 && static_cast<int32_t>(i) != m &&
                         static_cast<int32_t>(i) != without && z.offset < y.offset + y.bytes &&
                         y.offset < z.offset + z.bytes && y.gaps[g].meets(z.touched);
      if (meets) taken_.push_back({z.offset, z.offset + z.bytes});
    }
    merge(taken_);
    Bytes from = y.offset;
    for (const auto& [begin, end] : taken_) {
      if (begin > from) priced_.push_back({from, begin, price});
      from = std::max(from, end);
    }
    if (from < y.offset + y.bytes) priced_.push_back({from, y.offset + y.bytes, price});
  }

  static void merge(std::vector<std::pair<Bytes, Bytes>>& list) {
    std::sort(list.begin(), list.end());
    size_t n = 0;
    for (const auto& x : list) {
      if (n > 0 && x.first <= list[n - 1].second) {
        list[n - 1].second = std::max(list[n - 1].second, x.second);
      } else {
        list[n++] = x;
      }
    }
    list.resize(n);
  }

  // The prices, summed from address 0 upwards.
  void sum_up() {
    changes_.clear();
    for (const Priced& i : priced_) {
      changes_.push_back({i.begin, i.price});
      changes_.push_back({i.end, -i.price});
    }
    std::sort(changes_.begin(), changes_.end());
    area_.assign(changes_.size(), 0);
    slope_.assign(changes_.size(), 0);
    double area = 0, slope = 0;
    Bytes last = 0;
    for (size_t i = 0; i < changes_.size(); ++i) {
      area += slope * static_cast<double>(changes_[i].first - last);
      slope += changes_[i].second;
      last = changes_[i].first;
      area_[i] = area;
      slope_[i] = slope;
    }
  }
  double area(Bytes to) const {
    const auto after = std::upper_bound(changes_.begin(), changes_.end(), to,
                                        [](Bytes b, const auto& c) { return b < c.first; });
    if (after == changes_.begin()) return 0;
    const size_t i = static_cast<size_t>(after - changes_.begin()) - 1;
    return area_[i] + slope_[i] * static_cast<double>(to - changes_[i].first);
  }

  // ---- one step of the search

  bool step(double tolerance) {
    before_ = lives_;
    const std::vector<int32_t> stalls_before = stalls_;
    const double noise = unit() < 0.3 ? 0 : unit() * 1.5;
    s_.begin();
    out_of_place_.clear();
    std::fill(stubborn_.begin(), stubborn_.end(), 1);
    const double kind = unit();
    bool good = true;
    if (kind < 0.35) {
      good = change_way();
    }
    if (good && kind >= 0.25) take_out();
    good = good && put_back(noise, 10 + 2 * static_cast<int64_t>(out_of_place_.size()));
    if (good) {
      const Cost cost = evaluate();
      good = cost.sum() <= now_.sum() + tolerance;
      if (good) now_ = cost;
    }
    if (good) {
      s_.commit();
      return true;
    }
    s_.rollback();
    lives_ = before_;
    stalls_ = stalls_before;
    return false;
  }

  int32_t some_slot() {
    if (!stalls_.empty() && unit() < 0.7) return stalls_[at(below(stalls_.size()))];
    return below(at(2 * p_.size() + 1));
  }

  void remove(int32_t i) {
    if (lives_[at(i)].offset < 0) return;
    lives_[at(i)].offset = -1;
    out_of_place_.push_back(i);
  }

  // Lives around a slot, or any.
  void take_out() {
    const size_t most = 1 + at(below(unit() < 0.5 ? 4 : 12));
    if (unit() < 0.3) {
      for (size_t i = 0; i < most; ++i) remove(below(lives_.size()));
      return;
    }
    const int32_t slot = some_slot();
    std::vector<int32_t> around;
    for (size_t i = 0; i < lives_.size(); ++i) {
      const Life& x = lives_[i];
      const int32_t until = x.end == LifeEnd::kStays ? 2 * p_.size() + 1 : x.touches.back();
      if (x.touches.front() <= slot + 2 && until >= slot - 2) {
        around.push_back(static_cast<int32_t>(i));
      }
    }
    for (size_t i = 0; i < most && !around.empty(); ++i) {
      const size_t k = at(below(around.size()));
      remove(around[k]);
      around[k] = around.back();
      around.pop_back();
    }
  }

  // Places what is out of place, largest first in the main. Where an op needs the bytes of two
  // lives, the one that was there first is taken out, and asks for more the next time.
  bool put_back(double noise, int64_t most) {
    std::vector<std::pair<double, int32_t>> order;  // smallest key first, at the back
    for (const int32_t i : out_of_place_) {
      order.push_back({static_cast<double>(lives_[at(i)].bytes) * (0.2 + unit()), i});
    }
    return put_back(std::move(order), noise, most);
  }

  bool put_back(std::vector<std::pair<double, int32_t>> order, double noise, int64_t most) {
    std::sort(order.begin(), order.end());
    while (!order.empty()) {
      if (--most < 0) return false;
      --placings_;
      const int32_t i = order.back().second;
      order.pop_back();
      if (!place(i, noise)) return false;
      const Life& x = lives_[at(i)];
      for (size_t m = 0; m < lives_.size(); ++m) {
        Life& y = lives_[m];
        const bool share = static_cast<int32_t>(m) != i && y.offset >= 0 &&
                           y.offset < x.offset + x.bytes && x.offset < y.offset + y.bytes;
        if (!share || !y.touched.meets(x.touched)) continue;
        y.offset = -1;
        stubborn_[m] += 1 + unit();
        order.push_back({0, static_cast<int32_t>(m)});
      }
    }
    return true;
  }

  // Another way for the gap of one value.
  bool change_way() {
    gaps_.clear();
    for (int32_t v = 0; v < s_.values(); ++v) {
      for (int32_t g = 0; g < static_cast<int32_t>(s_.value(v).gaps.size()); ++g) {
        const Span span = s_.span(v, g);
        if (span.exists && span.lo <= span.hi && span.loads_back) gaps_.push_back({v, g});
      }
    }
    if (gaps_.empty()) return false;
    const auto [v, gap] = gaps_[at(below(gaps_.size()))];
    const ValueState& value = s_.value(v);
    const Gap& now = value.gaps[at(gap)];
    const Bytes bytes = p_.values[at(v)].bytes;
    const bool moves = now.way == Way::kMove && now.moved == bytes;
    const bool rerun = p_.values[at(v)].can_recompute && now.way != Way::kRecompute && unit() < 0.6;
    if (rerun) {
      if (now.way != Way::kKeep) s_.set(v, gap, Gap{});
      if (!s_.try_rerun(v, gap, unit() < 0.5 ? 0 : 1e18)) return false;
    } else if (moves || now.way == Way::kRecompute) {
      s_.set(v, gap, Gap{});
    } else {
      s_.set(v, gap, {Way::kMove, Codec::kNone, kAway, bytes});
    }
    renew();
    return !lives_.empty();
  }

  // The lives of the changed state; those that were there before keep their extents.
  void renew() {
    std::vector<Life> old = std::move(lives_);
    lives_ = lives_of(s_);
    find_ways_out();
    for (size_t i = 0; i < lives_.size(); ++i) {
      Life& x = lives_[i];
      for (const Life& y : old) {
        const bool same = x.value >= 0 ? y.value == x.value && y.touched.meets(x.touched)
                                       : y.position == x.position && y.touches == x.touches;
        if (!same) continue;
        x.offset = y.offset;
        break;
      }
      if (x.offset >= 0 && clashes(i)) x.offset = -1;
      if (x.offset < 0) out_of_place_.push_back(static_cast<int32_t>(i));
    }
    stubborn_.assign(lives_.size(), 1);
  }

  bool clashes(size_t i) const {
    const Life& x = lives_[i];
    for (size_t m = 0; m < i; ++m) {
      const Life& y = lives_[m];
      const bool share = y.offset >= 0 && y.offset < x.offset + x.bytes &&
                         x.offset < y.offset + y.bytes;
      if (share && y.touched.meets(x.touched)) return true;
    }
    return false;
  }

  State s_;
  const Problem& p_;
  int64_t tries_;
  double tolerance_;
  double out_price_ = 0, in_price_ = 0;  // seconds a byte
  std::vector<Life> lives_, before_;
  std::vector<int32_t> out_of_place_;
  std::vector<double> stubborn_;  // by life: how often others had to make room for it
  std::vector<int32_t> stalls_;
  Cost now_;
  Bytes chunk_ = 0;
  int64_t work_ = 0;
  int64_t placings_ = 0;  // left to find the first extents with
  SplitMix random_{1};
  std::vector<std::pair<int32_t, int32_t>> gaps_;  // value, gap
  // Scratch of place().
  std::vector<Priced> priced_;
  std::vector<std::vector<std::pair<Bytes, Bytes>>> guests_;
  std::vector<std::pair<Bytes, Bytes>> taken_;
  std::vector<Bytes> candidates_;
  std::vector<std::pair<Bytes, double>> changes_;
  std::vector<double> area_, slope_;
};

}  // namespace

AddressPlan search_addresses(const State& start, int64_t tries, double tolerance) {
  return AddressSearch(start, tries, tolerance).run();
}

}  // namespace headrace::plan
