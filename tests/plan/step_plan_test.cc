// plan_step from end to end, on chains and random steps.
#include "headrace/plan/step_plan.h"

#include <gtest/gtest.h>

#include "headrace/plan/problem.h"
#include "tests/plan/step_graphs.h"

namespace headrace {
namespace {

using test::step_machine;
using test::step_request;

Bytes kept_peak(const StepRequest& r) {
  auto p = plan::make_problem(r, plan::program_order(r.workload->graph));
  const auto profile = plan::resident_profile(*p);
  return *std::max_element(profile.begin(), profile.end());
}

TEST(StepPlan, RandomStepsVerifyFitAndAreNoSlowerThanAnyPolicy) {
  int plans = 0, refusals = 0;
  for (uint32_t seed = 0; seed < 40; ++seed) {
    test::StepBuilder b = test::random_step(10 + static_cast<int>(seed), seed);
    b.w.cyclic = seed % 4 == 0;
    const auto workload = b.finish();
    Machine m = step_machine(2e8 * (1 + seed % 5));
    m.tiers[1].duplex = seed % 2 == 0;
    StepRequest r = step_request(workload, m, 0);
    r.recompute = seed % 3 != 0;
    const Bytes peak = kept_peak(r);
    for (int percent : {100, 80, 60, 40}) {
      r.budget = peak / 100 * percent;
      auto result = plan_step(r);
      ASSERT_TRUE(result.ok()) << result.status().message();
      if (auto* no = std::get_if<Infeasible>(&*result)) {
        EXPECT_GT(no->needed_bytes, r.budget);
        EXPECT_FALSE(no->options.empty());
        ++refusals;
        StepRequest again = r;
        again.budget = no->needed_bytes;
        auto second = plan_step(again);
        ASSERT_TRUE(second.ok());
        EXPECT_TRUE(std::holds_alternative<StepPlan>(*second))
            << "seed " << seed << ": " << no->reason;
        continue;
      }
      const StepPlan& plan = std::get<StepPlan>(*result);
      ++plans;
      const Status good = verify(plan.program);
      ASSERT_TRUE(good.ok()) << "seed " << seed << ", " << percent << " %: " << good.message();
      EXPECT_LE(plan.program.arena_bytes, r.budget);
      EXPECT_LE(plan.bound.total_ns, plan.predicted.total_ns) << plan.bound.reason;
      for (const Considered& c : plan.portfolio) {
        if (c.fits) {
          EXPECT_LE(plan.predicted.total_ns, c.predicted_ns) << c.policy;
        }
      }
      // The same request, the same plan.
      if (seed % 8 == 0) {
        auto again = plan_step(r);
        EXPECT_TRUE(to_text(std::get<StepPlan>(*again).program) == to_text(plan.program));
      }
    }
  }
  EXPECT_GT(plans, 100);
  EXPECT_GT(refusals, 0);
}

}  // namespace
}  // namespace headrace
