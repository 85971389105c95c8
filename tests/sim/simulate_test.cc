// Timelines worked out by hand.
#include "headrace/sim/simulate.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "headrace/ir/program.h"

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

}  // namespace
}  // namespace headrace
