// Timelines worked out by hand.
#include "headrace/sim/simulate.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "headrace/ir/program.h"
#include "tests/ir/kernel_programs.h"
#include "tests/ir/random_program.h"
#include "tests/sim/reference_simulator.h"

namespace headrace {
namespace {

// Programs for the simulator alone: it plays instructions and does not verify.
class Maker {
 public:
  // The link moves one byte a nanosecond.
  explicit Maker(bool cyclic, Nanos latency = 0) {
    auto graph = std::make_shared<Graph>();
    for (int i = 0; i < 4; ++i) {
      Tensor t;
      t.name = "w" + std::to_string(i);
      t.role = Role::kWeight;
      t.rows = 1;
      t.cols = 1024;
      t.bytes = 4096;
      t.source = {0, i * 4096, 4096};
      graph->add(t);
      Op op;
      op.name = "op" + std::to_string(i);
      graph->ops.push_back(op);
    }
    graph_ = graph;
    p.cyclic = cyclic;
    p.graph = graph;
    p.tiers = {{"device", 0, 0, 0, 0}, {"file", 0, 1e9, 1e9, latency}};
  }
  void compute(Nanos cost, std::vector<int> waits = {}) {
    Instr i;
    i.op = OpId(0);
    i.cost_ns = cost;
    add(i, waits);
  }
  void move(InstrKind kind, int tensor, std::vector<int> waits = {}, int stream = 1) {
    Instr i;
    i.kind = kind;
    i.tensor = TensorId(tensor);
    i.tier = TierId(1);
    i.stream = StreamId(stream);
    add(i, waits);
  }
  Program p;
  std::shared_ptr<Graph> graph_;

