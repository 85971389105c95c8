#include "headrace/plan/placement_state.h"

#include <algorithm>

namespace headrace::plan {
namespace {

size_t at(int32_t i) { return static_cast<size_t>(i); }

// Bytes per position with nothing kept: what touches need, workspace, constants, the reserve.
std::vector<Bytes> touched_bytes(const Problem& p, const std::vector<Bytes>& reserve) {
  std::vector<Bytes> bytes = reserve;
  bytes.resize(at(p.size()), 0);
  for (Bytes& b : bytes) b += p.fixed_bytes;
  for (int32_t k = 0; k < p.size(); ++k) bytes[at(k)] += p.workspace[at(k)];
  for (const Value& v : p.values) {
    for (int32_t k : v.touches) bytes[at(k)] += v.bytes;
  }
  return bytes;
}

}  // namespace

State::State(const Problem& problem, const PlaceOptions& options)
    : p_(&problem),
      values_(problem.values.size()),
      pinned_(problem.values.size(), false),
      forbidden_(problem.values.size()),
      reruns_(at(problem.size())),
      extra_ns_(at(problem.size()), 0),
      extra_bytes_(at(problem.size()), 0),
      birth_bytes_(at(problem.size()), 0),
      planned_(touched_bytes(problem, options.reserve)),
      dirty_(at(problem.size()), false),
      value_stamp_(problem.values.size(), 0),
      op_stamp_(at(problem.size()), 0),
      save_mark_(problem.values.size(), -1),
      recompute_(options.recompute && problem.request->recompute),
      parts_(options.parts) {
  const std::vector<TierInfo>& tiers = problem.machine->tiers;
  tiers_.assign(tiers.size(), Profile(std::vector<Bytes>(at(problem.size()), 0)));
  for (int32_t k = 0; k < problem.size(); ++k) {
    for (int32_t v : problem.births[at(k)]) birth_bytes_[at(k)] += problem.values[at(v)].bytes;
  }
  for (int32_t v = 0; v < values(); ++v) {
    const Value& value = problem.values[at(v)];
    ValueState& s = values_[at(v)];
    for (int32_t k : value.touches) s.touches.push_back({k, 0, true});
    s.gaps.resize(s.touches.size() + 1);
    for (int32_t i = 0; i < static_cast<int32_t>(s.gaps.size()); ++i) charge(v, i, 1);
    pinned_[at(v)] = value.rule != nullptr && value.rule->pinned;
    for (size_t t = 1; t < tiers.size(); ++t) {
      const TierId tier(static_cast<int64_t>(t));
      if (value.home == tier || may_store(problem, value, tier)) continue;
      forbidden_[at(v)].resize(tiers.size(), false);
      forbidden_[at(v)][t] = true;
    }
  }
  flush();
  next_over_.assign(at(problem.size()), -1);
  for (int32_t k = problem.size() - 1; k >= 0; --k) {
    const bool later = k + 1 < problem.size();
    next_over_[at(k)] = over(k) > 0 ? k : (later ? next_over_[at(k + 1)] : -1);
  }
}

bool State::allowed_tier(int32_t v, TierId tier) const {
  return forbidden_[at(v)].empty() || !forbidden_[at(v)][tier.index()];
}

Span State::span(int32_t v, int32_t gap) const {
  const Value& value = p_->values[at(v)];
  const ValueState& s = values_[at(v)];
  const int32_t n = p_->size();
  const int32_t last = static_cast<int32_t>(s.touches.size());
  Span span;
  const bool there_at_entry =
      value.producer < 0 && (value.persistent || value.on_device_at_entry || value.home.valid());
  if (gap > 0 && gap < last) {
    span.after = s.touches[at(gap - 1)].position;
    span.before = s.touches[at(gap)].position;
    span.lo = span.after + 1;
    span.hi = span.before - 1;
    span.exists = true;
    return span;
  }
  if (p_->cyclic && value.persistent) {
    // The gap around the end of the cycle is the last one; the first is a part of it.
    if (gap == 0 && last > 0) return span;
    span.exists = true;
    span.wraps = last > 0;
    span.loads_back = last > 0;
    span.after = last > 0 ? s.touches.back().position : -1;
    span.before = last > 0 ? s.touches.front().position : n;
    span.lo = span.after + 1;
    span.hi = n - 1;
    if (last > 0) span.lo2 = 0, span.hi2 = span.before - 1;
    return span;
  }
  if (gap == 0) {
    span.exists = there_at_entry;
    span.after = -1;
    span.before = last > 0 ? s.touches.front().position : n;
    span.lo = 0;
    span.hi = span.before - 1;
    span.loads_back = last > 0;
    return span;
  }
  span.exists = value.persistent;
  span.after = s.touches.back().position;
  span.before = n;
  span.lo = span.after + 1;
  span.hi = n - 1;
  span.loads_back = false;
  return span;
}

int32_t State::gap_at(int32_t v, int32_t k) const {
  const std::vector<Touch>& touches = values_[at(v)].touches;
  const auto next = std::lower_bound(touches.begin(), touches.end(), k,
                                     [](const Touch& t, int32_t p) { return t.position < p; });
  if (next != touches.end() && next->position == k) return -1;
  int32_t gap = static_cast<int32_t>(next - touches.begin());
  const bool wraps = p_->cyclic && p_->values[at(v)].persistent;
  if (wraps && gap == 0) gap = static_cast<int32_t>(touches.size());
  return span(v, gap).exists ? gap : -1;
}

Bytes State::kept_bytes(int32_t v, const Gap& gap) const {
  const Value& value = p_->values[at(v)];
  switch (gap.way) {
    case Way::kKeep: return value.bytes;
    case Way::kMove: return value.bytes - gap.moved;
    case Way::kCompress: return encoded_form(v, gap.codec);
    case Way::kRecompute:
    case Way::kMoveCompressed: return 0;
  }
  return value.bytes;
}

int32_t State::index_of(int32_t v, int32_t position) const {
  const std::vector<Touch>& touches = values_[at(v)].touches;
  const auto it = std::lower_bound(touches.begin(), touches.end(), position,
                                   [](const Touch& t, int32_t p) { return t.position < p; });
  return static_cast<int32_t>(it - touches.begin());
}

bool State::tier_has_room(int32_t v, int32_t gap, TierId tier, Bytes bytes) const {
  const Bytes capacity = p_->machine->tiers[tier.index()].capacity;
  if (capacity <= 0 || p_->values[at(v)].home == tier) return true;
  const Span s = span(v, gap);
  const int32_t lo = std::max(0, s.after), hi = std::min(p_->size() - 1, s.before);
  const Profile& held = tiers_[tier.index()];
  if (s.wraps) {
    return held.max(lo, s.hi) + bytes <= capacity &&
           held.max(0, std::min(p_->size() - 1, s.before)) + bytes <= capacity;
  }
  return held.max(lo, hi) + bytes <= capacity;
}

void State::save(int32_t v) {
  if (open_.empty() || save_mark_[at(v)] == open_.back().transaction) return;
  save_mark_[at(v)] = open_.back().transaction;
  saved_.push(v, values_[at(v)]);
}

void State::add(int32_t lo, int32_t hi, Bytes bytes, int32_t tier) {
  if (lo > hi || bytes == 0) return;
  if (tier == 0) {
    changes_.push_back({lo, bytes});
    changes_.push_back({hi + 1, -bytes});
    return;
  }
  tiers_[at(tier)].add(lo, hi, bytes);
  if (!open_.empty()) added_.push_back({lo, hi, bytes, tier});
}

// One change takes away a gap and adds its two halves: most of what it adds to the device's bytes
// cancels out, and what is left is added once.
void State::flush() {
  if (changes_.empty()) return;
  std::sort(changes_.begin(), changes_.end());
  int32_t lo = 0;
  Bytes sum = 0;  // of the positions from `lo` on
  for (size_t i = 0; i < changes_.size();) {
    const int32_t k = changes_[i].first;
    Bytes later = sum;
    for (; i < changes_.size() && changes_[i].first == k; ++i) later += changes_[i].second;
    if (later == sum) continue;
    if (sum != 0) {
      planned_.add(lo, k - 1, sum);
      if (!open_.empty()) added_.push_back({lo, k - 1, sum, 0});
    }
    lo = k;
    sum = later;
  }
  changes_.clear();
}

// Adds (sign 1) or takes away (-1) what a gap holds, on the device and in its tier.
void State::charge(int32_t v, int32_t gap, int sign) {
  const Span s = span(v, gap);
  if (sign > 0 && gap > 0 && !values_[at(v)].touches[at(gap - 1)].own) {
    recount(values_[at(v)].touches[at(gap - 1)].position);
  }
  const bool ends = gap < static_cast<int32_t>(values_[at(v)].touches.size());
  if (sign > 0 && ends && !values_[at(v)].touches[at(gap)].own) {
    recount(values_[at(v)].touches[at(gap)].position);
  }
  if (!s.exists) return;
  const Gap& g = values_[at(v)].gaps[at(gap)];
  const Bytes kept = sign * kept_bytes(v, g);
  add(s.lo, s.hi, kept);
  add(s.lo2, s.hi2, kept);
  if (g.codec != Codec::kNone) charge_codec(v, g, s, sign);
  const bool moves = g.way == Way::kMove || g.way == Way::kMoveCompressed;
  if (!moves || p_->values[at(v)].home == g.tier) return;
  const Bytes moved = g.way == Way::kMove ? g.moved : encoded_form(v, g.codec);
  const int32_t hi = std::min(p_->size() - 1, s.before);
  if (s.wraps) {
    add(std::max(0, s.after), p_->size() - 1, sign * moved, g.tier.value);
    add(0, std::min(hi, s.after - 1), sign * moved, g.tier.value);
  } else {
    add(std::max(0, s.after), hi, sign * moved, g.tier.value);
  }
}

void State::begin() {
  open_.push_back({saved_.size(), added_.size(), rerun_log_.size(), recounted_.size(),
                   coded_.size(), transactions_++});
}

void State::commit() {
  open_.pop_back();
  if (!open_.empty()) return;
  saved_.clear();
  added_.clear();
  rerun_log_.clear();
  recounted_.clear();
  coded_.clear();
}

void State::rollback() {
  const Mark mark = open_.back();
  for (; added_.size() > mark.added; added_.pop_back()) {
    const Added& a = added_.back();
    (a.tier == 0 ? planned_ : tiers_[at(a.tier)]).add(a.lo, a.hi, -a.bytes);
  }
  for (; rerun_log_.size() > mark.reruns; rerun_log_.pop_back()) {
    const Rerun& r = rerun_log_.back();
    auto& list = reruns_[at(r.position)];
    if (r.added) {
      list.erase(std::find(list.begin(), list.end(), r.value));
    } else {
      list.push_back(r.value);
    }
  }
  uncode(mark.coded);
  while (saved_.size() > mark.saved) {
    Saved& last = saved_.pop();
    std::swap(values_[at(last.value)], last.state);
  }
  for (; recounted_.size() > mark.recounted; recounted_.pop_back()) {
    const Recounted& r = recounted_.back();
    put_extra(r.position, r.extra_ns, r.extra_bytes);
  }
  commit();
}

void State::set(int32_t v, int32_t gap, const Gap& way) {
  HR_CHECK(way.way != Way::kRecompute, "running again is asked for by try_rerun");
  const int32_t before = span(v, gap).before;
  if (values_[at(v)].gaps[at(gap)].way == Way::kRecompute) {
    unrerun(v, gap);
    gap = index_of(v, before);
  }
  save(v);
  charge(v, gap, -1);
  values_[at(v)].gaps[at(gap)] = way;
  charge(v, gap, 1);
  settle();
}

Bytes State::passing(int32_t v, int32_t position) const {
  const ValueState& s = values_[at(v)];
  const Bytes bytes = p_->values[at(v)].bytes;
  const int32_t i = index_of(v, position);
  if (i == static_cast<int32_t>(s.touches.size()) || s.touches[at(i)].position != position ||
      s.touches[at(i)].own || p_->values[at(v)].persistent) {
    return 0;
  }
  if (i + 1 == static_cast<int32_t>(s.touches.size())) return bytes;
  const Gap& next = s.gaps[at(i + 1)];
  if (next.way == Way::kRecompute) return bytes;
  // Moved only where it has just come from: what has no copy yet cannot leave before the op runs.
  const Gap& from = s.gaps[at(i)];
  const bool back = next.way == Way::kMove && from.way == Way::kMove && from.tier == next.tier;
  return back && next.moved <= from.moved ? next.moved : 0;
}

void State::put_extra(int32_t k, Nanos ns, Bytes bytes) {
  extra_total_ += ns - extra_ns_[at(k)];
  extra_ns_[at(k)] = ns;
  planned_.add(k, k, bytes - extra_bytes_[at(k)]);
  extra_bytes_[at(k)] = bytes;
}

void State::recount(int32_t k) {
  if (k >= p_->size() || dirty_[at(k)]) return;
  dirty_[at(k)] = true;
  to_count_.push_back(k);
}

// One change asks for the same positions again and again, and a position may have hundreds of ops
// that run again: each is counted once, at the end of the change.
void State::settle() {
  for (size_t i = 0; i < to_count_.size(); ++i) {
    dirty_[at(to_count_[i])] = false;
    count(to_count_[i]);
  }
  to_count_.clear();
  flush();
}

// What settle() would have done is taken back anyway.
void State::drop_changes() {
  for (int32_t k : to_count_) dirty_[at(k)] = false;
  to_count_.clear();
  changes_.clear();
}

// The time and the bytes of what runs again before position k. The op of the position needs its
// bytes only after that.
void State::count(int32_t k) {
  Nanos ns = 0;
  Bytes pulse = 0, passes = 0;
  const std::vector<int32_t>& list = reruns_[at(k)];
  const int32_t ran = ++stamp_;  // values that run again
  for (int32_t v : list) value_stamp_[at(v)] = ran;
  for (int32_t v : list) {
    const int32_t op = p_->values[at(v)].producer;
    if (op_stamp_[at(op)] == ran) continue;
    op_stamp_[at(op)] = ran;
    ns += p_->cost[at(op)];
    Bytes transient = p_->workspace[at(op)];
    for (int32_t other : p_->births[at(op)]) {
      if (value_stamp_[at(other)] != ran) transient += p_->values[at(other)].bytes;
    }
    pulse = std::max(pulse, transient);
  }
  const int32_t seen = ++stamp_;
  const auto pass = [&](int32_t v) {
    if (value_stamp_[at(v)] == seen) return;
    value_stamp_[at(v)] = seen;
    passes += passing(v, k);
  };
  for (int32_t v : list) {
    pass(v);
    for (int32_t input : p_->reads[at(p_->values[at(v)].producer)]) pass(input);
  }
  pulse = std::max(pulse, coding_pulse(k, &ns));
  const Bytes extra = std::max(pulse - op_bytes(k), -passes);
  if (!open_.empty()) recounted_.push_back({k, extra_ns_[at(k)], extra_bytes_[at(k)]});
  put_extra(k, ns, extra);
}

}  // namespace headrace::plan
