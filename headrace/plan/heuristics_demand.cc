// The policies that act when an op needs something: on-demand Belady, checkpoints, recompute
// everything, spill everything.
#include <algorithm>
#include <cmath>
#include <set>

#include "headrace/plan/heuristics_builder.h"

namespace headrace::plan {
namespace {

class OnDemand {
 public:
  OnDemand(const Problem& p, Policy policy)
      : p_(p), policy_(policy), here_(p.values.size(), false), copy_(p.values.size()),
        next_(p.values.size(), 0), checkpoint_(p.values.size(), false) {}

  PolicySchedule run() {
    PolicySchedule r;
    for (const Value& v : p_.values) {
      if (v.rule == nullptr || !v.rule->remote) continue;
      r.reason = "does not move what rules want moved";
      r.schedule.at_entry.assign(p_.values.size(), true);
      return r;
    }
    find_last_needs();
    find_regenerable();
    choose_checkpoints();
    enter();
    for (int32_t k = 0; k < p_.size() && failure_.empty(); ++k) step(k);
    if (failure_.empty()) exit();
    r.work = static_cast<int64_t>(s_.actions.size());
    r.schedule = std::move(s_);
    r.reason = failure_;
    if (failure_.empty()) judge_policy(p_, r);
    return r;
  }

 private:
  bool moves() const {
    return policy_ == Policy::kBelady || policy_ == Policy::kSpillEverything;
  }
  const Value& value(int32_t v) const { return p_.values[static_cast<size_t>(v)]; }
  bool pinned(int32_t v) const {
    return value(v).rule != nullptr && value(v).rule->pinned;
  }
  // May it leave the device and come back by a load?
  bool movable(int32_t v) const {
    return !pinned(v) && (value(v).home.valid() || storing_tier(p_, value(v)).valid());
  }
  bool gathered(int32_t v) const {
    return p_.graph->at(value(v).tensor).role == Role::kGathered;
  }

  // sqrt(n) of the values that could be brought back by running ops, evenly by production.
  void choose_checkpoints() {
    if (policy_ != Policy::kCheckpointBlocks) return;
    std::vector<std::pair<int32_t, int32_t>> candidates;  // producer, value
    for (size_t v = 0; v < p_.values.size(); ++v) {
      const Value& x = p_.values[v];
      const bool idles = x.touches.size() > 1 && x.touches.back() - x.producer > 2;
      if (regenerable_[v] && idles) candidates.push_back({x.producer, static_cast<int32_t>(v)});
    }
    std::sort(candidates.begin(), candidates.end());
    const size_t block = static_cast<size_t>(
        std::max(1.0, std::round(std::sqrt(static_cast<double>(candidates.size())))));
    for (size_t i = 0; i < candidates.size(); i += block) {
      checkpoint_[static_cast<size_t>(candidates[i].second)] = true;
    }
  }

  void push(ActionKind kind, int32_t before, int32_t v, TierId tier = TierId()) {
    Action a;
    a.kind = kind;
    a.before = before;
    a.value = v;
    a.tier = tier;
    s_.actions.push_back(a);
  }

  void enter() {
    s_.at_entry.assign(p_.values.size(), false);
    for (size_t i = 0; i < p_.values.size(); ++i) {
      const int32_t v = static_cast<int32_t>(i);
      const bool spilled = policy_ == Policy::kSpillEverything && movable(v) && !gathered(v) &&
                           (p_.cyclic || value(v).home.valid());
      copy_[i] = value(v).home;
      if (value(v).producer >= 0) continue;
      if (spilled) {
        if (!copy_[i].valid()) copy_[i] = storing_tier(p_, value(v));
        continue;
      }
      s_.at_entry[i] = here_[i] = true;
      bytes_ += value(v).bytes;
      if (moves()) idle_.insert({-next_touch(v, -1), v});
    }
  }

  // The next touch after position k; the step's end when there is none.
  int32_t next_touch(int32_t v, int32_t k) {
    const auto& touches = value(v).touches;
    size_t& i = next_[static_cast<size_t>(v)];
    while (i < touches.size() && touches[i] <= k) ++i;
    return i < touches.size() ? touches[i] : p_.size();
  }

  bool held_to_end(int32_t v) const {
    return value(v).persistent || p_.graph->at(value(v).tensor).role == Role::kOutput;
  }