 private:
  void add(Instr i, const std::vector<int>& waits) {
    for (int w : waits) i.waits.push_back(Step(w));
    p.instrs.push_back(i);
  }
};

void expect_record(const Trace& t, size_t i, Nanos begin, Nanos end, Nanos stall = 0) {
  EXPECT_EQ(t.records[i].begin_ns, begin) << "record " << i;
  EXPECT_EQ(t.records[i].end_ns, end) << "record " << i;
  EXPECT_EQ(t.records[i].stall_ns, stall) << "record " << i;
}

TEST(Simulate, ComputeStepsFollowOneAnother) {
  Maker m(false);
  m.compute(100);
  m.compute(50);
  const Trace t = simulate(m.p);
  expect_record(t, 0, 0, 100);
  expect_record(t, 1, 100, 150);
  EXPECT_EQ(t.total_ns, 150);
  EXPECT_EQ(t.stall_ns, 0);
}

TEST(Simulate, ComputeStallsForItsLoadAndNoLonger) {
  Maker m(false, /*latency=*/1000);
  m.move(InstrKind::kLoad, 0);  // 4096 ns on the link, then 1000 of latency
  m.compute(100);               // does not need it
  m.compute(50, {0});
  const Trace t = simulate(m.p);
  expect_record(t, 0, 0, 5096);
  EXPECT_EQ(t.records[0].bytes, 4096);
  expect_record(t, 1, 0, 100);
  expect_record(t, 2, 5096, 5146, 4996);
  EXPECT_EQ(t.total_ns, 5146);
  EXPECT_EQ(t.stall_ns, 4996);
  EXPECT_EQ(t.loaded_bytes, 4096);
}

TEST(Simulate, LatenciesOverlapButBytesDoNot) {
  Maker m(false, 1000);
  m.move(InstrKind::kLoad, 0);
  m.move(InstrKind::kLoad, 1);
  m.compute(1, {0});
  m.compute(1, {1});
  const Trace t = simulate(m.p);
  expect_record(t, 0, 0, 5096);
  expect_record(t, 1, 4096, 9192);
  expect_record(t, 2, 5096, 5097, 5096);
  expect_record(t, 3, 9192, 9193, 4095);
  EXPECT_EQ(t.total_ns, 9193);
}

TEST(Simulate, TwoStreamsAreTwoLinks) {
  Maker m(false);
  m.move(InstrKind::kLoad, 0, {}, 1);
  m.move(InstrKind::kLoad, 1, {}, 2);
  m.compute(1, {0, 1});
  EXPECT_EQ(simulate(m.p).total_ns, 4097);
}

TEST(Simulate, ALoadStartsNoEarlierThanItIsIssuedAndItsWaitsAreOver) {
  Maker m(false);
  m.compute(300);
  m.move(InstrKind::kLoad, 0, {0});
  m.compute(100);
  m.compute(10, {1});
  const Trace t = simulate(m.p);
  expect_record(t, 1, 300, 4396);
  expect_record(t, 2, 300, 400);
  expect_record(t, 3, 4396, 4406, 3996);
}

TEST(Simulate, ADetachTakesNoTime) {
  Maker m(false);
  m.compute(10);
  m.move(InstrKind::kDetach, 0);
  m.compute(10);
  EXPECT_EQ(simulate(m.p).total_ns, 20);
}

// A cycle of two ops of 3 us whose second needs 4096 bytes, loaded after the first op of
// the same cycle: the load takes 4.1 us, of which nothing is hidden; loaded after the
// second op of the cycle before, 3 us of it are.
TEST(Simulate, ASteadyCycleCarriesLoadsOverFromTheCycleBefore) {
  Maker late(true);
  late.compute(3000);
  late.move(InstrKind::kLoad, 0, {0});
  late.compute(3000, {1});
  const Trace slow = simulate(late.p);
  EXPECT_EQ(slow.total_ns, 3000 + 4096 + 3000);
  EXPECT_EQ(slow.stall_ns, 4096);

  Maker early(true);
  early.compute(3000);
  early.compute(3000, {2});
  early.move(InstrKind::kLoad, 0, {1});
  const Trace fast = simulate(early.p);
  EXPECT_EQ(fast.total_ns, 3000 + 1096 + 3000);
  EXPECT_EQ(fast.stall_ns, 1096);
  expect_record(fast, 1, 4096, 7096, 1096);
  EXPECT_EQ(fast.records[2].begin_ns, 7096);
}

TEST(Simulate, ASteadyCycleBoundByTheLinkTakesTheLinksTime) {
  Maker m(true);
  m.compute(10, {5});
  m.move(InstrKind::kLoad, 1, {0});
  m.compute(10, {1});
  m.move(InstrKind::kLoad, 2, {2});
  m.compute(10, {3});
  m.move(InstrKind::kLoad, 0, {4});
  const Trace t = simulate(m.p);
  EXPECT_EQ(t.total_ns, 3 * (4096 + 10));  // each slot is free only after its op
  EXPECT_EQ(t.loaded_bytes, 3 * 4096);
}

TEST(Simulate, OneRunIsNotACycle) {
  Maker m(false);
  m.compute(3000);
  m.compute(3000, {2});  // a wait on the cycle before: there is none
  m.move(InstrKind::kLoad, 0, {1});
  EXPECT_EQ(simulate(m.p).total_ns, 6000);
}

TEST(Simulate, CountsEachKindOfTransfer) {
  Maker m(false);
  m.graph_->tensors[1].role = Role::kGathered;
  m.graph_->tensors[1].bytes = 8192;
  m.move(InstrKind::kLoad, 0);
  m.move(InstrKind::kGather, 1);
  m.move(InstrKind::kStore, 2);
  const Trace t = simulate(m.p);
  EXPECT_EQ(t.loaded_bytes, 4096);
  EXPECT_EQ(t.gathered_bytes, 8192);
  EXPECT_EQ(t.stored_bytes, 4096);
  EXPECT_EQ(t.total_ns, 0);  // nobody waited
}

TEST(Simulate, AnEmptyProgramTakesNoTime) {
  Maker m(true);
  const Trace t = simulate(m.p);
  EXPECT_EQ(t.total_ns, 0);
  EXPECT_TRUE(t.records.empty());
}

// f32 tensors of 1024 elements: 4096 bytes plain, 2048 as bf16, 1088 as int8 blocks.
class Coded : public Maker {
 public:
  Coded() : Maker(false) {
    for (Tensor& t : graph_->tensors) {
      t.role = Role::kActivation;
      t.source = {};
    }
  }
  Instr& last() { return p.instrs.back(); }
};

TEST(Simulate, MovesTheBytesOfThePartAndOfTheFormThatIsNamed) {
  Coded m;
  m.move(InstrKind::kLoad, 0);
  m.last().range = {1024, -1};
  m.move(InstrKind::kLoad, 1);
  m.last().codec = Codec::kBf16;
  m.move(InstrKind::kStore, 2);
  m.last().codec = Codec::kInt8Block;
  m.last().range = {64, 128};
  m.move(InstrKind::kStore, 2);
  m.last().codec = Codec::kInt8Block;
  const Trace t = simulate(m.p);
  expect_record(t, 0, 0, 3072);
  expect_record(t, 1, 3072, 3072 + 2048);
  expect_record(t, 2, 5120, 5248);
  expect_record(t, 3, 5248, 5248 + 1088);
  EXPECT_EQ(t.loaded_bytes, 3072 + 2048);
  EXPECT_EQ(t.stored_bytes, 128 + 1088);
}

TEST(Simulate, EncodeAndDecodeTakeTheirTimeOnTheComputeStream) {
  Coded m;
  m.compute(100);
  for (InstrKind kind : {InstrKind::kEncode, InstrKind::kDecode}) {
    m.move(kind, 0, {}, 0);
    m.last().codec = Codec::kBf16;
    m.last().cost_ns = 30;
  }
  m.compute(10);
  const Trace t = simulate(m.p);
  expect_record(t, 1, 100, 130);
  expect_record(t, 2, 130, 160);
  EXPECT_EQ(t.total_ns, 170);
  EXPECT_EQ(t.records[1].bytes, 0);
}

TEST(Simulate, ADetachCompletesWithItsWaitsAndWhoWaitsForItWaitsForThem) {
  Maker m(false);
  m.move(InstrKind::kStore, 0);
  m.move(InstrKind::kDetach, 0, {0}, 0);
  m.compute(10);
  m.compute(10, {1});
  const Trace t = simulate(m.p);
  expect_record(t, 1, 4096, 4096);
  expect_record(t, 2, 0, 10);
  expect_record(t, 3, 4096, 4106, 4086);
}

TEST(Simulate, ATransferStartsWhenTheOpListedBeforeItHasEnded) {
  Maker m(false);
  m.compute(500);
  m.move(InstrKind::kLoad, 0);  // waits for nobody
  expect_record(simulate(m.p), 1, 500, 4596);
}

TEST(Simulate, DuplexDirectionsDoNotSlowEachOtherAndGroupsDo) {
  Maker m(false);
  m.p.tiers = {{"device"}, {"host", 0, 1e9, 1e9, 0, true, 0}, {"remote", 0, 2e9, 2e9, 0, true, 0}};
  m.move(InstrKind::kLoad, 0, {}, 1);
  m.move(InstrKind::kStore, 1, {}, 2);
  m.move(InstrKind::kLoad, 2, {}, 1);
  m.p.instrs[2].tier = TierId(2);
  const Trace t = simulate(m.p);
  expect_record(t, 0, 0, 4096);
  expect_record(t, 1, 0, 4096);
  expect_record(t, 2, 4096, 4096 + 2048);
}

TEST(Simulate, OtherTiersGiveOtherRatesAndLinks) {
  Maker m(false);
  m.move(InstrKind::kLoad, 0);
  m.move(InstrKind::kStore, 1);
  expect_record(simulate(m.p), 1, 4096, 8192);
  SimOptions o;
  o.tiers = m.p.tiers;
  o.tiers[1].load_bytes_per_s = 4e9;
  o.tiers[1].latency_ns = 7;
  const Trace faster = simulate(m.p, o);
  expect_record(faster, 0, 0, 1031);
  expect_record(faster, 1, 1024, 1024 + 4096 + 7);
  o.tiers[1].duplex = true;
  expect_record(simulate(m.p, o), 1, 0, 4103);
}

TEST(Simulate, TransfersOfOneLinkCompleteInOrderWhateverTheirLatencies) {
  Maker m(false);
  m.p.tiers = {{"device"},
               {"far", 0, 1e9, 1e9, 9000, false, 0},
               {"near", 0, 1e9, 1e9, 0, false, 0}};
  m.move(InstrKind::kLoad, 0);
  m.move(InstrKind::kLoad, 1);
  m.p.instrs[1].tier = TierId(2);
  const Trace t = simulate(m.p);
  EXPECT_EQ(t.records[0].end_ns, 13096);
  EXPECT_EQ(t.records[1].end_ns, 13096);
}

TEST(Simulate, ALinkThatIsAllButDeadTakesForeverAndOverflowsNothing) {
  Maker m(false);
  m.p.tiers[1].load_bytes_per_s = 1e-300;
  m.p.tiers[1].latency_ns = INT64_MAX;
  for (int i = 0; i < 4; ++i) m.move(InstrKind::kLoad, i);
  m.compute(INT64_MAX, {3});
  m.compute(INT64_MAX);
  const Trace t = simulate(m.p);
  for (const TraceRecord& r : t.records) EXPECT_GE(r.end_ns, r.begin_ns);
  EXPECT_GT(t.total_ns, Nanos{1} << 60);
}

Program plain_ops(int n) {
  Maker m(false);
  for (int i = 0; i < n; ++i) {
    m.graph_->ops.resize(static_cast<size_t>(n));
    m.compute(1'000'000);
    m.p.instrs.back().op = OpId(i);
  }
  return m.p;
}

TEST(SimulateNoise, IsWithinItsSpreadEvenAndTheSameForTheSameSeed) {
  const Program p = plain_ops(2000);
  SimOptions o;
  o.noise = 0.25;
  o.seed = 7;
  const Trace t = simulate(p, o);
  Nanos least = INT64_MAX, most = 0;
  for (const TraceRecord& r : t.records) {
    least = std::min(least, r.end_ns - r.begin_ns);
    most = std::max(most, r.end_ns - r.begin_ns);
  }
  EXPECT_GE(least, 750'000);
  EXPECT_LT(least, 760'000);
  EXPECT_LE(most, 1'250'000);
  EXPECT_GT(most, 1'240'000);
  EXPECT_NEAR(static_cast<double>(t.total_ns), 2e9, 2e7);
  EXPECT_EQ(simulate(p, o).total_ns, t.total_ns);
  o.seed = 8;
  EXPECT_NE(simulate(p, o).total_ns, t.total_ns);
  o.noise = 0;
  EXPECT_EQ(simulate(p, o).total_ns, simulate(p).total_ns);
}

TEST(SimulateNoise, BelongsToTheOpNotToItsPlace) {
  Program p = plain_ops(50);
  SimOptions o;
  o.noise = 0.25;
  o.seed = 3;
  const Trace forward = simulate(p, o);
  std::reverse(p.instrs.begin(), p.instrs.end());
  const Trace backward = simulate(p, o);
  for (size_t i = 0; i < 50; ++i) {
    const TraceRecord& a = forward.records[i];
    const TraceRecord& b = backward.records[49 - i];
    EXPECT_EQ(a.end_ns - a.begin_ns, b.end_ns - b.begin_ns) << i;
  }
}

TEST(SimulateReference, AgreesOnRandomSteps) {
  for (uint64_t seed = 1; seed <= 150; ++seed) {
    Program p = test::random_program(seed, 3 + static_cast<int>(seed % 25), seed % 2 == 0);
    // Fewer waits, other times: more overlap than the naive programs have.
    std::mt19937_64 random(seed);
    for (Instr& i : p.instrs) {
      std::erase_if(i.waits, [&](Step) { return random() % 3 == 0; });
      if (i.cost_ns > 0) i.cost_ns = static_cast<Nanos>(random() % 3000);
    }
    constexpr int kCycles = 12;
    test::ReferenceMachine reference(p, p.cyclic ? kCycles : 1);
    reference.run();
    ASSERT_TRUE(reference.finished()) << seed;
    int c = 0;
    while (p.cyclic && c + 1 < kCycles) {
      ++c;
      if (c > 2 && reference.cycle(c).total_ns == reference.cycle(c - 1).total_ns) break;
    }
    const Trace want = reference.cycle(c), got = simulate(p);
    ASSERT_EQ(got.total_ns, want.total_ns) << seed;
    ASSERT_EQ(got.stall_ns, want.stall_ns) << seed;
    for (size_t i = 0; i < p.instrs.size(); ++i) {
      ASSERT_EQ(got.records[i].begin_ns, want.records[i].begin_ns) << seed << " step " << i;
      ASSERT_EQ(got.records[i].end_ns, want.records[i].end_ns) << seed << " step " << i;
      ASSERT_EQ(got.records[i].stall_ns, want.records[i].stall_ns) << seed << " step " << i;
    }
  }
}

}  // namespace
}  // namespace headrace
