#include "headrace/plan/heuristics.h"

#include <gtest/gtest.h>

#include "headrace/plan/problem.h"
#include "tests/plan/step_graphs.h"

namespace headrace::test {
namespace {

using plan::Policy;
using plan::PolicySchedule;

constexpr Bytes kActivation = Bytes{1} << 20;
constexpr int kLayers = 25;

struct Chain {
  Machine machine = step_machine(10e9);
  StepRequest request;
  plan::Problem problem;

  explicit Chain(Bytes budget) {
    request = step_request(training_chain(kLayers, kActivation).finish(), machine, budget);
    auto made = plan::make_problem(request, plan::program_order(request.workload->graph));
    HR_CHECK(made.ok(), "a chain is a problem");
    problem = std::move(made).value();
  }
};

int64_t reruns(const PolicySchedule& s) {
  int64_t n = 0;
  for (const plan::Action& a : s.schedule.actions) n += a.kind == plan::ActionKind::kRecompute;
  return n;
}

TEST(Heuristics, CheckpointsSaveMemoryInAStepThatUpdatesItsWeightsAtTheEnd) {
  // Weights and the input take a quarter and one activation: 7.25. Of 26 activations sqrt(n) stay, a
  // block of as many comes back, and two gradients pass through.
  const Chain chain(22 * kActivation);
  EXPECT_GT(run_policy(chain.problem, Policy::kKeepEverything).peak_bytes, 31 * kActivation);
  const PolicySchedule s = run_policy(chain.problem, Policy::kCheckpointBlocks);
  EXPECT_TRUE(s.fits) << s.reason;
  EXPECT_LT(s.peak_bytes, 21 * kActivation);
  EXPECT_GE(reruns(s), 15);
  EXPECT_LE(reruns(s), kLayers);  // each forward op at most once more
}

TEST(Heuristics, WhatReadAWeightBeforeItsUpdateIsNotComputedAfterIt) {
  // `late` wants `a` when `w`, which `a` came from, has been written.
  StepBuilder b("late");
  const TensorId w = b.state("w", kActivation);
  const TensorId a = b.tensor("a", kActivation);
  const TensorId c = b.tensor("c", kActivation);
  const TensorId d = b.tensor("d", kActivation);
  const TensorId e = b.tensor("e", kActivation);
  b.op("make", {w}, {a});
  b.op("use", {a}, {c});
  b.op("update", {c}, {d}, 1'000'000, {w});
  b.op("late", {a, d}, {e});
  const Machine machine = step_machine(10e9);
  const StepRequest request = step_request(b.finish(), machine, 16 * kActivation);
  const auto problem = plan::make_problem(request, plan::program_order(request.workload->graph));
  ASSERT_TRUE(problem.ok()) << problem.status().message();
  EXPECT_EQ(reruns(run_policy(*problem, Policy::kRecomputeEverything)), 0);
}

}  // namespace
}  // namespace headrace::test
