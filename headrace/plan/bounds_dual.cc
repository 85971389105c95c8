#include "headrace/plan/bounds_dual.h"

#include <algorithm>

namespace headrace::plan {

BoundDual::BoundDual(const Problem& p)
    : p_(p), n_(p.size()), slots_(static_cast<size_t>(2 * n_)) {
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

BoundVersion BoundDual::version_of(const Value& v) const {
  BoundVersion version;
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

void BoundDual::add_value(const Value& v) {
  if (v.rule != nullptr && v.rule->pinned) return;
  if (v.touches.empty() && !v.persistent) return;
  double rerun = kInfinity;
  if (p_.request->recompute && v.can_recompute) {
    const size_t k = at(v.producer);
    rerun = cost_s_[k] / static_cast<double>(p_.graph->at(p_.order[k]).outputs.size());
  }
  BoundVersion version = version_of(v);
  int32_t since = v.producer >= 0 ? 2 * v.producer + 2 : 0;
  size_t write = 0;
  const auto push = [&](int32_t after, int32_t before, int32_t head, bool load) {
    BoundGap g;
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

void BoundDual::prepare() {
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

BoundDual::Way BoundDual::best_move(const BoundVersion& v, const BoundGap& g, bool store) const {
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

BoundDual::Way BoundDual::best_rerun(const BoundVersion& v, const BoundGap& g) const {
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

void BoundDual::take(const BoundVersion& v, const BoundGap& g, const Way& w) {
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

double BoundDual::gain(const BoundVersion& v) {
  if (v.gaps.size() == 1 || !v.store) {
    double sum = 0;
    for (const BoundGap& g : v.gaps) {
      if (held_price(g) <= 0) continue;  // nothing is to be had
      const Way move = best_move(v, g, v.store);
      const Way rerun = best_rerun(v, g);
      const Way& best = move.gain >= rerun.gain ? move : rerun;
      if (best.gain <= 0) continue;
      sum += best.gain * v.bytes;
      take(v, g, best);
    }
    return sum;
  }
  if (std::all_of(v.gaps.begin(), v.gaps.end(),
                  [this](const BoundGap& g) { return held_price(g) <= 0; })) return 0;
  // One store for several gaps: the first of them that moves pays for it.
  const size_t n = v.gaps.size();
  stored_.clear();
  moves_.clear();
  reruns_.clear();
  for (const BoundGap& g : v.gaps) {
    stored_.push_back(best_move(v, g, true));
    moves_.push_back(best_move(v, g, false));
    reruns_.push_back(best_rerun(v, g));
  }
  rest_.assign(n + 1, 0);  // of the gaps from i on, once it is stored
  for (size_t i = n; i-- > 0;) {
    rest_[i] = rest_[i + 1] + std::max({0.0, moves_[i].gain, reruns_[i].gain});
  }
  double best = 0, before = 0;
  size_t first = n;
  for (size_t i = 0; i < n; ++i) {
    const double with = before + stored_[i].gain + rest_[i + 1];
    if (with > best) {
      best = with;
      first = i;
    }
    before += std::max(0.0, reruns_[i].gain);
  }
  if (before >= best) {
    best = before;
    first = n;
  }
  for (size_t i = 0; i < n; ++i) {
    const Way& move = i == first ? stored_[i] : moves_[i];
    const bool moved = i == first || (i > first && move.gain >= reruns_[i].gain);
    const Way& way = moved ? move : reruns_[i];
    if (i == first || way.gain > 0) take(v, v.gaps[i], way);
  }
  return best * v.bytes;
}

double BoundDual::evaluate() {
  prepare();
  double bound = 0;
  for (size_t k = 0; k < cost_s_.size(); ++k) {
    double used = 0;
    for (const auto& stream : price_) used += stream[2 * k + 1];
    bound += cost_s_[k] * (1 - used) + memory_[k] * over_[k];
  }
  for (const BoundVersion& v : versions_) bound -= gain(v);
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

void BoundDual::step(double length) {
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

}  // namespace headrace::plan
