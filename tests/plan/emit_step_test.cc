// Every policy's schedule becomes a Program that verify() accepts.
#include "headrace/plan/emit_step.h"

#include <gtest/gtest.h>

#include "headrace/plan/heuristics.h"
#include "headrace/sim/simulate.h"
#include "tests/plan/step_graphs.h"

namespace headrace::plan {
namespace {

using test::step_machine;
using test::step_request;

Bytes peak_of(const std::vector<Bytes>& profile) {
  return *std::max_element(profile.begin(), profile.end());
}

struct Made {
  int fits = 0;
  int moved = 0;
  int rerun = 0;
};

// Emits all policies for this budget; each that fits must verify, and hold what its profile says.
void emit_all(const StepRequest& request, Made& made) {
  auto p = make_problem(request, program_order(request.workload->graph));
  ASSERT_TRUE(p.ok()) << p.status().message();
  for (int i = 0; i < kPolicyCount; ++i) {
    const Policy policy = static_cast<Policy>(i);
    const PolicySchedule s = run_policy(*p, policy);
    if (!s.fits) continue;
    auto e = emit_step(*p, s.schedule, {});
    ASSERT_TRUE(e.ok()) << name_of(policy) << ": " << e.status().message();
    const Status good = verify(e->program);
    ASSERT_TRUE(good.ok()) << request.name << ", " << name_of(policy) << ", budget "
                           << request.budget << ": " << good.message();
    if (e->excess == 0) {
      EXPECT_LE(e->program.arena_bytes, request.budget);
    }
    ++made.fits;
    for (const Instr& instr : e->program.instrs) made.moved += is_transfer(instr.kind) ? 1 : 0;
    made.rerun += static_cast<int>(s.schedule.actions.size());
    EXPECT_GE(simulate(e->program).total_ns, 0);
  }
}

TEST(EmitStep, APolicyThatKeepsEverythingIsTheOpsAlone) {
  const auto workload = test::training_chain(4).finish();
  const Machine m = step_machine(1e9);
  const StepRequest r = step_request(workload, m, 1 << 30);
  auto p = make_problem(r, program_order(workload->graph));
  ASSERT_TRUE(p.ok());
  const PolicySchedule s = run_policy(*p, Policy::kKeepEverything);
  ASSERT_TRUE(s.fits);
  auto e = emit_step(*p, s.schedule, {});
  ASSERT_TRUE(e.ok()) << e.status().message();
  EXPECT_TRUE(verify(e->program).ok()) << verify(e->program).message();
  EXPECT_EQ(e->program.instrs.size(), 9u);
  EXPECT_EQ(s.peak_bytes, peak_of(resident_profile(*p)));
  EXPECT_EQ(simulate(e->program).total_ns, 4'000'000 + 1'000'000 + 8'000'000);
}

TEST(EmitStep, AllPoliciesVerifyOnATrainingChainAtEveryBudget) {
  for (const bool cyclic : {false, true}) {
    test::StepBuilder b = test::training_chain(8);
    b.w.cyclic = cyclic;
    const auto workload = b.finish();
    const Machine m = step_machine(1e9);
    Made made;
    for (Bytes budget = 3 << 20; budget < (16 << 20); budget += 1 << 20) {
      emit_all(step_request(workload, m, budget), made);
    }
    EXPECT_GT(made.fits, 50) << "cyclic " << cyclic;
    EXPECT_GT(made.moved, 100);
  }
}

TEST(EmitStep, AllPoliciesVerifyOnRandomSteps) {
  Made made;
  for (uint32_t seed = 0; seed < 60; ++seed) {
    test::StepBuilder b = test::random_step(12 + static_cast<int>(seed % 40), seed);
    b.w.cyclic = seed % 3 == 0;
    const auto workload = b.finish();
    Machine m = step_machine(1e8 * (1 + seed % 7));
    m.tiers[1].duplex = seed % 2 == 0;
    StepRequest r = step_request(workload, m, Bytes{1} << 40);
    auto p = make_problem(r, program_order(workload->graph));
    ASSERT_TRUE(p.ok());
    const Bytes peak = peak_of(resident_profile(*p));
    for (int percent : {100, 80, 60, 45, 30}) {
      r.budget = peak / 100 * percent;
      emit_all(r, made);
      if (HasFatalFailure()) return;
    }
  }
  EXPECT_GT(made.fits, 500);
}

}  // namespace
}  // namespace headrace::plan
