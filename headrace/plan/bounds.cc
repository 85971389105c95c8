#include "headrace/plan/bounds.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace headrace::plan {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr int kPatience = 8;    // steps without gain before they get shorter

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
struct Gap {
  int32_t lo = 0, hi = 0;
  int32_t head = 0;          // across the end of a cycle: also away in [0, head)
  int32_t since = 0;         // the store may be in any slot from here on
  bool load = true;          // must come back
  double rerun_s = kInfinity;  // seconds of its op, shared among the op's outputs
};

// Gaps of one version of a value: one store serves them all.
struct Version {
  double bytes = 0;
  bool store = true;         // has no other copy
  double ratio = 1;          // encoded over plain bytes, of the smallest form that rules allow
  std::vector<int32_t> tiers;
  std::vector<Gap> gaps;
};

class Dual {
 public:
  explicit Dual(const Problem& p) : p_(p), n_(p.size()), slots_(static_cast<size_t>(2 * n_)) {
    const auto held = resident_profile(p);
    for (int32_t k = 0; k < n_; ++k) {
      cost_s_.push_back(seconds(p.cost[static_cast<size_t>(k)]));
      over_.push_back(static_cast<double>(held[static_cast<size_t>(k)] - p.budget));
    }
    for (size_t v = 0; v < p.values.size(); ++v) add_value(p.values[v]);
    size_t streams = 1;
    const auto& tiers = p.machine->tiers;
    for (size_t t = 0; t < tiers.size(); ++t) {
      const TierId id(static_cast<int64_t>(t));
      load_stream_.push_back(t == 0 ? 0 : link_stream(tiers, id, InstrKind::kLoad).index());
      store_stream_.push_back(t == 0 ? 0 : link_stream(tiers, id, InstrKind::kStore).index());
      streams = std::max({streams, load_stream_[t] + 1, store_stream_[t] + 1});
      if (t > 0) rate_ = std::max(rate_, tiers[t].load_bytes_per_s);
    }
    price_.assign(streams, std::vector<double>(slots_, 0));
    memory_.assign(static_cast<size_t>(n_), 0);
    load_max_.resize(tiers.size());
    store_max_.resize(tiers.size());
  }

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
  // Prices of one position and of the windows around it; `share` of the full ones.
  void price_windows(int32_t k, int32_t from, int32_t to, double share);
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
  Version version_of(const Value& v) const;
  void prepare();
  double gain(const Version& v);

  // How a gap is spent at the present prices, per byte.
  struct Way {
    double gain = 0;
    int32_t tier = -1, load = -1, store = -1, rerun = -1;
    double scale = 1;   // of the bytes that cross links
    bool away = false;
  };
  Way best_move(const Version& v, const Gap& g, bool store) const;
  Way best_rerun(const Version& v, const Gap& g) const;
  void take(const Version& v, const Gap& g, const Way& way);
  double held_price(const Gap& g) const { return sum_[at(g.hi)] - sum_[at(g.lo)] + sum_[at(g.head)]; }
  static size_t at(int32_t i) { return static_cast<size_t>(i); }

  const Problem& p_;
  const int32_t n_;
  const size_t slots_;
  std::vector<double> cost_s_, over_;
  std::vector<Version> versions_;
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
  double norm_ = 0;
};

Version Dual::version_of(const Value& v) const {
  Version version;
  version.bytes = static_cast<double>(v.bytes);
  version.store = !v.home.valid() && !(p_.cyclic && v.persistent && v.writes.empty());
  const Tensor& t = p_.graph->at(v.tensor);
  if (v.rule != nullptr) {
    for (Codec c : v.rule->codecs) {
      version.ratio = std::min(version.ratio, static_cast<double>(encoded_bytes(c, t)) /
                                                  static_cast<double>(t.bytes));
    }
  }
  for (size_t i = 1; i < p_.machine->tiers.size(); ++i) {
    const TierInfo& tier = p_.machine->tiers[i];
    const bool home = v.home.value == static_cast<int32_t>(i);
    if (!home && !(tier.store_bytes_per_s > 0)) continue;
    if (v.rule != nullptr && std::count(v.rule->forbidden_tiers.begin(),
                                        v.rule->forbidden_tiers.end(), tier.name) > 0) {
      continue;
    }
    version.tiers.push_back(static_cast<int32_t>(i));
  }
  return version;
}

