// What a Schedule holds, position by position: the memory model of problem.h, played.
#include <algorithm>
#include <limits>

#include "headrace/plan/problem.h"

namespace headrace::plan {
namespace {

constexpr int32_t kAtOp = std::numeric_limits<int32_t>::max();

class Player {
 public:
  Player(const Problem& p, const Schedule& s)
      : p_(p), s_(s), held_(p.values.size(), 0), encoded_(p.values.size(), 0),
        last_(p.values.size(), {-1, -1}) {}

  std::vector<Bytes> run() {
    find_last_uses();
    now_ = p_.fixed_bytes;
    for (size_t v = 0; v < p_.values.size(); ++v) {
      if (s_.at_entry[v]) hold(v, p_.values[v].bytes);
    }
    std::vector<Bytes> profile(static_cast<size_t>(p_.size()), 0);
    size_t a = 0;
    peak_ = now_;
    for (int32_t k = 0; k < p_.size(); ++k) {
      if (k > 0) peak_ = 0;
      const size_t first = a;
      while (a < s_.actions.size() && s_.actions[a].before <= k) ++a;
      for (size_t i = first; i < a; ++i) act(i, first, a);
      run_op(k, {k, kAtOp}, false);
      profile[static_cast<size_t>(k)] = peak_;
    }
    return profile;
  }

 private:
  using Moment = std::pair<int32_t, int32_t>;

  void find_last_uses() {
    for (size_t v = 0; v < p_.values.size(); ++v) {
      const auto& touches = p_.values[v].touches;
      if (!touches.empty()) last_[v] = {touches.back(), kAtOp};
    }
    for (size_t a = 0; a < s_.actions.size(); ++a) {
      const Action& action = s_.actions[a];
      if (action.kind != ActionKind::kRecompute) continue;
      const int32_t producer = p_.values[static_cast<size_t>(action.value)].producer;
      for (int32_t v : p_.reads[static_cast<size_t>(producer)]) {
        auto& last = last_[static_cast<size_t>(v)];
        last = std::max(last, Moment{action.before, static_cast<int32_t>(a)});
      }
    }
  }

  void hold(size_t v, Bytes bytes) {
    now_ += bytes - held_[v];
    held_[v] = bytes;
    peak_ = std::max(peak_, now_);
  }
  void hold_encoded(size_t v, Bytes bytes) {
    now_ += bytes - encoded_[v];
    encoded_[v] = bytes;
    peak_ = std::max(peak_, now_);
  }

  void act(size_t i, size_t first, size_t end) {
    const Action& a = s_.actions[i];
    const size_t v = static_cast<size_t>(a.value);
    const Tensor& t = p_.graph->at(p_.values[v].tensor);
    const Bytes bytes = range_bytes(t, a.range, a.codec);
    const bool plain = a.codec == Codec::kNone;
    switch (a.kind) {
      case ActionKind::kStore: return;
      case ActionKind::kLoad:
        return plain ? hold(v, held_[v] + bytes) : hold_encoded(v, encoded_[v] + bytes);
      case ActionKind::kDrop:
        return plain ? hold(v, std::max<Bytes>(0, held_[v] - bytes))
                     : hold_encoded(v, std::max<Bytes>(0, encoded_[v] - bytes));
      case ActionKind::kEncode: return hold_encoded(v, range_bytes(t, {}, a.codec));
      case ActionKind::kDecode: return hold(v, p_.values[v].bytes);
      case ActionKind::kRecompute: break;
    }
    if (held_[v] == p_.values[v].bytes) return;  // came with a sibling
    wanted_.clear();
    for (size_t j = std::max(i, first); j < end; ++j) {
      if (s_.actions[j].kind == ActionKind::kRecompute) wanted_.push_back(s_.actions[j].value);
    }
    run_op(p_.values[v].producer, {a.before, static_cast<int32_t>(i)}, true);
  }

  void run_op(int32_t position, Moment now, bool again) {
    const size_t k = static_cast<size_t>(position);
    passing_.clear();
    for (TensorId t : p_.graph->at(p_.order[k]).outputs) {
      const int32_t v = p_.value_of[t.index()];
      if (v < 0) continue;
      const bool wanted = std::find(wanted_.begin(), wanted_.end(), v) != wanted_.end();
      if (again && !wanted && held_[static_cast<size_t>(v)] == 0) passing_.push_back(v);
      hold(static_cast<size_t>(v), p_.values[static_cast<size_t>(v)].bytes);
    }
    peak_ = std::max(peak_, now_ + p_.workspace[k]);
    for (int32_t v : p_.reads[k]) end_if_dead(v, now);
    for (TensorId t : p_.graph->at(p_.order[k]).outputs) {
      if (p_.value_of[t.index()] >= 0) end_if_dead(p_.value_of[t.index()], now);
    }
    for (int32_t v : passing_) hold(static_cast<size_t>(v), 0);
  }

  void end_if_dead(int32_t v, Moment now) {
    const size_t i = static_cast<size_t>(v);
    if (p_.values[i].persistent || last_[i] > now) return;
    if (p_.graph->at(p_.values[i].tensor).role == Role::kOutput) return;
    hold(i, 0);
    hold_encoded(i, 0);
  }

  const Problem& p_;
  const Schedule& s_;
  std::vector<Bytes> held_, encoded_;  // by value
  std::vector<Moment> last_;           // by value: its last use
  std::vector<int32_t> wanted_, passing_;
  Bytes now_ = 0, peak_ = 0;
};

}  // namespace

std::vector<Bytes> schedule_profile(const Problem& problem, const Schedule& schedule) {
  return Player(problem, schedule).run();
}

}  // namespace headrace::plan
