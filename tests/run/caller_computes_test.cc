// Runs whose ops the caller computes: the same bytes as a run of the executor's own, and what such
// a run leaves when it is abandoned.
#include <gtest/gtest.h>

#include "headrace/plan/step_plan.h"
#include "tests/run/step_testing.h"

namespace headrace {
namespace {

using test::Kind;
using test::PlainStep;
using test::RandomStep;
using test::StepRig;
using test::weight_file;

StepRows one_row() {
  StepRows rows;
  rows.tokens = rows.sequences = rows.positions = rows.output_rows = {0};
  return rows;
}

// A step of states and activations, and a plan of it at `percent` of the least budget.
struct Planned {
  RandomStep step;
  Program program;
};
Planned planned(uint64_t seed, int percent, bool cyclic, bool recompute) {
  Planned out;
  out.step = test::random_step(seed, 18, 3, 0);
  Machine machine = Machine::defaults(1);
  machine.tiers = {{"device", 0, 0, 0, 0, false, -1},
                   {"scratch", kGiB, 4e7, 3e7, 20'000, seed % 2 == 0, -1}};
  auto workload = std::make_shared<Workload>();
  workload->graph = *out.step.graph;
  workload->cyclic = cyclic;
  StepRequest request;
  request.name = "caller";
  request.workload = workload;
  request.machine = &machine;
  request.recompute = recompute;
  request.reorder = false;
  request.budget = 64;
  const auto none = plan_step(request);
  EXPECT_TRUE(none.ok() && std::holds_alternative<Infeasible>(*none));
  request.budget =
      round_up(std::get<Infeasible>(*none).needed_bytes * percent / 100, kLine);
  auto made = plan_step(request);
  EXPECT_TRUE(made.ok() && std::holds_alternative<StepPlan>(*made));
  out.program = std::get<StepPlan>(*made).program;
  return out;
}

struct Rig {
  Rig(const Planned& made, uint64_t seed, FaultPlan faults = {})
      : plain(made.step, file),
        rig(made.program, {Kind::kHost}, file,
            {.poison_freed = seed % 2 == 0, .caller_computes = true},
            [&](std::unique_ptr<Tier> inner, size_t) {
              faults.seed = seed;
              return make_fault_tier(std::move(inner), faults);
            }) {
    rig.write_states();
  }

  // With the ordinary kernel, in a workspace of the caller's.
  void compute(const Executor::Turn& turn) {
    const Op& op = rig.graph->at(turn.op);
    const test::PageBuffer workspace = test::page_buffer(op.workspace);
    find_kernel(op, DeviceKind::kCpu)(
        OpContext{*rig.graph, op, turn.inputs, turn.outputs, turn.updates,
                  {workspace.get(), static_cast<size_t>(op.workspace)}, rows, rig.pool});
  }

  // All of it; the number of turns.
  Result<int> run(Trace* trace = nullptr) {
    HR_TRY(rig.executor->begin(*rig.prepared, rows, trace));
    for (int turns = 0;; ++turns) {
      HR_ASSIGN(const Executor::Turn* const turn, rig.executor->next());
      if (turn == nullptr) return turns;
      compute(*turn);
    }
  }

  const std::vector<std::byte> file;  // nothing comes from files
  StepRows rows = one_row();
  PlainStep plain;
  StepRig rig;
};

FaultPlan late(uint64_t seed) {
  FaultPlan faults;
  faults.delay_polls = static_cast<int>(seed % 4);
  faults.reorder_polls = static_cast<int>(seed % 3) * 4;
  return faults;
}

TEST(CallerComputes, TheResultsAreThoseOfTheExecutorsOwnRuns) {
  int64_t stores = 0, again = 0;
  for (uint64_t seed = 1; seed <= 12; ++seed) {
    for (int percent : {100, 150}) {
      const bool cyclic = seed % 3 == 0;
      const Planned made = planned(seed, percent, cyclic, seed % 2 == 0);
      Rig r(made, seed, late(seed));
      const std::string where = "seed " + std::to_string(seed) + " at " + std::to_string(percent);
      const int most = cyclic ? 4 : 1;
      for (int cycle = 0; cycle < most; ++cycle) {
        Trace trace;
        const auto turns = r.run(&trace);
        ASSERT_TRUE(turns.ok()) << where << ": " << turns.status().message();
        again += *turns - static_cast<int64_t>(made.step.graph->ops.size());
        stores += trace.stored_bytes;
        EXPECT_EQ(trace.records.size(), made.program.instrs.size());
        EXPECT_GT(trace.total_ns, 0);
        r.plain.run();
        if (cycle + 1 == most) r.rig.compare(r.plain, where);
      }
      if (HasFailure()) return;
    }
  }
  EXPECT_GT(stores, 0);
  EXPECT_GT(again, 0);
}

// What a later op of the graph reads of what was there before op `next`, in a run that computes
// every op once in the graph's order.
std::vector<TensorId> wanted_from(const Graph& g, size_t next) {
  std::vector<char> made(g.tensors.size(), 0), wanted(g.tensors.size(), 0);
  for (size_t t = 0; t < g.tensors.size(); ++t) made[t] = g.tensors[t].role == Role::kState;
  for (size_t o = 0; o < next; ++o) {
    for (TensorId t : g.ops[o].outputs) made[t.index()] = 1;
  }
  for (size_t o = next; o < g.ops.size(); ++o) {
    for (const auto* list : {&g.ops[o].inputs, &g.ops[o].updates}) {
      for (TensorId t : *list) wanted[t.index()] |= made[t.index()];
    }
  }
  std::vector<TensorId> out;
  for (size_t t = 0; t < wanted.size(); ++t) {
    if (wanted[t] != 0) out.push_back(TensorId(static_cast<int64_t>(t)));
  }
  return out;
}

// Runs `before` whole cycles, then up to op `stop`, and abandons; all that was still wanted must be
// what the plain step has then.
void abandon_at(const Planned& made, uint64_t seed, int before, size_t stop, int64_t* elsewhere) {
  const std::string where = "seed " + std::to_string(seed) + ", op " + std::to_string(stop);
  Rig r(made, seed, late(seed));
  for (int cycle = 0; cycle < before; ++cycle) {
    ASSERT_TRUE(r.run().ok()) << where;
    r.plain.run();
  }
  const Graph& g = *r.rig.graph;
  const std::vector<TensorId> wanted = wanted_from(g, stop);
  ASSERT_TRUE(r.rig.executor->begin(*r.rig.prepared, r.rows, nullptr).ok());
  for (size_t o = 0; o <= stop; ++o) {
    const auto turn = r.rig.executor->next();
    ASSERT_TRUE(turn.ok() && *turn != nullptr) << where;
    ASSERT_EQ((*turn)->op.index(), o) << where;
    if (o < stop) r.compute(**turn);
  }
  // The plain step as it was before op `stop`.
  std::vector<std::vector<std::byte>> want(wanted.size());
  const auto look = [&] {
    for (size_t k = 0; k < wanted.size(); ++k) want[k] = r.plain.bytes(g.at(wanted[k]).name);
  };
  if (stop == 0) look();
  r.plain.run([&](size_t o) {
    if (o + 1 == stop) look();
  });
  const Status left = r.rig.executor->abandon();
  ASSERT_TRUE(left.ok()) << where << ": " << left.message();
  for (size_t k = 0; k < wanted.size(); ++k) {
    const Tensor& t = g.at(wanted[k]);
    std::vector<std::byte> got(static_cast<size_t>(t.bytes), std::byte{0x55});
    const Status read = r.rig.executor->read_abandoned(t.name, got);
    ASSERT_TRUE(read.ok()) << where << ": " << read.message();
    EXPECT_TRUE(got == want[k]) << where << ": " << t.name;
    ++*elsewhere;
  }
  // Nothing runs afterwards.
  const Status next = r.rig.executor->begin(*r.rig.prepared, r.rows, nullptr);
  EXPECT_EQ(next.code(), Code::kCancelled) << next.message();
}

TEST(CallerComputes, AfterAbandoningAtAnyOpAllThatLaterOpsWouldReadIsThere) {
  int64_t read = 0;
  for (uint64_t seed = 1; seed <= 8; ++seed) {
    for (int percent : {100, 130}) {
      const Planned made = planned(seed, percent, seed % 2 == 0, false);
      for (size_t stop = 0; stop < made.step.graph->ops.size(); ++stop) {
        abandon_at(made, seed, made.program.cyclic ? 2 : 0, stop, &read);
        if (HasFailure()) return;
      }
    }
  }
  EXPECT_GT(read, 500);
}

TEST(CallerComputes, WhatIsNowhereOrNotThereYetIsRefusedByName) {
  const Planned made = planned(3, 100, false, false);
  Rig r(made, 3);
  ASSERT_TRUE(r.rig.executor->begin(*r.rig.prepared, r.rows, nullptr).ok());
  ASSERT_TRUE(r.rig.executor->next().ok());
  ASSERT_TRUE(r.rig.executor->abandon().ok());
  std::vector<std::byte> bytes(4);
  const Status unknown = r.rig.executor->read_abandoned("nobody", bytes);
  EXPECT_EQ(unknown.code(), Code::kUsage);
  EXPECT_NE(unknown.message().find("nobody"), std::string::npos);
  const Status not_yet = r.rig.executor->read_abandoned("t7", bytes);
  EXPECT_EQ(not_yet.code(), Code::kUsage);
  EXPECT_NE(not_yet.message().find("t7"), std::string::npos);
  std::vector<std::byte> many(1 << 20);
  EXPECT_EQ(r.rig.executor->read_abandoned("state0", many).code(), Code::kUsage);
}

TEST(CallerComputes, ATransferThatFailsIsATypedErrorAndEndsTheRun) {
  int failed = 0;
  const Planned made = planned(5, 100, false, false);
  Rig whole(made, 5);
  ASSERT_TRUE(whole.run().ok());
  for (int64_t k = 1; k <= 60; ++k) {
    FaultPlan faults;
    faults.fail_at = k;
    Rig r(made, 5, faults);
    if (HasFatalFailure()) return;
    const auto run = r.run();
    if (run.ok()) continue;
    ++failed;
    EXPECT_EQ(run.status().code(), Code::kIo) << run.status().message();
    EXPECT_NE(run.status().message().find("tier"), std::string::npos) << run.status().message();
    const Status again = r.rig.executor->begin(*r.rig.prepared, r.rows, nullptr);
    EXPECT_EQ(again.code(), Code::kIo) << again.message();
  }
  EXPECT_GT(failed, 3);
}

TEST(CallerComputes, AnExecutorMayBeDestroyedInTheMiddleOfARun) {
  const Planned made = planned(7, 100, true, false);
  for (int stop : {0, 3, 9}) {
    Rig r(made, 7, late(3));
    ASSERT_TRUE(r.rig.executor->begin(*r.rig.prepared, r.rows, nullptr).ok());
    for (int o = 0; o < stop; ++o) {
      const auto turn = r.rig.executor->next();
      ASSERT_TRUE(turn.ok() && *turn != nullptr);
      r.compute(**turn);
    }
  }
}

}  // namespace
}  // namespace headrace
