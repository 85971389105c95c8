#include "headrace/plan/heuristics.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <set>

#include "headrace/plan/heuristics_builder.h"
#include "headrace/plan/placement_profile.h"

namespace headrace::plan {
namespace {

constexpr std::array<const char*, kPolicyCount> kNames = {
    "keep everything",         "offload by distance",
    "offload at the peak",     "largest first, synchronous",
    "FIFO, constant 50 GB/s",  "on-demand Belady",
    "checkpoint every block",  "recompute everything",
    "spill everything"};

constexpr int32_t kPrefetchOps = 5;     // the usual fixed distance
constexpr double kAssumedRate = 50e9;   // bytes/s, whatever the link

// Policies that move gaps until everything fits.
class GapPolicy {
 public:
  GapPolicy(const Problem& p, Policy policy)
      : p_(p), policy_(policy), gaps_(idle_gaps(p)), profile_(resident_profile(p)) {
    begin_ns_.assign(static_cast<size_t>(p.size()) + 1, 0);
    for (size_t k = 0; k < p.cost.size(); ++k) begin_ns_[k + 1] = begin_ns_[k] + p.cost[k];
  }

  PolicySchedule run() {
    for (const IdleGap& gap : gaps_) {
      if (gap.must) move(gap);
    }
    if (policy_ == Policy::kOffloadAtPeak) {
      at_peak();
    } else if (policy_ != Policy::kKeepEverything) {
      in_order();
    }
    PolicySchedule r;
    r.work = static_cast<int64_t>(gaps_.size());
    r.schedule = schedule_of(p_, std::move(moved_));
    judge_policy(p_, r);
    return r;
  }

 private:
  int32_t prefetch_from(const IdleGap& gap) const {
    const int32_t drop = gap.after + 1;
    if (gap.before == p_.size() && !p_.cyclic) return gap.before;  // never again
    if (policy_ == Policy::kLargestFirstSynchronous) return gap.before;
    if (policy_ == Policy::kFifoConstantBandwidth) return by_constant_rate(gap);
    return std::max(drop + 1, gap.before - kPrefetchOps);
  }

  // The latest position from which a link of 50 GB/s would be in time.
  int32_t by_constant_rate(const IdleGap& gap) const {
    const int32_t n = p_.size();
    const int32_t use = gap.before >= n ? gap.before - n : gap.before;
    const double bytes = static_cast<double>(p_.values[static_cast<size_t>(gap.value)].bytes);
    const Nanos start = begin_ns_[static_cast<size_t>(use)] -
                        static_cast<Nanos>(bytes / kAssumedRate * 1e9);
    const auto at = std::upper_bound(begin_ns_.begin(), begin_ns_.end(), start);
    const auto from = std::max<std::ptrdiff_t>(0, at - begin_ns_.begin() - 1);
    const int32_t load = static_cast<int32_t>(from) + (gap.before >= n ? n : 0);
    return std::clamp(load, gap.after + 2, gap.before);
  }

  void move(const IdleGap& gap) {
    MovedGap m;
    m.gap = gap;
    m.drop = gap.after + 1;
    m.load = prefetch_from(gap);
    const int32_t n = p_.size();
    if (gap.before > n || (gap.before == n && p_.cyclic)) m.load = std::max(m.load, n);
    const Bytes bytes = p_.values[static_cast<size_t>(gap.value)].bytes;
    profile_.add(m.drop, std::min(m.load, n) - 1, -bytes);
    if (m.load > n) profile_.add(0, m.load - n - 1, -bytes);
    moved_.push_back(m);
  }

  bool useful(const IdleGap& gap) const {
    const int32_t n = p_.size();
    const int32_t load = prefetch_from(gap);
    return profile_.max(gap.after + 1, std::min(load, n) - 1) > p_.budget ||
           (load > n && profile_.max(0, load - n - 1) > p_.budget);
  }

  void in_order() {
    std::vector<size_t> order(gaps_.size());
    std::iota(order.begin(), order.end(), size_t{0});
    const auto bytes = [&](size_t g) {
      return p_.values[static_cast<size_t>(gaps_[g].value)].bytes;
    };
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
      switch (policy_) {
        case Policy::kOffloadByDistance:
          return gaps_[a].before - gaps_[a].after > gaps_[b].before - gaps_[b].after;
        case Policy::kLargestFirstSynchronous: return bytes(a) > bytes(b);
        default: return gaps_[a].after < gaps_[b].after;  // first in, first out
      }
    });
    for (size_t g : order) {
      if (profile_.max() <= p_.budget) return;
      if (!gaps_[g].must && useful(gaps_[g])) move(gaps_[g]);
    }
  }

  // Sweeps the positions; where one is over the budget, the largest idle there leave.
  void at_peak() {
    const int32_t n = p_.size();
    std::vector<std::vector<size_t>> starts(static_cast<size_t>(n) + 1), ends(starts);
    std::set<std::pair<Bytes, size_t>> idle;  // (-bytes, gap)
    const auto key = [&](size_t g) {
      return std::pair(-p_.values[static_cast<size_t>(gaps_[g].value)].bytes, g);
    };
    for (size_t g = 0; g < gaps_.size(); ++g) {
      if (gaps_[g].must) continue;
      const int32_t load = prefetch_from(gaps_[g]);
      if (load > n) idle.insert(key(g));
      starts[static_cast<size_t>(gaps_[g].after + 1)].push_back(g);
      if (load < n) ends[static_cast<size_t>(load)].push_back(g);
      if (load > n) ends[static_cast<size_t>(load - n)].push_back(g);
    }
    std::vector<bool> done(gaps_.size(), false);
    for (int32_t k = 0; k < n; ++k) {
      for (size_t g : ends[static_cast<size_t>(k)]) idle.erase(key(g));
      for (size_t g : starts[static_cast<size_t>(k)]) {
        if (!done[g]) idle.insert(key(g));
      }
      while (profile_.at_position(k) > p_.budget && !idle.empty()) {
        const size_t g = idle.begin()->second;
        idle.erase(idle.begin());
        done[g] = true;
        move(gaps_[g]);
      }
    }
  }

  const Problem& p_;
  const Policy policy_;
  const std::vector<IdleGap> gaps_;
  Profile profile_;
  std::vector<Nanos> begin_ns_;  // by position, when nothing stalls
  std::vector<MovedGap> moved_;
};

}  // namespace

const char* name_of(Policy policy) { return kNames[static_cast<size_t>(policy)]; }

PolicySchedule run_policy(const Problem& problem, Policy policy) {
  switch (policy) {
    case Policy::kKeepEverything:
    case Policy::kOffloadByDistance:
    case Policy::kOffloadAtPeak:
    case Policy::kLargestFirstSynchronous:
    case Policy::kFifoConstantBandwidth: return GapPolicy(problem, policy).run();
    default: return run_on_demand(problem, policy);
  }
}

}  // namespace headrace::plan
