#include "headrace/run/executor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <string>
#include <vector>

#include "headrace/sim/simulate.h"
#include "tests/run/run_testing.h"

namespace headrace {
namespace {

using test::bridged;
using test::plain_output;
using test::planned;
using test::random_rows;
using test::Rig;
using test::RunnableGraph;
using test::same_bits;
using ::testing::HasSubstr;

const RunnableGraph& layered() {
  static const RunnableGraph r = test::runnable(test::layered_graph(4), 1);
  return r;
}
Bytes middle_arena(const Graph& g, int percent = 30) {
  const Bytes least = least_arena_bytes(g);
  return least + (full_arena_bytes(g) - least) * percent / 100;
}

TEST(Executor, OutputsAreThoseOfAPlainEvaluationOverManyCycles) {
  const RunnableGraph r = test::runnable(test::layered_graph(4), 2);
  for (int percent : {0, 30, 70, 100}) {
    const Program cycle = planned(r.graph, middle_arena(*r.graph, percent));
    Rig rig(r, cycle.arena_bytes, {}, percent == 30 || percent == 100 ? 2 : 1);
    auto bridge = rig.prepare(bridged(cycle, {}));
    auto prepared = rig.prepare(cycle);
    std::mt19937_64 random(7);
    Prepared* next = bridge.get();
    for (int i = 0; i < 6; ++i) {
      const StepRows rows = random_rows(r, random);
      ASSERT_TRUE(rig.executor->run(*next, rows, nullptr).ok());
      EXPECT_TRUE(same_bits(rig.output(*next, rows), plain_output(r, rows)))
          << percent << " " << i;
      rig.poison_free_bytes(Executor::program_of(*next));
      next = prepared.get();
    }
  }
}

TEST(Executor, TheTraceCountsTheBytesThatTheSimulatorPredicts) {
  const RunnableGraph& r = layered();
  const Program cycle = planned(r.graph, middle_arena(*r.graph));
  const Program bridge = bridged(cycle, {});
  Rig rig(r, cycle.arena_bytes);
  auto prepared_bridge = rig.prepare(bridge);
  auto prepared = rig.prepare(cycle);
  std::mt19937_64 random(1);
  const StepRows rows = random_rows(r, random);
  Bytes loaded = 0, gathered = 0;
  for (int i = 0; i < 4; ++i) {
    const Program& p = i == 0 ? bridge : cycle;
    Trace trace;
    ASSERT_TRUE(
        rig.executor->run(i == 0 ? *prepared_bridge : *prepared, rows, &trace).ok());
    const Trace predicted = simulate(p);
    ASSERT_EQ(trace.records.size(), p.instrs.size());
    EXPECT_EQ(trace.loaded_bytes, predicted.loaded_bytes);
    EXPECT_LE(trace.gathered_bytes, predicted.gathered_bytes);
    EXPECT_GT(trace.gathered_bytes, 0);
    EXPECT_EQ(trace.stored_bytes, 0);
    for (size_t s = 0; s < p.instrs.size(); ++s) {
      if (p.instrs[s].kind == InstrKind::kLoad) {
        EXPECT_EQ(trace.records[s].bytes, predicted.records[s].bytes);
      }
      EXPECT_LE(trace.records[s].begin_ns, trace.records[s].end_ns) << s;
      EXPECT_LE(trace.records[s].end_ns, trace.total_ns) << s;
      EXPECT_GE(trace.records[s].stall_ns, 0);
    }
    loaded += trace.loaded_bytes;
    gathered += trace.gathered_bytes;
    EXPECT_EQ(rig.executor->moved().loaded, loaded);
    EXPECT_EQ(rig.executor->moved().gathered, gathered);
    rig.tier->poll();  // a load for the next cycle may not have started yet
    EXPECT_EQ(rig.tier->counters().loaded_bytes, loaded + gathered);
  }
}

TEST(Executor, WalksBetweenBudgetsAndRowCountsByBridges) {
  const RunnableGraph few = test::runnable(test::layered_graph(4, 128, 1), 1);
  const RunnableGraph many = test::runnable(test::layered_graph(4, 128, 8), 1);
  std::vector<Program> programs;
  Bytes most = 0;
  for (const RunnableGraph* r : {&few, &many}) {
    for (int percent : {0, 40, 100}) {
      programs.push_back(planned(r->graph, middle_arena(*r->graph, percent)));
      most = std::max(most, programs.back().arena_bytes);
    }
  }
  FaultPlan faults;
  faults.delay_polls = 2;
  faults.reorder_polls = 3;
  Rig rig(many, most, faults);
  std::mt19937_64 random(3);
  std::vector<Placed> state;
  std::vector<PreparedPtr> keep;
  for (int i = 0; i < 40; ++i) {
    const Program& target = programs[random() % programs.size()];
    keep.push_back(rig.prepare(bridged(target, state)));
    const RunnableGraph& r = target.graph->max_rows == 1 ? few : many;
    StepRows rows = random_rows(r, random);
    ASSERT_TRUE(rig.executor->run(*keep.back(), rows, nullptr).ok());
    ASSERT_TRUE(same_bits(rig.output(*keep.back(), rows), plain_output(r, rows))) << i;
    keep.push_back(rig.prepare(target));
    rows = random_rows(r, random);
    ASSERT_TRUE(rig.executor->run(*keep.back(), rows, nullptr).ok());
    ASSERT_TRUE(same_bits(rig.output(*keep.back(), rows), plain_output(r, rows))) << i;
    rig.poison_free_bytes(target);
    state = exit_state(target);
  }
}

// For every k: the k-th transfer fails, at its start or later. The error is typed and
// names the tensor, nothing hangs, and after the return nobody writes to the arena.
TEST(Executor, TheKthTransferFailingIsATypedErrorThatNamesTheTensorAndStopsCleanly) {
  const RunnableGraph& r = layered();
  const Program cycle = planned(r.graph, middle_arena(*r.graph));
  const Program bridge = bridged(cycle, {});
  std::mt19937_64 random(5);
  const StepRows rows = random_rows(r, random);
  for (bool at_submit : {false, true}) {
    bool finished = false;
    int64_t k = 1;
    for (; !finished; ++k) {
      FaultPlan faults;
      faults.fail_at = k;
      faults.fail_at_submit = at_submit;
      faults.delay_polls = 3;
      Rig rig(r, cycle.arena_bytes, faults);
      auto first = rig.prepare(bridge);
      auto then = rig.prepare(cycle);
      Status status;
      for (int i = 0; i < 3 && status.ok(); ++i) {
        status = rig.executor->run(i == 0 ? *first : *then, rows, nullptr);
        if (status.ok()) {
          const auto got = rig.output(i == 0 ? *first : *then, rows);
          ASSERT_TRUE(same_bits(got, plain_output(r, rows))) << k;
        }
      }
      finished = status.ok();
      if (finished) break;
      EXPECT_EQ(status.code(), Code::kIo);
      EXPECT_THAT(status.message(), HasSubstr("injected: object 0"));
      EXPECT_THAT(status.message(), HasSubstr("errno 5"));
      bool named = false;
      for (const Tensor& t : r.graph->tensors) {
        named |= t.source.valid() && status.message().find(t.name) != std::string::npos;
      }
      EXPECT_TRUE(named) << status.message();
      const std::span<std::byte> bytes = rig.arena.at(0, rig.arena.bytes());
      const std::vector<std::byte> after(bytes.begin(), bytes.end());
      for (int i = 0; i < 20; ++i) rig.tier->poll();
      rig.executor.reset();
      rig.tier.reset();
      EXPECT_EQ(std::memcmp(after.data(), bytes.data(), after.size()), 0) << "k = " << k;
    }
    EXPECT_GT(k, 30);  // two cycles' and the bridge's transfers were each tried
  }
}

TEST(Executor, NothingRunsAfterAnErrorAndTheErrorIsToldAgain) {
  const RunnableGraph& r = layered();
  const Program cycle = planned(r.graph, middle_arena(*r.graph));
  FaultPlan faults;
  faults.fail_at = 2;
  Rig rig(r, cycle.arena_bytes, faults);
  auto bridge = rig.prepare(bridged(cycle, {}));
  std::mt19937_64 random(5);
  const StepRows rows = random_rows(r, random);
  const Status first = rig.executor->run(*bridge, rows, nullptr);
  ASSERT_FALSE(first.ok());
  const Executor::Moved moved = rig.executor->moved();
  for (int i = 0; i < 3; ++i) {
    const Status again = rig.executor->run(*bridge, rows, nullptr);
    EXPECT_EQ(again.code(), Code::kIo);
    EXPECT_THAT(again.message(), HasSubstr(first.message()));
    EXPECT_EQ(rig.executor->moved().loaded, moved.loaded);
  }
}

TEST(ExecutorDeathTest, AProgramEnteredFromAnotherStateIsAMistakeOfOurs) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const RunnableGraph& r = layered();
  const Program cycle = planned(r.graph, middle_arena(*r.graph));
  Rig rig(r, cycle.arena_bytes);
  auto prepared = rig.prepare(cycle);
  std::mt19937_64 random(5);
  EXPECT_DEATH((void)rig.executor->run(*prepared, random_rows(r, random), nullptr),
               "entered from another state");
}

TEST(ExecutorDeathTest, MoreRowsThanPlannedAreAMistakeOfOurs) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const RunnableGraph& r = layered();
  const Program cycle = planned(r.graph, middle_arena(*r.graph));
  Rig rig(r, cycle.arena_bytes);
  auto bridge = rig.prepare(bridged(cycle, {}));
  StepRows rows;
  EXPECT_DEATH((void)rig.executor->run(*bridge, rows, nullptr), "rows within");
  rows.tokens.assign(static_cast<size_t>(r.graph->max_rows) + 1, 0);
  EXPECT_DEATH((void)rig.executor->run(*bridge, rows, nullptr), "rows within");
}