void Dual::add_value(const Value& v) {
  if (v.rule != nullptr && v.rule->pinned) return;
  if (v.touches.empty() && !v.persistent) return;
  double rerun = kInfinity;
  if (p_.request->recompute && v.can_recompute) {
    const size_t k = at(v.producer);
    rerun = cost_s_[k] / static_cast<double>(p_.graph->at(p_.order[k]).outputs.size());
  }
  Version version = version_of(v);
  int32_t since = v.producer >= 0 ? 2 * v.producer + 2 : 0;
  size_t write = 0;
  const auto push = [&](int32_t after, int32_t before, int32_t head, bool load) {
    Gap g;
    g.lo = 2 * after + 2;
    g.hi = 2 * before + 1;
    g.head = head;
    g.load = load;
    g.since = since;
    g.rerun_s = rerun;
    g.hi = std::min(g.hi, static_cast<int32_t>(slots_));
    if (g.lo < g.hi || g.head > 0) version.gaps.push_back(g);
  };
  const auto close = [&] {
    if (!version.gaps.empty()) versions_.push_back(version);
    version.gaps.clear();
  };
  if (v.touches.empty()) {
    push(-1, n_, 0, false);
    return close();
  }
  if (v.persistent && !p_.cyclic && v.touches.front() > 0) {
    push(-1, v.touches.front(), 0, true);
  }
  // An output that only the end of the step touches may still come back beside the last op.
  const int32_t last = n_ - 1;
  const auto& reads = p_.reads[at(last)];
  const bool at_end = v.touches.size() > 1 && v.touches.back() == last &&
                      p_.graph->at(v.tensor).role == Role::kOutput && v.producer != last &&
                      std::count(reads.begin(), reads.end(), p_.value_of[v.tensor.index()]) == 0;
  for (size_t i = 0; i < v.touches.size(); ++i) {
    const int32_t k = v.touches[i];
    if (at_end && i + 2 == v.touches.size()) {
      push(k, n_, 0, false);
      break;
    }
    while (write < v.writes.size() && v.writes[write] < k) ++write;
    if (write < v.writes.size() && v.writes[write] == k) {
      close();
      since = 2 * k + 2;
    }
    if (i + 1 < v.touches.size()) {
      if (v.touches[i + 1] - k > 1) push(k, v.touches[i + 1], 0, true);
    } else if (v.persistent && p_.cyclic) {
      push(k, n_, 2 * v.touches.front() + 1, true);
    } else if (v.persistent && k + 1 < n_) {
      push(k, n_, 0, false);
    }
  }
  close();
}

void Dual::prepare() {
  sum_.assign(slots_ + 1, 0);
  for (size_t j = 0; j < slots_; ++j) sum_[j + 1] = sum_[j] + (j % 2 == 1 ? memory_[j / 2] : 0);
  for (size_t t = 1; t < load_max_.size(); ++t) {
    const TierInfo& tier = p_.machine->tiers[t];
    const auto& in = price_[load_stream_[t]];
    const auto& out = price_[store_stream_[t]];
    const double per_load = 1 / tier.load_bytes_per_s;
    const double per_store = tier.store_bytes_per_s > 0 ? 1 / tier.store_bytes_per_s : 0;
    load_max_[t].build(slots_, [&](size_t j) { return sum_[j] - in[j] * per_load; });
    store_max_[t].build(slots_, [&](size_t j) { return -(sum_[j + 1] + out[j] * per_store); });
  }
  cheap_.resize(price_.size());
  for (size_t s = 0; s < price_.size(); ++s) {
    cheap_[s].build(slots_, [&](size_t j) { return -price_[s][j]; });
  }
  spare_max_.build(slots_, [&](size_t j) {
    double used = 0;
    for (const auto& stream : price_) used += stream[j];
    return used;
  });
  memory_grad_ = over_;
  away_.assign(slots_ + 1, 0);
  link_grad_.assign(price_.size(), std::vector<double>(slots_, 0));
}

