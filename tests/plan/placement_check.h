// Replays a Schedule against a Problem, byte range by byte range, as the comments of problem.h say:
// slow and obvious, and it shares no code with the planner.
#pragma once

#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "headrace/plan/problem.h"

namespace headrace::test {

// "" or the first thing that a schedule does wrong.
class ScheduleChecker {
 public:
  ScheduleChecker(const plan::Problem& problem, const plan::Schedule& schedule)
      : p_(problem), s_(schedule), n_(problem.values.size()), there_(n_), copies_(n_), forms_(n_),
        stored_forms_(n_), last_(n_, -1) {}

  std::string run() {
    for (size_t v = 0; v < n_; ++v) {
      if (!p_.values[v].touches.empty()) last_[v] = 2 * p_.values[v].touches.back() + 1;
      if (s_.at_entry[v]) set(there_[v], p_.values[v].bytes, true, v);
      if (p_.values[v].on_device_at_entry && !s_.at_entry[v]) return "it starts on the device";
      if (p_.values[v].home.valid()) set(copies_[v][p_.values[v].home.value], 0, true, v);
    }
    for (const plan::Action& a : s_.actions) {
      if (a.kind != plan::ActionKind::kRecompute) continue;
      for (int32_t v : p_.reads[at(p_.values[at(a.value)].producer)]) {
        last_[at(v)] = std::max(last_[at(v)], 2 * a.before);
      }
    }
    size_t next = 0;
    for (int32_t k = 0; k <= p_.size() && wrong_.empty(); ++k) {
      for (; next < s_.actions.size() && s_.actions[next].before <= k; ++next) {
        if (s_.actions[next].before < k) return "actions out of order";
        act(s_.actions[next], k);
        if (!wrong_.empty()) return where(k);
      }
      if (k == p_.size()) break;
      forget(2 * k);
      run_op(k, k, 2 * k + 1);
      if (!wrong_.empty()) return where(k);
    }
    for (size_t v = 0; v < n_ && wrong_.empty(); ++v) leave(v);
    return wrong_;
  }

  Bytes peak() const { return peak_; }
  int64_t moved_bytes() const { return moved_; }
  int reruns() const { return reruns_; }
  int encodes() const { return encodes_; }

 private:
  // One flag per kUnit bytes: all sizes in these tests are multiples of it.
  static constexpr Bytes kUnit = 64;
  using Bits = std::vector<bool>;
  static size_t at(int32_t i) { return static_cast<size_t>(i); }

  std::string where(int32_t k) const { return wrong_ + " before position " + std::to_string(k); }
  void fail(const std::string& what, size_t v) {
    if (wrong_.empty()) wrong_ = what + " (value " + std::to_string(v) + ")";
  }
  void set(Bits& bits, Bytes, bool on, size_t v) {
    bits.assign(static_cast<size_t>(p_.values[v].bytes / kUnit), on);
  }
  static bool all(const Bits& bits, size_t from, size_t to, bool on) {
    for (size_t i = from; i < to; ++i) {
      if (i >= bits.size() || bits[i] != on) return false;
    }
    return true;
  }
  bool whole(size_t v) const {
    const size_t units = static_cast<size_t>(p_.values[v].bytes / kUnit);
    return there_[v].size() == units && all(there_[v], 0, units, true);
  }
  Bytes held() const {
    Bytes sum = p_.fixed_bytes;
    for (const Bits& bits : there_) {
      for (bool b : bits) sum += b ? kUnit : 0;
    }
    for (size_t v = 0; v < n_; ++v) {
      for (Codec c : forms_[v]) sum += form_bytes(v, c);
    }
    return sum;
  }
  void hold(Bytes more) {
    peak_ = std::max(peak_, held() + more);
    if (held() + more > p_.budget) {
      fail("over budget by " + std::to_string(held() + more - p_.budget), 0);
    }
  }

  Bytes form_bytes(size_t v, Codec codec) const {
    return range_bytes(p_.graph->at(p_.values[v].tensor), {}, codec);
  }

  // What is done with the encoded form as a whole.
  void act_encoded(const plan::Action& a) {
    const size_t v = at(a.value);
    const bool there = forms_[v].count(a.codec) > 0;
    const auto copy = std::pair(a.tier.value, a.codec);
    switch (a.kind) {
      case plan::ActionKind::kEncode:
        if (!whole(v) || there) return fail("encodes what is not there, or is encoded", v);
        forms_[v].insert(a.codec);
        ++encodes_;
        return hold(0);
      case plan::ActionKind::kDecode:
        if (!there || !all(there_[v], 0, there_[v].size(), false)) {
          return fail("decodes what is not there, or is there plain", v);
        }
        set(there_[v], 0, true, v);
        return hold(0);
      case plan::ActionKind::kDrop:
        if (!there) return fail("a drop of a form that is not there", v);
        if (!whole(v) && stored_forms_[v].empty()) return fail("the only form is dropped", v);
        forms_[v].erase(a.codec);
        return;
      case plan::ActionKind::kStore:
        if (!there) return fail("a store of a form that is not there", v);
        stored_forms_[v].insert(copy);
        moved_ += form_bytes(v, a.codec);
        return;
      case plan::ActionKind::kLoad:
        if (there || stored_forms_[v].count(copy) == 0) return fail("no such form to load", v);
        forms_[v].insert(a.codec);
        return hold(0);
      default: fail("runs again with a codec", v);
    }
  }

