// plan_step from end to end, on chains and random steps.
#include "headrace/plan/step_plan.h"

#include <gtest/gtest.h>

#include "headrace/plan/problem.h"
#include "tests/plan/small_graphs.h"
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
  for (uint32_t seed = 0; seed < 12; ++seed) {
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
  EXPECT_GT(plans, 20);
  EXPECT_GT(refusals, 0);
}

TEST(StepPlan, TheLeastBudgetOfACertificateIsEnoughAndNearlyNeeded) {
  for (uint32_t seed = 100; seed < 110; ++seed) {
    const auto workload = test::random_step(20, seed).finish();
    const Machine m = step_machine(1e9);
    StepRequest r = step_request(workload, m, 64);
    auto result = plan_step(r);
    ASSERT_TRUE(result.ok()) << result.status().message();
    ASSERT_TRUE(std::holds_alternative<Infeasible>(*result));
    const Infeasible no = std::get<Infeasible>(*result);
    r.budget = no.needed_bytes;
    auto enough = plan_step(r);
    ASSERT_TRUE(enough.ok());
    ASSERT_TRUE(std::holds_alternative<StepPlan>(*enough)) << "seed " << seed;
    EXPECT_TRUE(verify(std::get<StepPlan>(*enough).program).ok());
    // Bisection finds nothing that fits far below it.
    Bytes fails = 0, fits = r.budget;
    for (int i = 0; i < 5; ++i) {
      r.budget = fails + (fits - fails) / 2;
      auto again = plan_step(r);
      ASSERT_TRUE(again.ok());
      (std::holds_alternative<StepPlan>(*again) ? fits : fails) = r.budget;
    }
    EXPECT_GT(fits, no.needed_bytes / 10 * 9) << "seed " << seed;
  }
}

TEST(StepPlan, APlanIsNeverSlowerThanTheOneItInherits) {
  const auto workload = test::training_chain(12).finish();
  const Machine m = step_machine(6e8);
  StepRequest r = step_request(workload, m, 8 << 20);
  Program last;
  Nanos time = INT64_MAX;
  for (int i = 0; i < 8; ++i) {
    r.inherit = last.graph != nullptr ? &last : nullptr;
    auto result = plan_step(r);
    ASSERT_TRUE(result.ok()) << result.status().message();
    if (auto* plan = std::get_if<StepPlan>(&*result)) {
      EXPECT_LE(plan->predicted.total_ns, time);
      EXPECT_TRUE(verify(plan->program).ok()) << verify(plan->program).message();
      time = plan->predicted.total_ns;
      last = plan->program;
    }
    r.budget += 1 << 20;
  }
  // The same budget, a faster link.
  const Machine fast = step_machine(9e8);
  r.machine = &fast;
  r.budget = last.arena_bytes;
  r.inherit = &last;
  auto result = plan_step(r);
  ASSERT_TRUE(result.ok()) << result.status().message();
  EXPECT_LE(std::get<StepPlan>(*result).predicted.total_ns, time);
  // Another step's plan is refused.
  const auto other = test::training_chain(11).finish();
  StepRequest wrong = step_request(other, m, 1 << 24);
  wrong.inherit = &last;
  EXPECT_EQ(plan_step(wrong).status().code(), Code::kUsage);
}

TEST(StepPlan, TheGoalFitReturnsTheFirstPlanThatFits) {
  const auto workload = test::training_chain(10).finish();
  const Machine m = step_machine(1e9);
  StepRequest r = step_request(workload, m, 1 << 30);
  r.goal = Goal::kFit;
  auto roomy = plan_step(r);
  ASSERT_TRUE(roomy.ok());
  EXPECT_EQ(std::get<StepPlan>(*roomy).portfolio.size(), 1u);
  r.budget = 7 << 20;
  auto tight = plan_step(r);
  ASSERT_TRUE(tight.ok());
  ASSERT_TRUE(std::holds_alternative<StepPlan>(*tight));
  EXPECT_TRUE(verify(std::get<StepPlan>(*tight).program).ok());
}

TEST(StepPlan, RulesAreObeyedByThePlan) {
  const Machine m = step_machine(2e9);
  for (uint32_t seed = 0; seed < 12; ++seed) {
    test::StepBuilder b = test::random_step(24, seed);
    for (size_t t = 0; t < b.w.graph.tensors.size(); t += 3) {
      PlacementRule rule;
      rule.tensor = TensorId(static_cast<int64_t>(t));
      if (t % 2 == 0) {
        rule.pinned = true;
      } else {
        rule.recompute = false;
      }
      b.w.rules.push_back(rule);
    }
    const auto workload = b.finish();
    StepRequest r = step_request(workload, m, 0);
    r.budget = kept_peak(r) / 100 * 75;
    auto result = plan_step(r);
    ASSERT_TRUE(result.ok()) << result.status().message();
    const auto* plan = std::get_if<StepPlan>(&*result);
    if (plan == nullptr) continue;
    for (const PlacementRule& rule : workload->rules) {
      for (const Instr& i : plan->program.instrs) {
        if (!rule.pinned || i.kind == InstrKind::kCompute) continue;
        EXPECT_NE(i.tensor, rule.tensor) << "seed " << seed;
      }
    }
  }
}

TEST(StepPlan, InferenceGraphsWithWeightsArePlannedToo) {
  int plans = 0;
  for (uint64_t seed = 0; seed < 12; ++seed) {
    const test::SmallGraph small = test::random_graph(seed);
    auto w = std::make_shared<Workload>();
    w->graph = *small.graph;
    w->cyclic = seed % 2 == 0;
    Machine m = Machine::defaults(1);
    StepRequest r = step_request(w, m, 0);
    const Bytes peak = kept_peak(r);
    for (int percent : {120, 80, 50}) {
      r.budget = round_up(peak / 100 * percent, kPage);
      auto result = plan_step(r);
      ASSERT_TRUE(result.ok()) << result.status().message();
      const auto* plan = std::get_if<StepPlan>(&*result);
      if (plan == nullptr) continue;
      ++plans;
      const Status good = verify(plan->program);
      ASSERT_TRUE(good.ok()) << "seed " << seed << ", " << percent << " %: " << good.message();
      EXPECT_LE(plan->program.arena_bytes, r.budget);
    }
  }
  EXPECT_GT(plans, 15);
}

TEST(StepPlan, ImpossibleRequestsAreRefusedWithoutPlanning) {
  const auto workload = test::training_chain(3).finish();
  Machine m = step_machine(1e9);
  EXPECT_EQ(plan_step(step_request(workload, m, -1)).status().code(), Code::kUsage);
  m.tiers[1].load_bytes_per_s = 0;
  EXPECT_EQ(plan_step(step_request(workload, m, 1 << 30)).status().code(), Code::kBadFile);
  const Machine good = step_machine(1e9);
  test::StepBuilder empty("empty");
  EXPECT_EQ(plan_step(step_request(empty.finish(), good, 1 << 30)).status().code(), Code::kUsage);
  test::StepBuilder cycle("cycle");
  const TensorId x = cycle.tensor("x", 64), y = cycle.tensor("y", 64);
  cycle.op("a", {y}, {x});
  cycle.op("b", {x}, {y});
  EXPECT_EQ(plan_step(step_request(cycle.finish(), good, 1 << 30)).status().code(),
            Code::kBadFile);
}

}  // namespace
}  // namespace headrace
