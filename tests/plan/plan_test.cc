// plan_cyclic and plan_bridge over sweeps of budgets.
#include "headrace/plan/plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "headrace/sim/simulate.h"
#include "tests/plan/small_graphs.h"

namespace headrace {
namespace {

using ::testing::HasSubstr;

Program plan_of(const std::shared_ptr<const Graph>& graph, Bytes arena,
                const char* name = "test") {
  static const Machine machine = Machine::defaults(1);
  Result<Program> p = plan_cyclic({name, graph, &machine, arena, {graph->max_rows, 16}});
  EXPECT_TRUE(p.ok()) << p.status().message();
  return p.ok() ? *p : Program();
}

std::vector<Bytes> budgets(const Graph& g, int count) {
  const Bytes least = least_arena_bytes(g), full = full_arena_bytes(g);
  std::vector<Bytes> out;
  for (int i = 0; i <= count; ++i) out.push_back(least + (full - least) * i / count);
  return out;
}

TEST(PlanCyclic, EveryBudgetOfEveryRandomGraphPassesTheVerifier) {
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    const auto g = test::random_graph(seed).graph;
    for (Bytes arena : budgets(*g, 6)) {
      const Program p = plan_of(g, arena);
      const Status s = verify(p);
      ASSERT_TRUE(s.ok()) << "seed " << seed << " arena " << arena << ": " << s.message();
      EXPECT_LE(peak_bytes(p), arena);
      EXPECT_LE(p.arena_bytes, arena);
      for (const MemoryPoint& m : memory_curve(p)) ASSERT_LE(m.bytes, arena);
    }
  }
}

TEST(PlanCyclic, TheSweepFromLeastToFullIsMonotoneAndReadsWhatIsNotKept) {
  const auto small = test::layered_graph(12);
  Bytes kept_before = 0;
  for (Bytes arena : budgets(*small.graph, 60)) {
    const Program p = plan_of(small.graph, arena);
    ASSERT_TRUE(verify(p).ok()) << verify(p).message();
    const PlanSummary s = summarize(p);
    EXPECT_EQ(s.resident_tensors + s.streamed_tensors, 12 * 5);
    // A larger ring may win over a kept weight: no more than the ring is ever given up.
    EXPECT_GE(s.resident_bytes + s.ring_bytes, kept_before);
    kept_before = s.resident_bytes;
    // Extents are page-rounded each for itself: a shared edge page is read twice.
    const Bytes rounding = 2 * kPage * s.streamed_tensors;
    EXPECT_LE(s.streamed_bytes, s.model_bytes - s.resident_bytes + rounding);
    EXPECT_GE(s.streamed_bytes, s.model_bytes - s.resident_bytes);
    EXPECT_EQ(s.arena_bytes, round_down(arena, kPage));
  }
}

TEST(PlanCyclic, LeastIsAcceptedAndOnePageLessIsRefusedWithNumbers) {
  static const Machine machine = Machine::defaults(1);
  for (uint64_t seed = 1; seed <= 30; ++seed) {
    const auto g = test::random_graph(seed).graph;
    const Bytes least = least_arena_bytes(*g);
    EXPECT_EQ(least % kPage, 0);
    EXPECT_TRUE(verify(plan_of(g, least)).ok());
    for (Bytes arena : {least - 1, least - kPage, Bytes{0}, Bytes{-5}}) {
      const Result<Program> p = plan_cyclic({"too small", g, &machine, arena, {1, 1}});
      ASSERT_FALSE(p.ok());
      EXPECT_EQ(p.status().code(), Code::kDoesNotFit);
      EXPECT_THAT(p.status().message(),
                  HasSubstr("too small needs an arena of at least"));
      EXPECT_THAT(p.status().message(), HasSubstr(std::to_string(least)));
    }
  }
}

TEST(PlanCyclic, AtFullNothingIsStreamedAndOnePageLessSomethingIs) {
  for (uint64_t seed = 1; seed <= 30; ++seed) {
    const auto g = test::random_graph(seed).graph;
    const Bytes full = full_arena_bytes(*g);
    const PlanSummary s = summarize(plan_of(g, full));
    EXPECT_EQ(s.streamed_bytes, 0);
    EXPECT_EQ(s.resident_bytes, s.model_bytes);
    EXPECT_EQ(s.predicted_stall_ns == 0, s.gathered_bytes == 0);
    EXPECT_EQ(summarize(plan_of(g, full + 100 * kMiB)).streamed_bytes, 0);
    if (full > least_arena_bytes(*g)) {
      EXPECT_GT(summarize(plan_of(g, full - kPage)).streamed_bytes, 0) << "seed " << seed;
    }
  }
}

TEST(PlanCyclic, TheSameRequestGivesTheSameBytes) {
  const auto a = test::layered_graph(6), b = test::layered_graph(6);
  for (Bytes arena : budgets(*a.graph, 5)) {
    EXPECT_EQ(to_text(plan_of(a.graph, arena)), to_text(plan_of(b.graph, arena)));
  }
}

TEST(PlanCyclic, TheTextFormOfAPlanRoundTrips) {
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    const auto g = test::random_graph(seed).graph;
    const Program p = plan_of(g, budgets(*g, 3)[1], "odd \"name\"\n\\");
    const Result<Program> back = parse_program(to_text(p));
    ASSERT_TRUE(back.ok()) << back.status().message();
    EXPECT_TRUE(verify(*back).ok());
    EXPECT_EQ(to_text(*back), to_text(p));
    EXPECT_EQ(back->name, p.name);
  }
}

