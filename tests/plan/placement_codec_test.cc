// Codecs as ways of an idle gap: chosen where they are cheapest, and only where a rule allows them.
#include <gtest/gtest.h>

#include "headrace/plan/placement.h"
#include "headrace/plan/step_pipeline.h"
#include "headrace/sim/simulate.h"
#include "placement_check.h"
#include "step_graphs.h"

namespace headrace {
namespace {

using test::StepBuilder;

// A training chain of ops that cannot run twice; its activations may be encoded by `codecs`.
StepBuilder chain(int layers, std::vector<Codec> codecs) {
  StepBuilder b = test::training_chain(layers);
  for (Op& op : b.w.graph.ops) op.attrs[Attr::kRecompute] = 0;
  for (size_t t = 0; t < b.w.graph.tensors.size() && !codecs.empty(); ++t) {
    if (b.w.graph.tensors[t].name[0] != 'a') continue;
    PlacementRule rule;
    rule.tensor = TensorId(static_cast<int64_t>(t));
    rule.codecs = codecs;
    b.w.rules.push_back(rule);
  }
  return b;
}

// Device memory of 100 GB/s: encoding a MiB takes some 20 us, an op of the chain 1 ms.
Machine machine_of(double rate) {
  Machine m = test::step_machine(rate);
  m.memory_bytes_per_s = 1e11;
  // No link: a tier that nothing has room in.
  if (rate <= 0) m.tiers[1] = {"host", 64, 1e9, 1e9, 0, true};
  return m;
}

struct Used {
  int plain = 0, resident = 0, moved = 0, computed_again = 0;
};

Used used(const StepPlan& plan) {
  Used u;
  for (const Choice& c : plan.choices) {
    u.plain += c.way == Way::kMove ? 1 : 0;
    u.resident += c.way == Way::kCompress ? 1 : 0;
    u.moved += c.way == Way::kMoveCompressed ? 1 : 0;
    u.computed_again += c.way == Way::kRecompute ? 1 : 0;
  }
  return u;
}

// The plan at a share of the peak; a failure when there is none.
StepPlan plan_of(StepBuilder& b, const Machine& machine, int percent) {
  StepRequest request = test::step_request(b.finish(), machine, 0);
  auto problem = plan::make_problem(request, plan::program_order(request.workload->graph));
  EXPECT_TRUE(problem.ok()) << problem.status().message();
  request.budget =
      round_up(plan::peak_of(plan::resident_profile(*problem)) * percent / 100, kLine);
  auto result = plan_step(request);
  EXPECT_TRUE(result.ok()) << result.status().message();
  if (!result.ok()) return {};
  const auto* plan = std::get_if<StepPlan>(&*result);
  if (plan == nullptr) {
    ADD_FAILURE() << std::get<Infeasible>(*result).reason;
    return {};
  }
  EXPECT_TRUE(verify(plan->program).ok()) << verify(plan->program).message();
  EXPECT_LE(plan->program.arena_bytes, request.budget);
  EXPECT_LE(plan->bound.total_ns, plan->predicted.total_ns);
  for (const PassTime& pass : plan->passes) EXPECT_NE(pass.pass, plan::kRefused);
  return *plan;
}

TEST(PlacementCodec, WithoutALinkActivationsStayCompressed) {
  const Machine machine = machine_of(0);
  StepBuilder b = chain(12, {Codec::kBf16});
  const StepPlan plan = plan_of(b, machine, 76);
  const Used u = used(plan);
  EXPECT_GT(u.resident, 0);
  EXPECT_EQ(u.plain + u.moved + u.computed_again, 0);
  for (const Choice& c : plan.choices) EXPECT_EQ(c.codec, Codec::kBf16);
  // Each is encoded and decoded once, which is all that it costs.
  Nanos codecs = 0;
  for (const Instr& i : plan.program.instrs) {
    if (i.kind == InstrKind::kEncode || i.kind == InstrKind::kDecode) codecs += i.cost_ns;
  }
  EXPECT_EQ(plan.predicted.total_ns, plan.bound.compute_ns + codecs);
}

TEST(PlacementCodec, OverASlowLinkTheEncodedFormMoves) {
  // A MiB takes 4 ms each way, encoded 1 ms, an op's time; and so little memory is left that not
  // even the encoded forms may all stay.
  const Machine machine = machine_of(2.5e8);
  StepBuilder b("moves");
  std::vector<TensorId> acts;
  TensorId x = b.state("input", 1 << 20);
  for (int i = 0; i < 16; ++i) {
    acts.push_back(b.tensor("a" + std::to_string(i), 1 << 20));
    b.op("f" + std::to_string(i), {x}, {acts.back()});
    x = acts.back();
  }
  for (int i = 15; i >= 0; --i) {
    const TensorId next = b.tensor("g" + std::to_string(i), 1 << 20);
    b.op("b" + std::to_string(i), {x, acts[static_cast<size_t>(i)]}, {next});
    x = next;
  }
  for (Op& op : b.w.graph.ops) op.attrs[Attr::kRecompute] = 0;
  for (TensorId a : acts) {
    PlacementRule rule;
    rule.tensor = a;
    rule.codecs = {Codec::kInt8Block};
    b.w.rules.push_back(rule);
  }
  const StepPlan plan = plan_of(b, machine, 33);
  const Used u = used(plan);
  EXPECT_GT(u.moved, 0);
  bool stored = false;
  for (const Instr& i : plan.program.instrs) {
    stored = stored || (i.kind == InstrKind::kStore && i.codec == Codec::kInt8Block);
  }
  EXPECT_TRUE(stored);
}

TEST(PlacementCodec, OverAFastLinkNothingIsEncoded) {
  const Machine machine = machine_of(8e9);  // an activation in an eighth of an op
  StepBuilder b = chain(12, {Codec::kBf16, Codec::kInt8Block});
  const Used u = used(plan_of(b, machine, 60));
  EXPECT_GT(u.plain, 0);
  EXPECT_EQ(u.resident + u.moved, 0);
}

TEST(PlacementCodec, WhatNoRuleAllowsIsNeverEncoded) {
  const Machine machine = machine_of(1e8);
  StepBuilder b = chain(10, {});
  EXPECT_EQ(used(plan_of(b, machine, 60)).resident, 0);
  StepBuilder one = chain(10, {});
  PlacementRule rule;
  rule.tensor = TensorId(1 + 10 + 3);
  rule.codecs = {Codec::kInt8Block};
  one.w.rules = {rule};
  const StepPlan plan = plan_of(one, machine, 60);
  EXPECT_GT(used(plan).resident + used(plan).moved, 0);
  for (const Instr& i : plan.program.instrs) {
    EXPECT_TRUE(i.codec == Codec::kNone || i.tensor == rule.tensor);
  }
}

TEST(PlacementCodec, LosslessIsPreferredAndNoValueIsEncodedTwoWays) {
  const Machine machine = machine_of(0);
  StepBuilder b = chain(10, {Codec::kInt8Block, Codec::kBf16, Codec::kMask});
  const StepPlan plan = plan_of(b, machine, 70);
  EXPECT_GT(used(plan).resident, 0);
  for (const Choice& c : plan.choices) EXPECT_EQ(c.codec, Codec::kMask);
}

TEST(PlacementCodec, BytePlanesWhoseSizeNobodyKnowsSaveNothing) {
  const Machine machine = machine_of(2e8);
  StepBuilder b = chain(10, {Codec::kBytePlane});
  EXPECT_EQ(used(plan_of(b, machine, 60)).resident, 0);
  EXPECT_EQ(used(plan_of(b, machine, 60)).moved, 0);
}

TEST(PlacementCodec, CodecsForWhatLiesInAFileAreRefused) {
  const Machine machine = machine_of(1e9);
  StepBuilder b = chain(4, {});
  Tensor w;
  w.name = "w";
  w.role = Role::kWeight;
  w.cols = 1024;
  w.bytes = 4096;
  w.source = {0, 0, 4096};
  const TensorId id = b.w.graph.add(w);
  b.w.graph.ops[0].inputs.push_back(id);
  PlacementRule rule;
  rule.tensor = id;
  rule.codecs = {Codec::kBf16};
  b.w.rules = {rule};
  const auto result = plan_step(test::step_request(b.finish(), machine, kGiB));
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.status().code(), Code::kUsage);
  EXPECT_NE(result.status().message().find("'w'"), std::string::npos);
}

// Random steps with codecs allowed at random.
StepBuilder random_coded(uint32_t seed) {
  StepBuilder b = test::random_step(10 + static_cast<int>(seed % 4) * 10, seed);
  std::mt19937 random(seed + 99);
  for (size_t t = 0; t < b.w.graph.tensors.size(); ++t) {
    PlacementRule rule;
    rule.tensor = TensorId(static_cast<int64_t>(t));
    for (Codec c : {Codec::kBf16, Codec::kInt8Block, Codec::kMask, Codec::kBytePlane}) {
      if (random() % 2 == 0) rule.codecs.push_back(c);
    }
    if (!rule.codecs.empty() && random() % 4 != 0) b.w.rules.push_back(rule);
  }
  b.w.cyclic = seed % 3 == 0;
  return b;
}

TEST(PlacementCodec, SchedulesOfRandomStepsAreValidAtEveryBudgetThatFits) {
  int encodes = 0, plans = 0;
  for (uint32_t seed = 0; seed < 60; ++seed) {
    Machine machine = machine_of(seed % 4 == 0 ? 0 : seed % 4 == 1 ? 2e7 : 4e8);
    StepBuilder b = random_coded(seed);
    StepRequest request = test::step_request(b.finish(), machine, 0);
    auto made = plan::make_problem(request, plan::program_order(request.workload->graph));
    ASSERT_TRUE(made.ok());
    plan::Problem p = std::move(made).value();
    const Bytes peak = plan::peak_of(plan::resident_profile(p));
    for (const int percent : {95, 80, 65, 50, 35}) {
      p.budget = round_up(peak * percent / 100, kLine);
      const auto placed = plan::place(p);
      ASSERT_TRUE(placed.ok()) << placed.status().message();
      if (!placed->fits) continue;
      test::ScheduleChecker checker(p, placed->schedule);
      ASSERT_EQ(checker.run(), "") << "seed " << seed << " at " << percent << " %";
      for (Bytes bytes : plan::schedule_profile(p, placed->schedule)) ASSERT_LE(bytes, p.budget);
      encodes += checker.encodes();
      ++plans;
    }
  }
  EXPECT_GT(plans, 100);
  EXPECT_GT(encodes, 200);
}

TEST(PlacementCodec, AStepThatMayUseCodecsIsNeverSlowerThanOneThatMayNot) {
  int faster = 0;
  for (uint32_t seed = 100; seed < 106; ++seed) {
    Machine machine = machine_of(seed % 2 == 0 ? 3e7 : 3e8);
    StepBuilder b = random_coded(seed);
    StepRequest request = test::step_request(b.finish(), machine, 0);
    auto p = plan::make_problem(request, plan::program_order(request.workload->graph));
    ASSERT_TRUE(p.ok());
    request.budget = round_up(plan::peak_of(plan::resident_profile(*p)) * 7 / 10, kLine);
    const auto with = plan_step(request);
    b.w.rules.clear();
    request.workload = b.finish();
    const auto without = plan_step(request);
    ASSERT_TRUE(with.ok() && without.ok());
    if (!std::holds_alternative<StepPlan>(*without)) continue;
    ASSERT_TRUE(std::holds_alternative<StepPlan>(*with)) << "seed " << seed;
    const Nanos a = std::get<StepPlan>(*with).predicted.total_ns;
    const Nanos c = std::get<StepPlan>(*without).predicted.total_ns;
    EXPECT_LE(a, c) << "seed " << seed;
    EXPECT_TRUE(verify(std::get<StepPlan>(*with).program).ok());
    faster += a < c ? 1 : 0;
  }
  EXPECT_GT(faster, 1);
}

}  // namespace
}  // namespace headrace