  void appear(int32_t v) {
    if (here_[static_cast<size_t>(v)]) return;
    here_[static_cast<size_t>(v)] = true;
    bytes_ += value(v).bytes;
  }
  void vanish(int32_t v) {
    if (!here_[static_cast<size_t>(v)]) return;
    here_[static_cast<size_t>(v)] = false;
    bytes_ -= value(v).bytes;
  }

  void evict(int32_t v, int32_t before) {
    TierId& copy = copy_[static_cast<size_t>(v)];
    if (!copy.valid()) {
      copy = storing_tier(p_, value(v));
      push(ActionKind::kStore, before, v, copy);
    }
    push(ActionKind::kDrop, before, v);
    vanish(v);
  }

  Bytes missing_bytes(int32_t k) const {
    Bytes bytes = p_.workspace[static_cast<size_t>(k)] + p_.fixed_bytes;
    for (int32_t v : needs(k)) {
      if (!here_[static_cast<size_t>(v)]) bytes += value(v).bytes;
    }
    for (int32_t v : p_.births[static_cast<size_t>(k)]) bytes += value(v).bytes;
    return bytes;
  }

  // What must be there before the op of k: what it reads; at the last, the outputs of the step too.
  const std::vector<int32_t>& needs(int32_t k) const {
    return k + 1 < p_.size() ? p_.reads[static_cast<size_t>(k)] : last_needs_;
  }
  void find_last_needs() {
    const int32_t last = p_.size() - 1;
    if (last < 0) return;
    last_needs_ = p_.reads[static_cast<size_t>(last)];
    for (size_t v = 0; v < p_.values.size(); ++v) {
      const int32_t id = static_cast<int32_t>(v);
      const bool read = std::count(last_needs_.begin(), last_needs_.end(), id) > 0;
      const bool born = p_.values[v].producer < 0 || p_.values[v].producer == last;
      if (is_output(id) && !read && !born) last_needs_.push_back(id);
    }
  }

  void step(int32_t k) {
    const size_t i = static_cast<size_t>(k);
    touched_.clear();
    touched_.insert(needs(k).begin(), needs(k).end());
    if (moves()) make_room(k);
    for (int32_t v : needs(k)) bring(v, k);
    for (int32_t v : p_.births[i]) appear(v);
    for (TensorId t : p_.graph->at(p_.order[i]).updates) spoil(p_.value_of[t.index()]);
    for (TensorId t : p_.graph->at(p_.order[i]).outputs) {
      if (p_.value_of[t.index()] >= 0) spoil(p_.value_of[t.index()]);
    }
    for (const auto* list : {&needs(k), &p_.births[i]}) {
      for (int32_t v : *list) after_touch(v, k);
    }
  }

  void spoil(int32_t v) {
    if (!value(v).home.valid()) copy_[static_cast<size_t>(v)] = TierId();
  }

  void make_room(int32_t k) {
    while (bytes_ + missing_bytes(k) > p_.budget && !idle_.empty()) {
      const auto [key, v] = *idle_.begin();
      idle_.erase(idle_.begin());
      if (-key != next_touch(v, k - 1)) continue;  // used since
      const bool stays = touched_.count(v) > 0 || !movable(v) || gathered(v);
      if (here_[static_cast<size_t>(v)] && !stays) evict(v, k);
    }
  }

  void bring(int32_t v, int32_t k) {
    if (here_[static_cast<size_t>(v)]) return;
    if (copy_[static_cast<size_t>(v)].valid()) {
      push(ActionKind::kLoad, k, v, copy_[static_cast<size_t>(v)]);
      appear(v);
      return;
    }
    rerun(v, k);
  }

  // Runs again what leads to `v`, depth first with a stack of our own: chains are as long as the
  // step.
  void rerun(int32_t target, int32_t k) {
    std::vector<int32_t> stack = {target};
    while (!stack.empty()) {
      const int32_t v = stack.back();
      if (here_[static_cast<size_t>(v)]) {
        stack.pop_back();
        continue;
      }
      bool ready = true;
      for (int32_t u : p_.reads[static_cast<size_t>(value(v).producer)]) {
        if (here_[static_cast<size_t>(u)]) continue;
        ready = false;
        stack.push_back(u);
      }
      if (!ready) continue;
      push(ActionKind::kRecompute, k, v);
      appear(v);
      brought_.push_back(v);
      stack.pop_back();
      if (++reruns_ > kMostReruns * static_cast<int64_t>(p_.size())) {
        failure_ = text_of("runs more than %lld times as many ops",
                           static_cast<long long>(kMostReruns));
        return;
      }
    }
  }