Dual::Way Dual::best_move(const Version& v, const Gap& g, bool store) const {
  Way best;
  best.gain = -kInfinity;
  for (int32_t t : v.tiers) {
    const size_t tier = at(t);
    const double per_load = 1 / p_.machine->tiers[tier].load_bytes_per_s;
    const double per_store = store ? 1 / p_.machine->tiers[tier].store_bytes_per_s : 0;
    Way w;
    w.tier = t;
    w.away = true;
    if (g.head > 0 || v.ratio < 1) {
      // Looser: away all the time, at the cheapest slots.
      w.gain = held_price(g);
      w.scale = v.ratio;
      const auto cheapest = [&](size_t stream, int32_t& slot) {
        const auto tail = cheap_[stream].max(g.lo, g.hi), head = cheap_[stream].max(0, g.head);
        const auto& best_slot = head.value > tail.value ? head : tail;
        slot = best_slot.at;
        return -best_slot.value;
      };
      if (g.load) w.gain -= v.ratio * per_load * cheapest(load_stream_[tier], w.load);
      // A store before the gap may be cheaper still: free is the least it can be.
      if (store && g.since >= g.lo) {
        w.gain -= v.ratio * per_store * cheapest(store_stream_[tier], w.store);
      }
    } else {
      const auto in = load_max_[tier].max(g.lo, g.hi);
      if (g.load && in.at < 0) continue;
      const double back = g.load ? in.value : sum_[at(g.hi)];
      if (g.load) w.load = in.at;
      w.gain = back - sum_[at(g.lo)];
      if (store) {
        const auto out = store_max_[tier].max(g.lo, g.hi);
        double leave = out.value;
        w.store = out.at;
        // Between the write and the gap: while earlier touches read it.
        const auto early = cheap_[store_stream_[tier]].max(g.since, g.lo);
        if (early.at >= 0 && early.value * per_store - sum_[at(g.lo)] > leave) {
          leave = early.value * per_store - sum_[at(g.lo)];
          w.store = early.at;
        }
        w.gain = back + leave;
      }
    }
    if (w.gain > best.gain) best = w;
  }
  return best;
}

Dual::Way Dual::best_rerun(const Version& v, const Gap& g) const {
  Way w;
  w.gain = -kInfinity;
  if (v.ratio < 1) {
    // Encoded where it is: the time that codecs take is left out.
    w.gain = (1 - v.ratio) * held_price(g);
    w.away = true;
    w.scale = 1 - v.ratio;
  }
  if (g.rerun_s == kInfinity) return w;
  const auto spare = spare_max_.max(g.lo, g.hi);
  const double left = std::max(0.0, 1 - spare.value);
  const double gain = held_price(g) - g.rerun_s * left / v.bytes;
  if (gain <= w.gain) return w;
  w.gain = gain;
  w.rerun = spare.at;
  w.away = true;
  w.scale = 1;
  return w;
}

