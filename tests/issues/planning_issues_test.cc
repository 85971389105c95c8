// Failures that other planners were reported for: one report, one test.
#include <gtest/gtest.h>

#include <algorithm>

#include "headrace/plan/step_plan.h"
#include "tests/plan/step_graphs.h"

namespace headrace {
namespace {

using test::step_machine;
using test::step_request;
using test::training_chain;

constexpr Bytes kMB = 1 << 20;

StepResult planned(const StepRequest& r) {
  auto result = plan_step(r);
  EXPECT_TRUE(result.ok()) << result.status().message();
  return std::move(result).value();
}

// The most bytes that the residencies of `tier` hold at any step.
Bytes held(const Program& p, TierId tier) {
  std::vector<Bytes> change(p.instrs.size() + 2, 0);
  for (const Residency& r : p.residencies) {
    if (r.tier != tier) continue;
    change[static_cast<size_t>(r.begin.value + 1)] += r.bytes;
    change[static_cast<size_t>(r.end.value + 1)] -= r.bytes;
  }
  Bytes now = 0, most = 0;
  for (Bytes c : change) most = std::max(most, now += c);
  return most;
}

// jax-ml/jax#20763: the scheduler overlapped copies with compute and took five times the memory;
// the limit was a tie-break. Here it is a constraint, however much faster more memory would be.
TEST(PlanningIssues, TheBudgetHoldsHoweverMuchOverlapItCosts) {
  const auto workload = training_chain(16).finish();
  const Machine slow = step_machine(5e7);
  for (Bytes budget = 7 * kMB; budget <= 20 * kMB; budget += kMB) {
    const StepRequest r = step_request(workload, slow, budget);
    const StepResult result = planned(r);
    const auto* plan = std::get_if<StepPlan>(&result);
    if (plan == nullptr) continue;
    EXPECT_LE(plan->program.arena_bytes, budget);
    EXPECT_LE(held(plan->program, kDevice), budget);
    EXPECT_TRUE(verify(plan->program).ok()) << verify(plan->program).message();
  }
}

// openxla/xla#17541: an offload was asked for and silently did not happen.
TEST(PlanningIssues, WhatIsAskedToBeRemoteIsMovedOrRefused) {
  test::StepBuilder b = training_chain(8);
  const Machine m = step_machine(1e10);
  PlacementRule rule;
  rule.remote = true;
  const auto named = [&](const std::string& name) {
    for (size_t t = 0; t < b.w.graph.tensors.size(); ++t) {
      if (b.w.graph.tensors[t].name == name) return TensorId(static_cast<int64_t>(t));
    }
    return TensorId();
  };
  rule.tensor = named("a2");
  b.w.rules = {rule};
  const auto workload = b.finish();
  // There is room for everything: the rule alone says that it moves.
  const StepResult result = planned(step_request(workload, m, 1 << 30));
  ASSERT_TRUE(std::holds_alternative<StepPlan>(result));
  const StepPlan& plan = std::get<StepPlan>(result);
  int stores = 0, detaches = 0, loads = 0;
  for (const Instr& i : plan.program.instrs) {
    if (i.kind == InstrKind::kCompute || i.tensor != rule.tensor) continue;
    stores += i.kind == InstrKind::kStore;
    detaches += i.kind == InstrKind::kDetach;
    loads += i.kind == InstrKind::kLoad;
  }
  EXPECT_GE(stores, 1);
  EXPECT_GE(detaches, 1);
  EXPECT_GE(loads, 1);
  EXPECT_GE(held(plan.program, TierId(1)), kMB);
  // A tensor that is never idle cannot be away: said by name.
  b.w.rules[0].tensor = named("a7");
  const auto impossible = b.finish();
  auto refused = plan_step(step_request(impossible, m, 1 << 30));
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.status().code(), Code::kUsage);
  EXPECT_NE(refused.status().message().find("a7"), std::string::npos);
}

// pytorch/pytorch#197838: a smaller activation budget gave a larger peak.
TEST(PlanningIssues, ASmallerBudgetNeverNeedsMoreMemoryThanIsGiven) {
  const auto workload = training_chain(12).finish();
  const Machine m = step_machine(1e9);
  StepRequest r = step_request(workload, m, 1 << 30);
  const StepResult free = planned(r);
  const Bytes peak = std::get<StepPlan>(free).program.arena_bytes;
  for (int percent = 95; percent >= 30; percent -= 5) {
    r.budget = peak / 100 * percent;
    const StepResult result = planned(r);
    const auto* plan = std::get_if<StepPlan>(&result);
    if (plan == nullptr) continue;
    EXPECT_LE(plan->program.arena_bytes, r.budget);
    EXPECT_LT(plan->program.arena_bytes, peak);
  }
}

// EnzymeAD/Enzyme-JAX PR#1307: "can't reduce memory use below", and nobody knew where it went.
TEST(PlanningIssues, WhatDoesNotFitSaysWhereTheMemoryGoes) {
  const auto workload = training_chain(6).finish();
  const Machine m = step_machine(1e9);
  const StepRequest r = step_request(workload, m, kMB);
  const StepResult result = planned(r);
  ASSERT_TRUE(std::holds_alternative<Infeasible>(result));
  const Infeasible& no = std::get<Infeasible>(result);
  EXPECT_GE(no.needed_bytes, 2 * kMB);
  EXPECT_FALSE(no.live.empty());
  const auto bytes = [&](TensorId t) { return workload->graph.at(t).bytes; };
  for (size_t i = 1; i < no.live.size(); ++i) {
    EXPECT_GE(bytes(no.live[i - 1]), bytes(no.live[i]));
  }
  EXPECT_NE(no.reason.find(workload->graph.at(no.live[0]).name), std::string::npos) << no.reason;
  ASSERT_FALSE(no.options.empty());
  EXPECT_NE(no.options[0].find(std::to_string(no.needed_bytes)), std::string::npos);
  StepRequest enough = r;
  enough.budget = no.needed_bytes;
  EXPECT_TRUE(std::holds_alternative<StepPlan>(planned(enough)));
}

// deepspeedai/DeepSpeed#4867: offloading was chosen because host memory was short, and the host
// was overrun all the same. Every tier has a capacity here.
TEST(PlanningIssues, HostMemoryIsBudgetedLikeTheDevices) {
  const auto workload = training_chain(12).finish();
  for (Bytes host : {8 * kMB, 4 * kMB, 2 * kMB, 1 * kMB}) {
    const Machine m = step_machine(1e9, host);
    StepRequest r = step_request(workload, m, 10 * kMB);
    const StepResult result = planned(r);
    const auto* plan = std::get_if<StepPlan>(&result);
    if (plan == nullptr) continue;
    EXPECT_TRUE(verify(plan->program).ok()) << verify(plan->program).message();
    for (const Residency& res : plan->program.residencies) {
      if (res.tier == TierId(1)) {
        EXPECT_LE(res.offset + res.bytes, host);
      }
    }
  }
}

// deepspeedai/DeepSpeed#1130: blocking copies on the compute path, and nothing that counted them.
TEST(PlanningIssues, CopiesRunBesideComputeAndStallsAreCounted) {
  const auto workload = training_chain(16).finish();
  const Machine m = step_machine(4e9);
  const StepRequest r = step_request(workload, m, 10 * kMB);
  const StepResult result = planned(r);
  ASSERT_TRUE(std::holds_alternative<StepPlan>(result));
  const StepPlan& plan = std::get<StepPlan>(result);
  Nanos compute = 0, copies = 0, stalls = 0;
  for (size_t s = 0; s < plan.program.instrs.size(); ++s) {
    const Instr& i = plan.program.instrs[s];
    const TraceRecord& t = plan.predicted.records[s];
    if (i.kind == InstrKind::kCompute) compute += i.cost_ns;
    if (i.kind == InstrKind::kCompute) stalls += t.stall_ns;
    if (is_transfer(i.kind)) {
      copies += t.end_ns - t.begin_ns;
      EXPECT_NE(i.stream, kComputeStream);
    }
  }
  EXPECT_EQ(plan.predicted.stall_ns, stalls);
  EXPECT_EQ(plan.predicted.total_ns, compute + stalls);
  EXPECT_LE(stalls, copies / 10 + 1'000'000);  // nearly all copying is beside compute
}

}  // namespace
}  // namespace headrace