  void act(const plan::Action& a, int32_t k) {
    if (a.codec != Codec::kNone) return act_encoded(a);
    const size_t v = at(a.value);
    const Bytes bytes = p_.values[v].bytes;
    const size_t from = static_cast<size_t>(a.range.begin / kUnit);
    const size_t to = static_cast<size_t>(
        (a.range.bytes < 0 ? bytes : a.range.begin + a.range.bytes) / kUnit);
    Bits& device = there_[v];
    device.resize(static_cast<size_t>(bytes / kUnit), false);
    switch (a.kind) {
      case plan::ActionKind::kStore: {
        if (!all(device, from, to, true)) return fail("a store of what is not there", v);
        Bits& copy = copies_[v][a.tier.value];
        copy.resize(device.size(), false);
        for (size_t i = from; i < to; ++i) copy[i] = true;
        moved_ += static_cast<int64_t>(to - from) * kUnit;
        return;
      }
      case plan::ActionKind::kLoad: {
        if (!all(device, from, to, false)) return fail("a load of what is there", v);
        // Of a cycle: what was away at entry has a copy from the cycle before.
        const bool before = p_.cyclic && p_.values[v].persistent && !s_.at_entry[v];
        if (!before && !all(copies_[v][a.tier.value], from, to, true)) {
          return fail("a load of what is not in the tier", v);
        }
        for (size_t i = from; i < to; ++i) device[i] = true;
        return hold(0);
      }
      case plan::ActionKind::kDrop: {
        if (!all(device, from, to, true)) return fail("a drop of what is not there", v);
        for (size_t i = from; i < to; ++i) device[i] = false;
        return;
      }
      case plan::ActionKind::kRecompute: {
        ++reruns_;
        if (whole(v)) return;
        if (!p_.values[v].can_recompute) return fail("runs again and must not", v);
        const int32_t op = p_.values[v].producer;
        for (int32_t in : p_.reads[at(op)]) {
          for (int32_t w : p_.values[at(in)].writes) {
            if (w > op && w < k) fail("runs again with another version", v);
          }
        }
        return run_op(op, k, 2 * k, a.value);
      }
      default: fail("an action of a kind not tested here", v);
    }
  }

  void run_op(int32_t op, int32_t position, int32_t moment, int32_t only = -1) {
    for (int32_t v : p_.reads[at(op)]) {
      if (!whole(at(v))) return fail("an operand is not there", at(v));
    }
    std::vector<int32_t> passing;
    for (int32_t v : p_.births[at(op)]) {
      if (only >= 0 && v != only && !whole(at(v))) passing.push_back(v);
      set(there_[at(v)], 0, true, at(v));
    }
    for (size_t v = 0; v < n_ && only < 0; ++v) {
      for (int32_t t : p_.values[v].touches) {
        if (t == position && !whole(v)) fail("a touched value is not there", v);
      }
      for (int32_t w : p_.values[v].writes) {
        if (w != position) continue;
        for (auto& [tier, copy] : copies_[v]) copy.clear();
        stored_forms_[v].clear();
        if (!forms_[v].empty()) fail("a stale form is held", v);
      }
    }
    hold(p_.workspace[at(op)]);
    for (int32_t v : passing) there_[at(v)].clear();
    if (only < 0) forget(moment);
  }

  void forget(int32_t moment) {
    for (size_t v = 0; v < n_; ++v) {
      if (!p_.values[v].persistent && last_[v] <= moment) there_[v].clear();
    }
  }

  void leave(size_t v) {
    if (!p_.values[v].persistent) return;
    if (p_.cyclic && s_.at_entry[v] && !whole(v)) return fail("not there at the exit", v);
    const size_t units = static_cast<size_t>(p_.values[v].bytes / kUnit);
    bool untouched = p_.cyclic && !s_.at_entry[v] && p_.values[v].writes.empty();
    if (untouched) return;
    for (size_t i = 0; i < units; ++i) {
      bool safe = i < there_[v].size() && there_[v][i] && (!p_.cyclic || s_.at_entry[v]);
      for (const auto& [tier, copy] : copies_[v]) safe = safe || (i < copy.size() && copy[i]);
      if (!safe) return fail("lost at the end", v);
    }
  }

  const plan::Problem& p_;
  const plan::Schedule& s_;
  size_t n_;
  std::vector<Bits> there_;
  std::vector<std::map<int32_t, Bits>> copies_;  // by value, by tier
  std::vector<std::set<Codec>> forms_;           // by value: on the device
  std::vector<std::set<std::pair<int32_t, Codec>>> stored_forms_;  // by value: tier and codec
  std::vector<int32_t> last_;  // by value: 2k: an op that runs again before k reads it; 2k+1: op k
  std::string wrong_;
  Bytes peak_ = 0;
  int64_t moved_ = 0;
  int reruns_ = 0;
  int encodes_ = 0;
};

}  // namespace headrace::test
