// What the step planner makes, executed: outputs, states, bytes and time are those that it
// promised.
#include <gtest/gtest.h>

#include "headrace/plan/step_plan.h"
#include "headrace/sim/simulate.h"
#include "tests/run/step_testing.h"

namespace headrace {
namespace {

using test::Kind;
using test::PlainStep;
using test::RandomStep;
using test::StepRig;
using test::weight_file;

// A file and two memories behind links of their own, of which one stores slower than it loads.
Machine three_tiers(uint64_t seed) {
  Machine m = Machine::defaults(1);
  m.op_overhead_ns = 0;
  const double rate = 2e7 * static_cast<double>(1 + seed % 4);
  m.tiers = {{"device", 0, 0, 0, 0, false, -1},
             {"file", kGiB, rate, rate, 50'000, false, -1},
             {"host", kGiB, 3 * rate, 2 * rate, 10'000, seed % 2 == 0, -1},
             {"remote", 128 * kKiB, 2 * rate, 2 * rate, 20'000, true, -1}};
  return m;
}

struct Planned {
  RandomStep step;
  Machine machine;
  std::vector<Program> programs;  // by budget, smallest first
};

// Plans at the least budget, and above it to where everything may stay; each must succeed.
Planned planned(uint64_t seed, int ops, bool cyclic) {
  Planned out;
  out.step = test::random_step(seed, ops, 4, 3);
  out.machine = three_tiers(seed);
  auto workload = std::make_shared<Workload>();
  workload->graph = *out.step.graph;
  workload->cyclic = cyclic;
  if (seed % 3 == 0) {
    for (size_t t = 0; t < workload->graph.tensors.size(); ++t) {
      const Tensor& tensor = workload->graph.tensors[t];
      if (tensor.role != Role::kActivation || tensor.dtype != DType::kF32) continue;
      PlacementRule rule;
      rule.tensor = TensorId(static_cast<int64_t>(t));
      rule.codecs = {Codec::kBytePlane};
      workload->rules.push_back(rule);
    }
  }
  StepRequest request;
  request.name = "random";
  request.workload = workload;
  request.machine = &out.machine;
  request.recompute = seed % 5 != 0;
  request.budget = 64;
  auto none = plan_step(request);
  EXPECT_TRUE(none.ok()) << "seed " << seed << ": " << none.status().message();
  if (!none.ok()) return out;
  EXPECT_TRUE(std::holds_alternative<Infeasible>(*none)) << "seed " << seed;
  if (!std::holds_alternative<Infeasible>(*none)) return out;
  const Bytes least = std::get<Infeasible>(*none).needed_bytes;
  for (const int percent : {100, 110, 140, 200, 1000}) {
    request.budget = round_up(least * percent / 100, kLine);
    auto result = plan_step(request);
    EXPECT_TRUE(result.ok()) << "seed " << seed << " at " << percent << " %: "
                             << result.status().message();
    if (!result.ok()) continue;
    EXPECT_TRUE(std::holds_alternative<StepPlan>(*result)) << "seed " << seed << " at " << percent
                                                           << " %";
    if (!std::holds_alternative<StepPlan>(*result)) continue;
    for (const PassTime& pass : std::get<StepPlan>(*result).passes) {
      EXPECT_NE(pass.pass, "refused candidates") << "seed " << seed << ": " << pass.work;
    }
    out.programs.push_back(std::get<StepPlan>(*result).program);
    const Status s = verify(out.programs.back());
    EXPECT_TRUE(s.ok()) << s.message();
    EXPECT_LE(out.programs.back().arena_bytes, request.budget);
  }
  return out;
}

// Cycles until the prefetches of the first have settled.
constexpr int kCycles = 4;

void expect_as_kept(const Planned& made, const Program& p, const std::vector<Kind>& kinds,
                    const ExecutorOptions& options, const StepRig::Wrap& wrap,
                    const std::string& where, Trace* trace = nullptr) {
  const auto file = weight_file(made.step);
  PlainStep plain(made.step, file);
  StepRig rig(p, kinds, file, options, wrap);
  ASSERT_NE(rig.prepared, nullptr);
  rig.clock.advance(1'000'000'000);
  const Status loaded = rig.executor->load_entry_state(*rig.prepared);
  ASSERT_TRUE(loaded.ok()) << loaded.message();
  rig.write_states();
  for (int cycle = 0; cycle < (p.cyclic ? kCycles : 1); ++cycle) {
    const Status s = rig.run(trace);
    ASSERT_TRUE(s.ok()) << where << ": " << s.message();
    plain.run();
    // Reading the states waits for what the next cycle would overlap.
    const bool last = !p.cyclic || cycle + 1 == kCycles;
    if (trace == nullptr || last) rig.compare(plain, where + ", cycle " + std::to_string(cycle));
  }
}

TEST(PlannedSteps, AtEveryBudgetTheResultsAreThoseOfKeepingEverything) {
  int runs = 0, stores = 0;
  for (uint64_t seed = 1; seed <= 16; ++seed) {
    const Planned made = planned(seed, 12 + static_cast<int>(seed * 2), seed % 4 == 0);
    for (const Program& p : made.programs) {
      for (const Instr& i : p.instrs) stores += i.kind == InstrKind::kStore ? 1 : 0;
      const auto late = [seed](std::unique_ptr<Tier> inner, size_t tier) {
        FaultPlan faults;
        faults.delay_polls = static_cast<int>(seed % 4);
        faults.reorder_polls = static_cast<int>(seed % 3) * 4;
        faults.seed = seed * 10 + tier;
        return make_fault_tier(std::move(inner), faults);
      };
      expect_as_kept(made, p, {Kind::kHost, Kind::kHost, Kind::kHost},
                     {.poison_freed = runs % 2 == 0}, late,
                     "seed " + std::to_string(seed) + ", arena " + std::to_string(p.arena_bytes));
      ++runs;
      if (HasFailure()) return;
    }
  }
  EXPECT_EQ(runs, 16 * 5);
  EXPECT_GT(stores, 100);
}

TEST(PlannedSteps, OnVirtualTimeTheyTakeAsLongAsPredictedAndMoveTheBytesPredicted) {
  int runs = 0;
  for (uint64_t seed = 21; seed <= 32; ++seed) {
    const Planned made = planned(seed, 30, seed % 4 == 0);
    for (const Program& p : made.programs) {
      Trace executed;
      const std::string where =
          "seed " + std::to_string(seed) + ", arena " + std::to_string(p.arena_bytes);
      expect_as_kept(made, p, {Kind::kEmulated, Kind::kEmulated, Kind::kEmulated},
                     {.emulate_compute = true}, nullptr, where, &executed);
      if (HasFailure()) return;
      const Trace simulated = simulate(p);
      EXPECT_EQ(executed.stored_bytes, simulated.stored_bytes) << where;
      EXPECT_EQ(executed.loaded_bytes, simulated.loaded_bytes) << where;
      const double ratio =
          static_cast<double>(executed.total_ns) / static_cast<double>(simulated.total_ns);
      EXPECT_GT(ratio, 0.98) << where;
      EXPECT_LT(ratio, 1.02) << where;
      ++runs;
    }
  }
  EXPECT_EQ(runs, 12 * 5);
}

// What is encoded between two ops is the same, bit for bit, as if it had been encoded and decoded there
// in place: so nothing else is lost, whatever stays, moves or waits.
TEST(PlannedSteps, WhatPlansEncodeIsExactlyWhatTheCodecLeavesOfIt) {
  int resident = 0, moved = 0;
  for (uint64_t seed = 51; seed <= 54; ++seed) {
    Planned made;
    made.step = test::random_step(seed, 26, 3, 2);
    made.machine = three_tiers(seed);
    auto workload = std::make_shared<Workload>();
    workload->graph = *made.step.graph;
    for (size_t t = 0; t < workload->graph.tensors.size(); ++t) {
      const Tensor& tensor = workload->graph.tensors[t];
      if (tensor.role != Role::kActivation || tensor.dtype != DType::kF32) continue;
      PlacementRule rule;
      rule.tensor = TensorId(static_cast<int64_t>(t));
      rule.codecs = {seed % 2 == 0 ? Codec::kBf16 : Codec::kInt8Block};
      workload->rules.push_back(rule);
    }
    StepRequest request;
    request.name = "encoded";
    request.workload = workload;
    request.machine = &made.machine;
    request.recompute = request.reorder = false;
    request.budget = 64;
    const auto none = plan_step(request);
    ASSERT_TRUE(none.ok() && std::holds_alternative<Infeasible>(*none));
    const Bytes least = std::get<Infeasible>(*none).needed_bytes;
    for (const int percent : {100, 125, 150}) {
      request.budget = round_up(least * percent / 100, kLine);
      const auto result = plan_step(request);
      ASSERT_TRUE(result.ok() && std::holds_alternative<StepPlan>(*result)) << seed;
      const Program& p = std::get<StepPlan>(*result).program;
      std::vector<std::vector<const Instr*>> encoded(workload->graph.ops.size() + 1);
      size_t ran = 0;
      for (const Instr& i : p.instrs) {
        ran += i.kind == InstrKind::kCompute ? 1 : 0;
        if (i.kind == InstrKind::kEncode) encoded[ran].push_back(&i);
        resident += i.kind == InstrKind::kEncode ? 1 : 0;
        moved += i.kind == InstrKind::kStore && i.codec != Codec::kNone ? 1 : 0;
      }
      const auto file = weight_file(made.step);
      PlainStep plain(made.step, file);
      const auto late = [seed](std::unique_ptr<Tier> inner, size_t tier) {
        FaultPlan faults;
        faults.delay_polls = static_cast<int>(seed % 4);
        faults.seed = seed + tier;
        return make_fault_tier(std::move(inner), faults);
      };
      StepRig rig(p, {Kind::kHost, Kind::kHost, Kind::kHost}, file, {.poison_freed = true}, late);
      ASSERT_NE(rig.prepared, nullptr);
      rig.clock.advance(1'000'000'000);
      ASSERT_TRUE(rig.executor->load_entry_state(*rig.prepared).ok());
      rig.write_states();
      const Status s = rig.run(nullptr);
      ASSERT_TRUE(s.ok()) << s.message();
      plain.run([&](size_t op) {
        for (const Instr* i : encoded[op + 1]) plain.pass_through(i->tensor, i->codec);
      });
      rig.compare(plain, "seed " + std::to_string(seed) + " at " + std::to_string(percent));
      if (HasFailure()) return;
    }
  }
  EXPECT_GT(resident, 8);
  EXPECT_GT(moved, 0);
}

}  // namespace
}  // namespace headrace
