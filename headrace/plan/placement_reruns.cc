// Ops that run again in a state, and the touches that they add to what they read.
#include <algorithm>

#include "headrace/plan/placement_state.h"

namespace headrace::plan {
namespace {

// Ops of one chain that may run again for one gap: along a path, and in all.
constexpr int kMostDepth = 24;
constexpr int32_t kMostChain = 64;

bool away(Way way) { return way != Way::kKeep; }

size_t at(int32_t i) { return static_cast<size_t>(i); }

}  // namespace

void State::add_rerun(int32_t v, int32_t position) {
  reruns_[at(position)].push_back(v);
  if (!open_.empty()) rerun_log_.push_back({position, v, true});
  recount(position);
}

void State::remove_rerun(int32_t v, int32_t position) {
  auto& list = reruns_[at(position)];
  list.erase(std::find(list.begin(), list.end(), v));
  if (!open_.empty()) rerun_log_.push_back({position, v, false});
  recount(position);
}

bool State::same_version(int32_t v, int32_t from, int32_t to) const {
  const std::vector<int32_t>& writes = p_->values[at(v)].writes;
  const auto next = std::upper_bound(writes.begin(), writes.end(), from);
  return next == writes.end() || *next >= to;
}

// Puts a touch without a purpose yet at `position`, inside or after the gap: both sides keep the
// way of the gap (one that runs again must have been cleared).
void State::split(int32_t v, int32_t gap, int32_t position) {
  save(v);
  charge(v, gap, -1);
  ValueState& s = values_[at(v)];
  s.touches.insert(s.touches.begin() + gap, {position, 0, false});
  s.gaps.insert(s.gaps.begin() + gap, s.gaps[at(gap)]);
  add(position, position, p_->values[at(v)].bytes);
  charge(v, gap, 1);
  charge(v, gap + 1, 1);
}

bool State::need(int32_t v, int32_t position, double ns_per_byte, int depth) {
  int32_t i = index_of(v, position);
  const ValueState& s = values_[at(v)];
  if (i < static_cast<int32_t>(s.touches.size()) && s.touches[at(i)].position == position) {
    save(v);
    ++values_[at(v)].touches[at(i)].demands;
    return true;
  }
  const Value& value = p_->values[at(v)];
  const bool wraps = p_->cyclic && value.persistent;
  // The wrapping gap of a cycle is not split.
  if (wraps && (i == 0 || i == static_cast<int32_t>(s.touches.size()))) {
    const Gap& around = s.gaps.back();
    if (away(around.way)) return false;
    save(v);
    charge(v, static_cast<int32_t>(s.touches.size()), -1);
    ValueState& t = values_[at(v)];
    const bool front = i == 0;
    t.touches.insert(t.touches.begin() + i, {position, 1, false});
    t.gaps.insert(front ? t.gaps.begin() + 1 : t.gaps.begin() + i, Gap{});
    add(position, position, value.bytes);
    charge(v, front ? 1 : i, 1);
    charge(v, static_cast<int32_t>(t.touches.size()), 1);
    return true;
  }
  const Span span_before = span(v, i);
  const Gap old = s.gaps[at(i)];
  const bool dead = !span_before.exists;
  if (dead && i == 0) return false;
  if (old.way == Way::kCompress || old.way == Way::kMoveCompressed) return false;
  const bool ran_again = old.way == Way::kRecompute;
  if (ran_again) unrerun(v, i);
  i = index_of(v, position);
  split(v, i, position);
  ++values_[at(v)].touches[at(i)].demands;
  if (ran_again) return rerun(v, i, ns_per_byte, depth + 1);
  if (old.way == Way::kMove) {
    // Back for good when the rest of the gap has room for it.
    const Span rest = span(v, i + 1);
    flush();
    if (rest.exists && planned_.max(rest.lo, rest.hi) + old.moved <= p_->budget) {
      set(v, i + 1, Gap{});
    }
    return true;
  }
  const bool cheap =
      static_cast<double>(p_->cost[at(std::max(0, value.producer))]) <=
      ns_per_byte * static_cast<double>(value.bytes);
  if (dead && cheap && rerunnable(v, i, depth + 1)) return rerun(v, i, ns_per_byte, depth + 1);
  return true;
}

// Whether rerun() may be asked, as far as its own inputs tell.
bool State::rerunnable(int32_t v, int32_t gap, int depth) const {
  const Value& value = p_->values[at(v)];
  const Span s = span(v, gap);
  if (!recompute_ || !value.can_recompute || depth > kMostDepth || !s.exists || s.wraps ||
      !s.loads_back || s.lo > s.hi) {
    return false;
  }
  for (int32_t input : p_->reads[at(value.producer)]) {
    if (!same_version(input, value.producer, s.before)) return false;
    const ValueState& in = values_[at(input)];
    if (in.touches.front().position > s.before) return false;
    const bool around = p_->cyclic && p_->values[at(input)].persistent &&
                        in.touches.back().position < s.before && away(in.gaps.back().way);
    if (around) return false;
  }
  return true;
}

bool State::rerun(int32_t v, int32_t gap, double ns_per_byte, int depth) {
  if (!rerunnable(v, gap, depth) || --chain_left_ < 0) return false;
  const int32_t op = p_->values[at(v)].producer;
  const int32_t position = span(v, gap).before;
  save(v);
  charge(v, gap, -1);
  values_[at(v)].gaps[at(gap)] = {Way::kRecompute, Codec::kNone, TierId(), 0};
  charge(v, gap, 1);
  add_rerun(v, position);
  for (int32_t input : p_->reads[at(op)]) {
    if (!need(input, position, ns_per_byte, depth)) return false;
  }
  recount(position);
  return true;
}

bool State::try_rerun(int32_t v, int32_t gap, double ns_per_byte) {
  if (values_[at(v)].gaps[at(gap)].way == Way::kRecompute) return false;
  begin();
  const int32_t before = span(v, gap).before;
  save(v);
  set(v, gap, Gap{});
  chain_left_ = kMostChain;
  const bool done = rerun(v, index_of(v, before), ns_per_byte, 0);
  if (done) {
    settle();
    commit();
  } else {
    drop_changes();
    rollback();
  }
  return done;
}

// Takes back that the op of `v` runs again at the end of the gap, which is kept then.
void State::unrerun(int32_t v, int32_t gap) {
  const int32_t position = span(v, gap).before;
  save(v);
  charge(v, gap, -1);
  values_[at(v)].gaps[at(gap)] = Gap{};
  charge(v, gap, 1);
  remove_rerun(v, position);
  for (int32_t input : p_->reads[at(p_->values[at(v)].producer)]) remove_demand(input, position);
  recount(position);
}

void State::remove_demand(int32_t v, int32_t position) {
  save(v);
  int32_t i = index_of(v, position);
  Touch& touch = values_[at(v)].touches[at(i)];
  if (--touch.demands > 0 || touch.own) return;
  const bool was_dead = !span(v, static_cast<int32_t>(values_[at(v)].touches.size())).exists &&
                        i + 1 == static_cast<int32_t>(values_[at(v)].touches.size());
  Gap left = values_[at(v)].gaps[at(i)];
  if (left.way == Way::kRecompute) {
    unrerun(v, i);
    i = index_of(v, position);
    left = Gap{};
  }
  const bool wraps = p_->cyclic && p_->values[at(v)].persistent;
  const int32_t last = static_cast<int32_t>(values_[at(v)].touches.size());
  const Gap right = values_[at(v)].gaps[at(i + 1)];
  charge(v, i, -1);
  charge(v, i + 1, -1);
  if (wraps && i == 0 && last > 1) charge(v, last, -1);
  add(position, position, -p_->values[at(v)].bytes);
  ValueState& s = values_[at(v)];
  s.touches.erase(s.touches.begin() + i);
  s.gaps.erase(s.gaps.begin() + i);
  // What is left of the right side: its reruns stay valid, since they are for the touch that ends
  // it.
  s.gaps[at(i)] = was_dead ? Gap{} : (away(right.way) ? right : left);
  const bool inside = i > 0 && i < static_cast<int32_t>(s.touches.size());
  if (s.gaps[at(i)].codec != Codec::kNone && !inside) s.gaps[at(i)] = Gap{};
  charge(v, i, 1);
  if (wraps && i == 0 && last > 1) charge(v, last - 1, 1);
}

}  // namespace headrace::plan
