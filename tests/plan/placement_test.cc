// Placement decides what stays, moves and runs again; every schedule is replayed byte by byte.
#include "headrace/plan/placement.h"

#include <gtest/gtest.h>

#include "placement_check.h"
#include "step_graphs.h"

namespace headrace::plan {
namespace {

using test::ScheduleChecker;

struct Case {
  std::shared_ptr<const Workload> workload;
  Machine machine;
  StepRequest request;
  Problem problem;
};

Problem problem_of(const StepRequest& request) {
  Result<Problem> p = make_problem(request, program_order(request.workload->graph));
  EXPECT_TRUE(p.ok()) << p.status().message();
  return std::move(p).value();
}

Bytes peak_of(const Problem& p) {
  const std::vector<Bytes> profile = resident_profile(p);
  return *std::max_element(profile.begin(), profile.end());
}

std::string check(const Problem& p, const Placement& placed) {
  if (!placed.fits) return "does not fit";
  return ScheduleChecker(p, placed.schedule).run();
}

TEST(Placement, KeepsEverythingWhenEverythingFits) {
  const Machine machine = test::step_machine(1e9);
  auto b = test::training_chain(6);
  StepRequest request = test::step_request(b.finish(), machine, 1 << 30);
  const Problem p = problem_of(request);
  const auto placed = place(p);
  ASSERT_TRUE(placed.ok() && placed->fits);
  EXPECT_TRUE(placed->schedule.actions.empty());
  EXPECT_EQ(placed->predicted_ns, compute_ns(p));
}

TEST(Placement, HidesMovesBehindComputeWhenTheLinkIsFast) {
  const Machine machine = test::step_machine(8e9);  // an activation in an eighth of an op
  auto b = test::training_chain(12);
  StepRequest request = test::step_request(b.finish(), machine, 0);
  request.recompute = false;
  Problem p = problem_of(request);
  p.budget = peak_of(p) * 6 / 10;
  const auto placed = place(p);
  ASSERT_TRUE(placed.ok());
  EXPECT_EQ(check(p, *placed), "");
  EXPECT_FALSE(placed->schedule.actions.empty());
  EXPECT_LE(placed->predicted_ns, compute_ns(p) * 101 / 100);
}

TEST(Placement, RunsOpsAgainWhenTheLinkIsSlow) {
  const Machine machine = test::step_machine(1e6);  // a second for an activation
  auto b = test::training_chain(12);
  StepRequest request = test::step_request(b.finish(), machine, 0);
  Problem p = problem_of(request);
  p.budget = peak_of(p) * 7 / 10;
  const auto placed = place(p);
  ASSERT_TRUE(placed.ok());
  ScheduleChecker checker(p, placed->schedule);
  EXPECT_EQ(checker.run(), "");
  EXPECT_GT(checker.reruns(), 0);
  EXPECT_LE(placed->predicted_ns, 2 * compute_ns(p));
}

TEST(Placement, SchedulesOfRandomStepsAreValidAtEveryBudgetThatFits) {
  for (uint32_t seed = 0; seed < 40; ++seed) {
    const int ops = 10 + static_cast<int>(seed % 5) * 12;
    const Machine machine = test::step_machine(seed % 2 == 0 ? 2e8 : 2e9);
    auto b = test::random_step(ops, seed);
    for (bool cyclic : {false, true}) {
      b.w.cyclic = cyclic;
      StepRequest request = test::step_request(b.finish(), machine, 0);
      Problem p = problem_of(request);
      const Bytes peak = peak_of(p);
      bool fitted = true;
      for (int percent = 95; percent >= 40; percent -= 11) {
        p.budget = peak * percent / 100;
        PlaceOptions options;
        options.effort = 0.02;
        const auto placed = place(p, options);
        ASSERT_TRUE(placed.ok()) << placed.status().message();
        fitted = placed->fits;
        if (!fitted) {
          EXPECT_GE(placed->worst_position, 0);
          EXPECT_GT(placed->missing_bytes, 0);
          continue;
        }
        EXPECT_EQ(check(p, *placed), "") << "seed " << seed << " cyclic " << cyclic << " at "
                                         << percent << " %";
        EXPECT_GE(placed->predicted_ns, compute_ns(p));
      }
    }
  }
}

TEST(Placement, IsDeterministic) {
  const Machine machine = test::step_machine(3e8);
  auto b = test::random_step(60, 7);
  StepRequest request = test::step_request(b.finish(), machine, 0);
  Problem p = problem_of(request);
  p.budget = peak_of(p) * 7 / 10;
  const auto one = place(p), two = place(p);
  ASSERT_TRUE(one.ok() && two.ok() && one->fits);
  ASSERT_EQ(one->schedule.actions.size(), two->schedule.actions.size());
  for (size_t i = 0; i < one->schedule.actions.size(); ++i) {
    const Action &x = one->schedule.actions[i], &y = two->schedule.actions[i];
    EXPECT_TRUE(x.kind == y.kind && x.before == y.before);
    EXPECT_TRUE(x.value == y.value && x.range == y.range);
  }
}

TEST(Placement, ObeysRulesOrRefusesThem) {
  const Machine machine = test::step_machine(1e9);
  auto b = test::training_chain(8);
  const TensorId kept = TensorId(1 + 8 + 1), sent = TensorId(1 + 8 + 2);  // a1, a2
  PlacementRule pinned;
  pinned.tensor = kept;
  pinned.pinned = true;
  PlacementRule remote;
  remote.tensor = sent;
  remote.remote = true;
  b.w.rules = {pinned, remote};
  StepRequest request = test::step_request(b.finish(), machine, 0);
  Problem p = problem_of(request);
  p.budget = peak_of(p) * 7 / 10;
  const auto placed = place(p);
  ASSERT_TRUE(placed.ok());
  EXPECT_EQ(check(p, *placed), "");
  bool moved = false;
  for (const Action& a : placed->schedule.actions) {
    EXPECT_NE(p.values[static_cast<size_t>(a.value)].tensor, kept);
    if (a.kind == ActionKind::kLoad) {
      moved = moved || p.values[static_cast<size_t>(a.value)].tensor == sent;
    }
  }
  EXPECT_TRUE(moved);

  PlacementRule impossible = remote;
  impossible.tensor = TensorId(static_cast<int64_t>(b.w.graph.tensors.size()) - 1);  // no gap
  b.w.rules = {impossible};
  StepRequest refused = test::step_request(b.finish(), machine, 1 << 30);
  const Problem q = problem_of(refused);
  const auto no = place(q);
  ASSERT_FALSE(no.ok());
  EXPECT_EQ(no.status().code(), Code::kUsage);
}

TEST(Placement, NeverPutsMoreIntoATierThanItHolds) {
  Machine machine = test::step_machine(4e9, Bytes{3} << 20);
  machine.tiers.push_back({"disk", Bytes{1} << 40, 5e8, 5e8, 1000, false});
  auto b = test::training_chain(16);
  StepRequest request = test::step_request(b.finish(), machine, 0);
  request.recompute = false;
  Problem p = problem_of(request);
  p.budget = peak_of(p) / 2;
  const auto placed = place(p);
  ASSERT_TRUE(placed.ok());
  EXPECT_EQ(check(p, *placed), "");
  bool disk = false;
  for (const Action& a : placed->schedule.actions) disk = disk || a.tier == TierId(2);
  EXPECT_TRUE(disk);
}

}  // namespace
}  // namespace headrace::plan
