// No plan is faster than its bound; on tiny steps not even the best of all plans.
#include "headrace/plan/bounds.h"

#include <gtest/gtest.h>

#include <functional>

#include "headrace/plan/emit_step.h"
#include "headrace/plan/heuristics.h"
#include "headrace/plan/heuristics_builder.h"
#include "headrace/sim/simulate.h"
#include "tests/plan/oracle_steps.h"
#include "tests/plan/step_graphs.h"

namespace headrace::plan {
namespace {

using test::step_machine;
using test::step_request;

// Slow and obvious: every gap kept or moved, dropped and loaded at every pair of positions. The best
// time of those whose extents fit.
Nanos best_by_trying(const Problem& p) {
  const std::vector<IdleGap> gaps = idle_gaps(p);
  Nanos best = INT64_MAX;
  std::vector<MovedGap> moved;
  std::function<void(size_t)> choose = [&](size_t i) {
    if (i == gaps.size()) {
      const Schedule s = schedule_of(p, moved);
      const auto profile = schedule_profile(p, s);
      if (*std::max_element(profile.begin(), profile.end()) > p.budget) return;
      auto e = emit_step(p, s, {});
      ASSERT_TRUE(e.ok()) << e.status().message();
      if (e->excess == 0) best = std::min(best, simulate(e->program).total_ns);
      return;
    }
    choose(i + 1);
    const int32_t end = std::min(gaps[i].before, p.size());
    for (int32_t drop = gaps[i].after + 1; drop < end; ++drop) {
      const bool forever = gaps[i].before >= p.size();
      for (int32_t load = forever ? end : drop + 1; load <= end; ++load) {
        moved.push_back({gaps[i], drop, load});
        choose(i + 1);
        moved.pop_back();
      }
    }
  };
  choose(0);
  return best;
}

TEST(Bounds, NothingOverTheBudgetIsComputeAlone) {
  const auto workload = test::training_chain(4).finish();
  const Machine m = step_machine(1e9);
  const StepRequest r = step_request(workload, m, 1 << 30);
  auto p = make_problem(r, program_order(workload->graph));
  const Bound b = lower_bound(*p, 10, 1'000'000'000);
  EXPECT_EQ(b.total_ns, 13'000'000);
  EXPECT_EQ(b.compute_ns, 13'000'000);
}

TEST(Bounds, AChainWhoseBytesMustLeaveAndReturnIsBoundByTheLink) {
  const auto workload = test::training_chain(16).finish();
  const Machine m = step_machine(1e8);  // a megabyte takes ten ops
  StepRequest r = step_request(workload, m, 8 << 20);
  r.recompute = false;
  auto p = make_problem(r, program_order(workload->graph));
  const Bound b = lower_bound(*p, 50, 1'000'000'000);
  EXPECT_GT(b.total_ns, 2 * b.compute_ns);
  EXPECT_NE(b.reason.find("more than the budget"), std::string::npos);
}

TEST(Bounds, RecomputationLowersTheBound) {
  const auto workload = test::training_chain(16).finish();
  const Machine m = step_machine(1e8);
  StepRequest r = step_request(workload, m, 8 << 20);
  auto p = make_problem(r, program_order(workload->graph));
  const Bound with = lower_bound(*p, 50, 1'000'000'000);
  r.recompute = false;
  const Bound without = lower_bound(*p, 50, 1'000'000'000);
  EXPECT_LT(with.total_ns, without.total_ns);
  EXPECT_GE(with.total_ns, with.compute_ns);
}

// Eight megabytes too many, each of which an op of a millisecond brings back: dearer than a link that
// is priced by the whole second, so a low price of the link must be found.
TEST(Bounds, RunningOpsAgainIsPricedWhereItIsTheCheapWay) {
  const auto workload = test::training_chain(16).finish();
  for (double link : {1e7, 1e8}) {
    const Machine m = step_machine(link);
    const StepRequest r = step_request(workload, m, 8 << 20);
    auto p = make_problem(r, program_order(workload->graph));
    ASSERT_TRUE(p.ok()) << p.status().message();
    const Bound b = lower_bound(*p, 0, 1'000'000'000);
    EXPECT_GT(b.total_ns, b.compute_ns) << link;
    EXPECT_LT(b.total_ns, 2 * b.compute_ns) << link;  // every op twice is a plan
  }
}

// Fixed orders; keep, move and run again; live bytes alone: most are proven optimal.
TEST(Bounds, TheyAreBelowWhatTheOracleReached) {
  const auto steps = testing::oracle_steps(std::string(HEADRACE_SOURCE_DIR) +
                                            "/tests/data/oracle/steps.txt");
  ASSERT_GT(steps.size(), 100u);
  int above_compute = 0, fixed = 0;
  for (const auto& s : steps) {
    if (!s.fixed) continue;
    ++fixed;
    const Machine m = testing::two_tiers(s.link);
    const StepRequest r = testing::request_of(s, m);
    auto p = make_problem(r, program_order(r.workload->graph));
    ASSERT_TRUE(p.ok()) << p.status().message();
    // Aims well above the optimum: that must not carry it over.
    const Bound b = lower_bound(*p, 100, static_cast<Nanos>(s.optimum_s * 1.5e9));
    EXPECT_LE(static_cast<double>(b.total_ns), s.optimum_s * 1e9 * (1 + 1e-6)) << s.name;
    if (b.total_ns > b.compute_ns + b.compute_ns / 1000) ++above_compute;
  }
  EXPECT_GT(above_compute, fixed / 2);
}

TEST(Bounds, TheyAreBelowTheBestOfAllMovesOnTinySteps) {
  int tight = 0, cases = 0;
  for (uint32_t seed = 0; seed < 120; ++seed) {
    test::StepBuilder b = test::random_step(5, seed);
    const auto workload = b.finish();
    Machine m = step_machine(5e7 * (1 + seed % 9));
    m.tiers[1].latency_ns = 0;
    m.tiers[1].duplex = seed % 2 == 0;
    StepRequest r = step_request(workload, m, Bytes{1} << 40);
    r.recompute = false;
    auto whole = make_problem(r, program_order(workload->graph));
    if (idle_gaps(*whole).size() > 4) continue;
    const auto profile = resident_profile(*whole);
    for (int percent : {95, 85, 70}) {
      r.budget = *std::max_element(profile.begin(), profile.end()) / 100 * percent;
      auto p = make_problem(r, program_order(workload->graph));
      const Nanos best = best_by_trying(*p);
      if (best == INT64_MAX) continue;
      const Bound bound = lower_bound(*p, 60, best);
      ++cases;
      EXPECT_LE(bound.total_ns, best) << "seed " << seed << ", " << percent << " %";
      if (bound.total_ns > best / 10 * 9) ++tight;
    }
  }
  EXPECT_GT(cases, 20);
  // Whole tensors alone can move here, so the relaxation is far below many of them.
  EXPECT_GT(tight, cases / 5);
}

TEST(Bounds, TheyAreBelowEveryPolicyThatFits) {
  int cases = 0;
  for (uint32_t seed = 0; seed < 60; ++seed) {
    test::StepBuilder b = test::random_step(30, seed);
    b.w.cyclic = seed % 3 == 0;
    const auto workload = b.finish();
    Machine m = step_machine(1e8 * (1 + seed % 9));
    m.tiers[1].duplex = seed % 2 == 0;
    StepRequest r = step_request(workload, m, Bytes{1} << 40);
    auto whole = make_problem(r, program_order(workload->graph));
    const auto profile = resident_profile(*whole);
    for (int percent : {90, 70, 50}) {
      r.budget = *std::max_element(profile.begin(), profile.end()) / 100 * percent;
      auto p = make_problem(r, program_order(workload->graph));
      for (int i = 0; i < kPolicyCount; ++i) {
        const PolicySchedule s = run_policy(*p, static_cast<Policy>(i));
        if (!s.fits) continue;
        auto e = emit_step(*p, s.schedule, {});
        ASSERT_TRUE(e.ok());
        const Nanos time = simulate(e->program).total_ns;
        EXPECT_LE(lower_bound(*p, 40, time).total_ns, time)
            << "seed " << seed << ", " << name_of(static_cast<Policy>(i));
        ++cases;
      }
    }
  }
  EXPECT_GT(cases, 200);
}

}  // namespace
}  // namespace headrace::plan