void Dual::take(const Version& v, const Gap& g, const Way& w) {
  if (!w.away) return;
  int32_t lo = g.lo, hi = g.hi;
  const bool moved = w.tier >= 0;
  const bool loose = g.head > 0 || v.ratio < 1;
  if (moved && !loose) {
    if (w.store >= g.lo) lo = w.store + 1;
    if (w.load >= 0) hi = w.load;
  }
  const double held = moved || w.rerun >= 0 ? v.bytes : v.bytes * w.scale;
  if (lo < hi) {
    away_[at(lo)] += held;
    away_[at(hi)] -= held;
  }
  if (g.head > 0) {
    away_[0] += held;
    away_[at(g.head)] -= held;
  }
  const double crossing = v.bytes * (moved ? w.scale : 0);
  if (moved && w.load >= 0) {
    const size_t t = at(w.tier);
    link_grad_[load_stream_[t]][at(w.load)] += crossing / p_.machine->tiers[t].load_bytes_per_s;
  }
  if (moved && w.store >= 0) {
    const size_t t = at(w.tier);
    link_grad_[store_stream_[t]][at(w.store)] += crossing / p_.machine->tiers[t].store_bytes_per_s;
  }
  if (w.rerun >= 0) {
    for (auto& stream : link_grad_) stream[at(w.rerun)] -= g.rerun_s;
  }
}

double Dual::gain(const Version& v) {
  if (v.gaps.size() == 1 || !v.store) {
    double sum = 0;
    for (const Gap& g : v.gaps) {
      const Way move = best_move(v, g, v.store);
      const Way rerun = best_rerun(v, g);
      const Way& best = move.gain >= rerun.gain ? move : rerun;
      if (best.gain <= 0) continue;
      sum += best.gain * v.bytes;
      take(v, g, best);
    }
    return sum;
  }
  // One store for several gaps: the first of them that moves pays for it.
  const size_t n = v.gaps.size();
  std::vector<Way> stored, moves, reruns;
  std::vector<double> rest(n + 1, 0);  // of the gaps from i on, once it is stored
  for (const Gap& g : v.gaps) {
    stored.push_back(best_move(v, g, true));
    moves.push_back(best_move(v, g, false));
    reruns.push_back(best_rerun(v, g));
  }
  for (size_t i = n; i-- > 0;) {
    rest[i] = rest[i + 1] + std::max({0.0, moves[i].gain, reruns[i].gain});
  }
  double best = 0, before = 0;
  size_t first = n;
  for (size_t i = 0; i < n; ++i) {
    const double with = before + stored[i].gain + rest[i + 1];
    if (with > best) {
      best = with;
      first = i;
    }
    before += std::max(0.0, reruns[i].gain);
  }
  if (before >= best) {
    best = before;
    first = n;
  }
  for (size_t i = 0; i < n; ++i) {
    const Way& move = i == first ? stored[i] : moves[i];
    const bool moved = i == first || (i > first && move.gain >= reruns[i].gain);
    const Way& way = moved ? move : reruns[i];
    if (i == first || way.gain > 0) take(v, v.gaps[i], way);
  }
  return best * v.bytes;
}

double Dual::evaluate() {
  prepare();
  double bound = 0;
  for (size_t k = 0; k < cost_s_.size(); ++k) {
    double used = 0;
    for (const auto& stream : price_) used += stream[2 * k + 1];
    bound += cost_s_[k] * (1 - used) + memory_[k] * over_[k];
  }
  for (const Version& v : versions_) bound -= gain(v);
  double away = 0;
  norm_ = 0;
  for (size_t j = 0; j < slots_; ++j) {
    away += away_[j];
    if (j % 2 == 1) memory_grad_[j / 2] -= away;
  }
  for (size_t k = 0; k < memory_grad_.size(); ++k) {
    double& m = memory_grad_[k];
    m /= rate_;  // prices of memory are stepped in seconds of the link
    if (m < 0 && memory_[k] <= 0) m = 0;
    norm_ += m * m;
  }
  for (size_t s = 0; s < price_.size(); ++s) {
    for (size_t j = 0; j < slots_; ++j) {
      double& g = link_grad_[s][j];
      if (j % 2 == 1) g -= cost_s_[j / 2];
      if (g < 0 && price_[s][j] <= 0) g = 0;
      norm_ += g * g;
    }
  }
  return bound;
}