TEST(Executor, CancelStopsBetweenInstructionsAndLeavesNothingInFlight) {
  const RunnableGraph& r = layered();
  const Program cycle = planned(r.graph, middle_arena(*r.graph));
  FaultPlan faults;
  faults.delay_polls = 5;
  Rig rig(r, cycle.arena_bytes, faults);
  auto bridge = rig.prepare(bridged(cycle, {}));
  std::atomic<bool> cancel{true};
  std::mt19937_64 random(5);
  const Status s = rig.executor->run(*bridge, random_rows(r, random), nullptr, &cancel);
  EXPECT_EQ(s.code(), Code::kCancelled);
  const std::span<std::byte> bytes = rig.arena.at(0, rig.arena.bytes());
  const std::vector<std::byte> after(bytes.begin(), bytes.end());
  for (int i = 0; i < 20; ++i) rig.tier->poll();
  rig.executor.reset();
  rig.tier.reset();
  EXPECT_EQ(std::memcmp(after.data(), bytes.data(), after.size()), 0);
}

TEST(Executor, AProgramLargerThanTheArenaIsRefusedWithNumbers) {
  const RunnableGraph& r = layered();
  const Program cycle = planned(r.graph, full_arena_bytes(*r.graph));
  Rig rig(r, cycle.arena_bytes - kPage);
  const auto prepared = rig.executor->prepare(cycle);
  ASSERT_FALSE(prepared.ok());
  EXPECT_EQ(prepared.status().code(), Code::kDoesNotFit);
  EXPECT_THAT(prepared.status().message(), HasSubstr(std::to_string(cycle.arena_bytes)));
}