  // May the policy give it up for its op to run again?
  bool forgets(int32_t v) const {
    return !moves() && regenerable_[static_cast<size_t>(v)] && !is_output(v) &&
           !checkpoint_[static_cast<size_t>(v)];
  }

  // The last position before which what op `k` read from `u` can still be had: it is as it was
  // until it is written again, and there until its last touch, or for as long as its own op can run
  // again.
  int32_t readable_until(int32_t u, int32_t k) const {
    const auto& writes = value(u).writes;
    const auto rewritten = std::upper_bound(writes.begin(), writes.end(), k);
    const int32_t same = rewritten == writes.end() ? p_.size() : *rewritten;
    if (held_to_end(u)) return same;
    return std::min(same, std::max(until_[static_cast<size_t>(u)], value(u).touches.back()));
  }

  // Values that can be brought back whenever they are touched again. Weights are written by the end
  // of a training step: until then what was computed from them can be computed again.
  void find_regenerable() {
    regenerable_.assign(p_.values.size(), false);
    until_.assign(p_.values.size(), -1);
    for (int32_t k = 0; k < p_.size(); ++k) {
      int32_t until = p_.size();
      for (int32_t u : p_.reads[static_cast<size_t>(k)]) {
        until = std::min(until, readable_until(u, k));
      }
      for (int32_t v : p_.births[static_cast<size_t>(k)]) {
        if (!value(v).can_recompute) continue;
        until_[static_cast<size_t>(v)] = until;
        regenerable_[static_cast<size_t>(v)] = value(v).touches.back() <= until;
      }
    }
  }

  void after_touch(int32_t v, int32_t k) {
    const int32_t next = next_touch(v, k);
    if (next >= p_.size() && !held_to_end(v)) {
      vanish(v);
    } else if (policy_ == Policy::kSpillEverything) {
      if (movable(v) && !gathered(v) && !(next >= p_.size() && is_output(v))) evict(v, k + 1);
    } else if (policy_ == Policy::kBelady) {
      idle_.insert({-next, v});
    } else if (forgets(v) && next > k + 1 && next < p_.size()) {
      push(ActionKind::kDrop, k + 1, v);
      vanish(v);
    }
    // Values that were only brought back on the way go with the position that wanted them.
    for (int32_t u : brought_) {
      const auto& touches = value(u).touches;
      if (touches.back() >= k || !here_[static_cast<size_t>(u)]) continue;
      push(ActionKind::kDrop, k + 1, u);
      vanish(u);
    }
    brought_.clear();
  }

  bool is_output(int32_t v) const {
    return p_.graph->at(value(v).tensor).role == Role::kOutput;
  }

  // What a cycle finds on the device is loaded for the next, what it begins without is dropped.
  void exit() {
    for (size_t i = 0; i < p_.values.size(); ++i) {
      const int32_t v = static_cast<int32_t>(i);
      const bool wanted = p_.cyclic && s_.at_entry[i];
      if (wanted && !here_[i] && copy_[i].valid()) push(ActionKind::kLoad, p_.size(), v, copy_[i]);
      if (p_.cyclic && value(v).persistent && !s_.at_entry[i] && here_[i]) evict(v, p_.size());
    }
  }

  const Problem& p_;
  const Policy policy_;
  Schedule s_;
  std::vector<bool> here_;          // by value: on the device
  std::vector<TierId> copy_;        // by value: where a valid copy is
  std::vector<size_t> next_;        // by value: index of its next touch
  std::vector<bool> checkpoint_;    // by value: kept
  std::vector<bool> regenerable_;   // by value: its op can run again before any of its touches
  std::vector<int32_t> until_;      // by value: its op can run again before here; -1: never
  std::set<std::pair<int32_t, int32_t>> idle_;  // (-next touch, value); may be out of date
  std::set<int32_t> touched_;       // by the position at hand
  std::vector<int32_t> brought_;
  std::vector<int32_t> last_needs_;  // at the last position
  Bytes bytes_ = 0;                 // on the device, constants apart
  int64_t reruns_ = 0;
  std::string failure_;
};

}  // namespace

PolicySchedule run_on_demand(const Problem& problem, Policy policy) {
  return OnDemand(problem, policy).run();
}

}  // namespace headrace::plan