void Dual::step(double length) {
  for (size_t k = 0; k < memory_.size(); ++k) {
    memory_[k] = std::max(0.0, memory_[k] + length * memory_grad_[k] / rate_);
  }
  for (size_t j = 0; j < slots_; ++j) {
    double sum = 0;
    for (size_t s = 0; s < price_.size(); ++s) {
      price_[s][j] = std::max(0.0, price_[s][j] + length * link_grad_[s][j]);
      sum += price_[s][j];
    }
    if (sum <= 1) continue;
    for (auto& stream : price_) stream[j] /= sum;
  }
}

std::pair<int32_t, int32_t> Dual::windows(int32_t k) const {
  // Bytes of gaps across k by where they begin and end.
  std::vector<double> begins(slots_ + 1, 0), ends(slots_ + 1, 0);
  const int32_t slot = 2 * k + 1;
  for (const Version& v : versions_) {
    for (const Gap& g : v.gaps) {
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
    double need = over(k), compute = 0, best = 0;
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

void Dual::price_windows(int32_t k, int32_t from, int32_t to, double share) {
  for (auto& stream : price_) std::fill(stream.begin(), stream.end(), 0);
  std::fill(memory_.begin(), memory_.end(), 0);
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
  memory_[at(k)] = dearest;
  // Streams that more than one tier uses, or both directions, share a second.
  for (size_t j = 0; j < slots_; ++j) {
    double sum = 0;
    for (const auto& stream : price_) sum += stream[j];
    if (sum <= 1) continue;
    for (auto& stream : price_) stream[j] /= sum;
  }
}

}  // namespace

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

// What must cross the link in each cycle, whatever the order, where that is more.
Bound with_cycle(const Problem& p, Bound bound) {
  const Nanos link = cycle_link_ns(p);
  bound.link_ns = std::max(bound.link_ns, link);
  if (link <= bound.total_ns) return bound;
  bound.total_ns = link;
  bound.reason = text_of("what cannot stay on the device from cycle to cycle takes %.3f ms of the link",
                         static_cast<double>(link) * 1e-6);
  return bound;
}

Bound bound_of_order(const Problem& p, int iterations, Nanos upper_ns) {
  Bound out;
  out.compute_ns = compute_ns(p);
  out.total_ns = out.compute_ns;
  out.reason = text_of("every op runs once: %.3f ms", static_cast<double>(out.compute_ns) * 1e-6);
  if (p.size() == 0 || p.machine->tiers.size() < 2) return out;
  Dual dual(p);
  if (!dual.over_budget()) return out;
  const int32_t k = dual.fullest();
  const auto [from, to] = dual.windows(k);
  double best = dual.compute_s();
  Dual::Prices prices = dual.prices();
  for (double share : {1.0, 0.9, 0.75, 0.5, 0.25}) {
    dual.price_windows(k, from, to, share);
    const Dual::Prices tried = dual.prices();
    const double bound = dual.evaluate();
    if (bound <= best) continue;
    best = bound;
    prices = tried;
  }
  dual.set(prices);
  const double target = static_cast<double>(upper_ns) * 1e-9;
  double factor = 1;
  int stuck = 0;
  for (int i = 0; i < iterations; ++i) {
    const double bound = dual.evaluate();
    if (bound > best * (1 + 1e-6)) {
      best = bound;
      prices = dual.prices();
      stuck = 0;
    } else if (++stuck >= kPatience) {
      // Shorter steps from the best prices.
      factor *= 0.5;
      stuck = 0;
      dual.set(prices);
      dual.evaluate();
    }
    if (dual.norm() <= 0 || best >= target) break;
    dual.step(factor * std::max(0.0, target - bound) / dual.norm());
  }
  // Sums of doubles: a millionth is more than they can be off.
  const Nanos link = static_cast<Nanos>(best * (1 - 1e-6) * 1e9);
  out.link_ns = link;
  if (link <= out.compute_ns) return out;
  out.total_ns = link;
  const OpId op = p.order[static_cast<size_t>(k)];
  out.reason = text_of("in this order, %s more than the budget are live at op '%s'; getting them out "
                       "of the way and back takes %.3f ms more than the %.3f ms of compute",
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