TEST(Executor, AnOutputThatDoesNotExistIsEmpty) {
  const RunnableGraph& r = layered();
  const Program cycle = planned(r.graph, middle_arena(*r.graph));
  Rig rig(r, cycle.arena_bytes);
  auto prepared = rig.prepare(cycle);
  EXPECT_TRUE(rig.executor->output(*prepared, "nothing").empty());
  EXPECT_TRUE(rig.executor->output(*prepared, "x").empty());
  EXPECT_FALSE(rig.executor->output(*prepared, "out").empty());
}

TEST(Executor, APlanThatWentThroughItsTextFormRunsTheSame) {
  const RunnableGraph& r = layered();
  const Program cycle = *parse_program(to_text(planned(r.graph, middle_arena(*r.graph))));
  ASSERT_TRUE(verify(cycle).ok());
  Rig rig(r, cycle.arena_bytes);
  auto bridge = rig.prepare(*parse_program(to_text(bridged(cycle, {}))));
  std::mt19937_64 random(5);
  const StepRows rows = random_rows(r, random);
  ASSERT_TRUE(rig.executor->run(*bridge, rows, nullptr).ok());
  EXPECT_TRUE(same_bits(rig.output(*bridge, rows), plain_output(r, rows)));
}

}  // namespace
}  // namespace headrace