// jax-ml/jax#20763: a memory limit that is only a tie-break. Here the machine is such
// that every byte kept saves much time; the budget still holds.
TEST(PlanCyclic, ASlowDiskDoesNotMakeThePlanLarger) {
  Machine slow = Machine::defaults(1);
  slow.tiers[1].load_bytes_per_s = 1e6;
  slow.tiers[1].latency_ns = 50'000'000;
  const auto small = test::layered_graph(8);
  for (Bytes arena : budgets(*small.graph, 10)) {
    const Result<Program> p = plan_cyclic({"slow", small.graph, &slow, arena, {2, 1}});
    ASSERT_TRUE(p.ok()) << p.status().message();
    EXPECT_LE(peak_bytes(*p), arena);
    EXPECT_TRUE(verify(*p).ok());
  }
}

TEST(PlanCyclic, MoreMemoryIsNeverPredictedMuchSlower) {
  const auto small = test::layered_graph(16);
  Nanos best = INT64_MAX;
  for (Bytes arena : budgets(*small.graph, 40)) {
    const Nanos now = summarize(plan_of(small.graph, arena)).predicted_ns;
    EXPECT_LE(now / 21 * 20, best);
    best = std::min(best, now);
  }
}

// ---- bridges
// ----------------------------------------------------------------------------------

void expect_bridge(const Program& target, const std::vector<Placed>& state) {
  const Result<Program> bridge = plan_bridge(target, state);
  ASSERT_TRUE(bridge.ok()) << bridge.status().message();
  const Status s = verify(*bridge);
  ASSERT_TRUE(s.ok()) << s.message();
  EXPECT_EQ(exit_state(*bridge), entry_state(target));
  EXPECT_FALSE(bridge->cyclic);
  EXPECT_LE(peak_bytes(*bridge), target.arena_bytes);
  // It relies on nothing that is not there.
  const std::set<std::pair<std::string, Bytes>> there = [&] {
    std::set<std::pair<std::string, Bytes>> out;
    for (const Placed& p : state) out.insert({p.name, p.offset});
    return out;
  }();
  const std::vector<Placed> wanted = entry_state(target);
  Bytes missing = 0;
  std::set<std::string> relied;
  for (const Placed& p : entry_state(*bridge)) {
    EXPECT_TRUE(there.count({p.name, p.offset})) << p.name;
    relied.insert(p.name);
  }
  for (const Placed& p : wanted) {
    if (!there.count({p.name, p.offset})) missing += p.bytes;
  }
  // And loads nothing that is: what the target streams, plus what is missing.
  Bytes loaded = 0, streamed = 0;
  const auto load_bytes = [](const Program& p) {
    Bytes sum = 0;
    for (const Instr& i : p.instrs) {
      if (i.kind == InstrKind::kLoad)
        sum += load_extent(p.graph->at(i.tensor).source).bytes;
    }
    return sum;
  };
  loaded = load_bytes(*bridge);
  streamed = load_bytes(target);
  EXPECT_EQ(loaded, streamed + missing);
}

TEST(PlanBridge, FromNothingLoadsAllThatIsResidentAtEntry) {
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    const auto g = test::random_graph(seed).graph;
    for (Bytes arena : budgets(*g, 3)) expect_bridge(plan_of(g, arena), {});
  }
}

TEST(PlanBridge, FromItsOwnStateIsOneCycle) {
  const auto g = test::layered_graph(6).graph;
  for (Bytes arena : budgets(*g, 5)) {
    const Program p = plan_of(g, arena);
    expect_bridge(p, exit_state(p));
  }
}

