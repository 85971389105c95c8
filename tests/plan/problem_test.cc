#include "headrace/plan/problem.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/plan/step_graphs.h"

namespace headrace::plan {
namespace {

using test::StepBuilder;
using test::step_machine;
using test::step_request;

Problem problem_of(const StepRequest& request) {
  auto p = make_problem(request, program_order(request.workload->graph));
  EXPECT_TRUE(p.ok()) << p.status().message();
  return std::move(p).value();
}

const Value& value(const Problem& p, TensorId t) {
  return p.values[static_cast<size_t>(p.value_of[t.index()])];
}

TEST(Problem, TouchesWritesAndBirthsFollowTheOrder) {
  StepBuilder b("g");
  const TensorId w = b.state("w", 4096), x = b.tensor("x", 8192), y = b.tensor("y", 100);
  b.op("a", {w}, {x}, 1000);
  b.op("b", {x}, {y}, 1000);
  b.op("c", {x, x, y}, {}, 1000, {w}, 100);
  const Machine m = step_machine(1e9);
  const auto workload = b.finish();
  const StepRequest r = step_request(workload, m, 1 << 20);
  const Problem p = problem_of(r);
  EXPECT_EQ(value(p, w).touches, (std::vector<int32_t>{0, 2}));
  EXPECT_EQ(value(p, w).writes, (std::vector<int32_t>{2}));
  EXPECT_TRUE(value(p, w).persistent);
  EXPECT_TRUE(value(p, w).on_device_at_entry);
  EXPECT_FALSE(value(p, w).can_recompute);
  EXPECT_EQ(value(p, x).touches, (std::vector<int32_t>{0, 1, 2}));
  EXPECT_EQ(value(p, x).producer, 0);
  EXPECT_TRUE(value(p, x).can_recompute);
  EXPECT_EQ(value(p, y).bytes, 128);  // rounded to a line
  EXPECT_EQ(p.reads[2].size(), 3u);
  EXPECT_EQ(p.births[1], (std::vector<int32_t>{p.value_of[y.index()]}));
  EXPECT_EQ(p.workspace[2], 128);
  EXPECT_EQ(resident_profile(p), (std::vector<Bytes>{12288, 12416, 12544}));
}

TEST(Problem, AnOpThatUpdatesOrMustRunOnceIsNotRecomputed) {
  StepBuilder b("g");
  const TensorId w = b.state("w", 64), x = b.tensor("x", 64), y = b.tensor("y", 64);
  b.op("a", {}, {x}, 1000, {w});
  b.op("b", {x}, {y}, 1000);
  b.w.graph.ops.back().attrs[Attr::kRecompute] = 0;
  b.op("c", {x, y}, {}, 1000);
  const Machine m = step_machine(1e9);
  const auto workload = b.finish();
  const StepRequest r = step_request(workload, m, 1 << 20);
  const Problem p = problem_of(r);
  EXPECT_FALSE(value(p, x).can_recompute);
  EXPECT_FALSE(value(p, y).can_recompute);
}

TEST(Problem, OutputsAreTouchedByTheEndAndUnusedStatesAreValues) {
  StepBuilder b("g");
  const TensorId s = b.state("s", 4096), x = b.tensor("x", 64, Role::kOutput);
  const TensorId y = b.tensor("y", 64);
  b.op("a", {}, {x}, 1000);
  b.op("b", {}, {y}, 1000);
  b.op("c", {y}, {}, 1000);
  const Machine m = step_machine(1e9);
  const auto workload = b.finish();
  const StepRequest r = step_request(workload, m, 1 << 20);
  const Problem p = problem_of(r);
  EXPECT_EQ(value(p, x).touches, (std::vector<int32_t>{0, 2}));
  EXPECT_TRUE(value(p, s).touches.empty());
  EXPECT_EQ(resident_profile(p), (std::vector<Bytes>{4160, 4224, 4224}));
}

TEST(Problem, AnOrderThatReadsBeforeItIsWrittenIsRefused) {
  StepBuilder b("g");
  const TensorId x = b.tensor("x", 64);
  b.op("a", {}, {x}, 1000);
  b.op("b", {x}, {}, 1000);
  const Machine m = step_machine(1e9);
  const auto workload = b.finish();
  const StepRequest r = step_request(workload, m, 1 << 20);
  EXPECT_EQ(make_problem(r, {OpId(1), OpId(0)}).status().code(), Code::kUsage);
  EXPECT_EQ(make_problem(r, {OpId(0), OpId(0)}).status().code(), Code::kUsage);
  EXPECT_EQ(make_problem(r, {OpId(0)}).status().code(), Code::kUsage);
}

TEST(Problem, ARequestThatCannotBeObeyedIsRefusedByName) {
  const Machine m = step_machine(1e9);
  const auto refused = [&](PlacementRule rule) {
    StepBuilder b = test::training_chain(2);
    if (!rule.tensor.valid()) rule.tensor = TensorId(4);
    b.w.rules.push_back(rule);
    const auto workload = b.finish();
    return check_request(step_request(workload, m, 1 << 20));
  };
  PlacementRule rule;
  EXPECT_TRUE(refused(rule).ok()) << refused(rule).message();
  rule.forbidden_tiers = {"moon"};
  EXPECT_EQ(refused(rule).code(), Code::kUsage);
  EXPECT_NE(refused(rule).message().find("moon"), std::string::npos);
  rule.forbidden_tiers = {"host"};
  EXPECT_TRUE(refused(rule).ok());
  rule.remote = true;
  EXPECT_EQ(refused(rule).code(), Code::kUsage);
  rule.forbidden_tiers = {};
  rule.pinned = true;
  EXPECT_EQ(refused(rule).code(), Code::kUsage);
  rule = {};
  rule.tensor = TensorId(1000);
  EXPECT_EQ(refused(rule).code(), Code::kUsage);
}

TEST(Problem, ImpossibleMachinesAreRefused) {
  const auto workload = test::training_chain(2).finish();
  for (double rate : {0.0, -1.0, std::nan("")}) {
    Machine m = step_machine(1e9);
    m.tiers[1].load_bytes_per_s = rate;
    EXPECT_EQ(check_request(step_request(workload, m, 1 << 20)).code(), Code::kBadFile);
  }
}

}  // namespace
}  // namespace headrace::plan