TEST(PlanBridge, BetweenRowCountsAndBudgetsInBothDirections) {
  const auto few = test::layered_graph(8, 128, 1).graph;
  const auto many = test::layered_graph(8, 128, 32).graph;
  std::vector<Program> programs;
  for (const auto& g : {few, many}) {
    for (Bytes arena : budgets(*g, 4)) programs.push_back(plan_of(g, arena));
  }
  for (const Program& from : programs) {
    for (const Program& to : programs) expect_bridge(to, exit_state(from));
  }
}

TEST(PlanBridge, MovesOnlyWhatDiffersBetweenPrefillAndDecode) {
  const auto few = test::layered_graph(8, 128, 1).graph;
  const auto many = test::layered_graph(8, 128, 32).graph;
  const Bytes arena = (least_arena_bytes(*many) + full_arena_bytes(*many)) / 2;
  const Program decode = plan_of(few, arena), prefill = plan_of(many, arena);
  const PlanSummary from_prefill = summarize(*plan_bridge(decode, exit_state(prefill)));
  const PlanSummary from_nothing = summarize(*plan_bridge(decode, {}));
  EXPECT_LT(from_prefill.streamed_bytes, from_nothing.streamed_bytes * 3 / 4);
}

TEST(PlanBridge, StateThatWouldHaveToMoveIsRefusedByName) {
  // KV comes first in every arena, so this happens only with a state from elsewhere.
  test::GraphBuilder b("kv", 1);
  const TensorId x = b.embed(4, 48);
  const TensorId rope = b.activation("rope", 16);
  b.op(OpKind::kRopeTable, "rope", {b.constant("f", std::vector<float>(8, 1))}, rope)
      .attrs[Attr::kMscale] = 1;
  Tensor kv;
  kv.name = "kv.tail.0.0";
  kv.dtype = DType::kF16;
  kv.role = Role::kState;
  kv.rows = 128;
  kv.cols = 16;
  kv.bytes = 4096;
  const TensorId q = b.activation("q", 16);
  Op& op = b.op(OpKind::kRopeKv, "rope_kv", {x, rope}, q);
  op.attrs = {{Attr::kHeads, 1},
              {Attr::kKvHeads, 1},
              {Attr::kHeadDim, 16}};
  op.updates = {b.g.add(kv)};
  const auto g = b.finish(q);
  const Program p = plan_of(g, full_arena_bytes(*g));
  ASSERT_TRUE(verify(p).ok()) << verify(p).message();
  EXPECT_TRUE(plan_bridge(p, {{"kv.tail.0.0", 0, 4096}}).ok());
  const Result<Program> moved = plan_bridge(p, {{"kv.tail.0.0", 8192, 4096}});
  ASSERT_FALSE(moved.ok());
  EXPECT_EQ(moved.status().code(), Code::kUnsupported);
  EXPECT_THAT(moved.status().message(),
              HasSubstr("'kv.tail.0.0' would have to move from 8192 to 0"));
}

// ---- size
// -------------------------------------------------------------------------------------

// pytorch/pytorch PR#190511: a default pass quadratic in the width of the graph. 100,000
// ops must be planned in the time that this suite is given; a quadratic pass would take
// minutes.
TEST(PlanCyclic, PlansAHundredThousandOps) {
  test::GraphBuilder b("large");
  TensorId x = b.embed(4, 64);
  const TensorId shared = b.weight("norm", 1, 64);
  for (int i = 0; i < 50'000; ++i) {
    const std::string p = std::to_string(i);
    const TensorId n = b.norm("n" + p, x, shared);
    const TensorId y = b.activation("y" + p, 64);
    b.op(OpKind::kAdd, "a" + p, {n, x}, y);
    x = y;
  }
  const auto g = b.finish(x);
  const Program p = plan_of(g, full_arena_bytes(*g));
  EXPECT_EQ(p.instrs.size(), g->ops.size() + 1);
  EXPECT_LT(p.arena_bytes, 64 * kKiB);  // buffers of a few ops at a time
}

TEST(PlanCyclic, PlansTenThousandStreamedWeights) {
  test::GraphBuilder b("many weights");
  const TensorId x = b.embed(4, 128);
  const auto g = b.finish(b.matmul("all", x, 129 * 10'000, 10'000));
  const Bytes arena =
      least_arena_bytes(*g) + (full_arena_bytes(*g) - least_arena_bytes(*g)) / 2;
  const Program p = plan_of(g, arena);
  const PlanSummary s = summarize(p);
  EXPECT_GT(s.streamed_tensors, 4000);
  EXPECT_LE(peak_bytes(p), arena);
}

}  // namespace
}  // namespace headrace
