// Programs over several tiers: whatever moves, and however late it arrives, the outputs and states
// are those of the same step with everything kept.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "headrace/sim/simulate.h"
#include "tests/run/step_testing.h"

namespace headrace {
namespace {

using ::testing::HasSubstr;
using test::first_states;
using test::Kind;
using test::PlainStep;
using test::random_step;
using test::RandomProgram;
using test::RandomStep;
using test::StepRig;
using test::weight_file;
using test::Ways;

std::vector<TierInfo> tier_infos(int others, bool duplex = false) {
  std::vector<TierInfo> out(1);
  out[0].name = "device";
  for (int t = 1; t <= others; ++t) {
    TierInfo info;
    info.name = "tier" + std::to_string(t);
    info.capacity = kGiB;
    info.load_bytes_per_s = info.store_bytes_per_s = 4e7 * t;
    info.latency_ns = 20'000 * t;
    info.duplex = duplex;
    out.push_back(info);
  }
  return out;
}

void expect_valid(const Program& p) {
  const Status s = verify(p);
  EXPECT_TRUE(s.ok()) << s.message();
}

// Runs it some cycles (once when not cyclic) and compares with the plain step each time.
void expect_plain_results(const RandomStep& step, const Program& p, const std::vector<Kind>& kinds,
                          const std::string& where, ExecutorOptions options = {},
                          const StepRig::Wrap& wrap = nullptr) {
  const auto file = weight_file(step);
  PlainStep plain(step, file);
  StepRig rig(p, kinds, file, std::move(options), wrap);
  ASSERT_NE(rig.prepared, nullptr);
  rig.write_states();
  for (int cycle = 0; cycle < (p.cyclic ? 4 : 1); ++cycle) {
    const Status s = rig.run();
    ASSERT_TRUE(s.ok()) << where << ": " << s.message();
    plain.run();
    rig.compare(plain, where + ", cycle " + std::to_string(cycle));
  }
}

TEST(Steps, EveryTensorGoesToAnyKindOfTierAndComesBackTheSame) {
  for (const Kind kind : {Kind::kHost, Kind::kHostThread, Kind::kFile, Kind::kRemote,
                          Kind::kEmulated}) {
    for (const bool cyclic : {false, true}) {
      Ways ways;
      ways = {.move = 1, .parts = 0, .recompute = 0, .keep = 0, .cyclic = cyclic};
      if (kind == Kind::kFile) ways.unit = kPage;
      const RandomStep step = random_step(11, 24, 3, 3);
      RandomProgram maker(step.graph, tier_infos(1), ways, 5);
      const Program p = maker.make();
      expect_valid(p);
      EXPECT_GT(maker.transfers(InstrKind::kStore), 5);
      EXPECT_GT(maker.transfers(InstrKind::kLoad), 5);
      expect_plain_results(step, p, {kind}, "kind " + std::to_string(static_cast<int>(kind)),
                           {.poison_freed = true});
    }
  }
}

TEST(Steps, PartsOfTensorsThreeTiersRecomputeAndCodecsMixAtRandom) {
  int stores = 0, encodes = 0, recomputes = 0;
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    const bool duplex = seed % 3 == 0;
    Ways ways;
    ways = {.move = 20, .parts = 20, .encode = 10, .encode_and_move = 10, .recompute = 30,
            .keep = 10, .cyclic = seed % 2 == 0};
    if (seed % 5 == 0) ways.unit = kPage;
    const RandomStep step = random_step(seed, 10 + static_cast<int>(seed % 40), 4, 3);
    RandomProgram maker(step.graph, tier_infos(3, duplex), ways, seed);
    const Program p = maker.make();
    expect_valid(p);
    stores += maker.transfers(InstrKind::kStore);
    encodes += maker.transfers(InstrKind::kEncode);
    recomputes += maker.transfers(InstrKind::kCompute) - static_cast<int>(step.graph->ops.size());
    const std::vector<Kind> kinds = {
        seed % 5 == 0 ? Kind::kFile : Kind::kHost,
        seed % 4 == 0 ? Kind::kHostThread : Kind::kHost, Kind::kRemote};
    expect_plain_results(step, p, kinds, "seed " + std::to_string(seed),
                         {.poison_freed = seed % 7 != 0});
    if (::testing::Test::HasFailure()) break;
  }
  EXPECT_GT(stores, 200);
  EXPECT_GT(encodes, 50);
  EXPECT_GT(recomputes, 30);
}

// Transfers that are held back read and write late, and in another order: what does not wait for
// them sees 0xFF, or is stored as it was later. (Megatron-LM 7398: a reload reads a buffer that is
// still being written; torchtune 1867: a tensor is freed while it is copied.)
TEST(Steps, DelayedAndReorderedTransfersChangeNothing) {
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    Ways ways;
    ways = {.move = 30, .parts = 30, .encode = 5, .encode_and_move = 10, .recompute = 15,
            .keep = 5, .cyclic = seed % 2 == 0};
    const RandomStep step = random_step(seed + 100, 30, 4, 3);
    const Program p = RandomProgram(step.graph, tier_infos(2, seed % 3 == 0), ways, seed).make();
    const auto late = [seed](std::unique_ptr<Tier> inner, size_t tier) {
      FaultPlan faults;
      faults.delay_polls = static_cast<int>(seed % 11);
      faults.reorder_polls = 1 + static_cast<int>(seed % 5) * 5;
      faults.seed = seed * 10 + tier;
      return make_fault_tier(std::move(inner), faults);
    };
    expect_plain_results(step, p, {Kind::kHost, Kind::kHost}, "seed " + std::to_string(seed),
                         {.poison_freed = seed % 2 == 0}, late);
    if (::testing::Test::HasFailure()) break;
  }
}

// A Program that does not wait where it must, under the same delays: so the test above could fail.
TEST(Steps, AMissingWaitIsSeenUnderDelays) {
  const RandomStep step = random_step(3, 24, 3, 3);
  const Ways ways = {.move = 1, .parts = 0, .recompute = 0, .keep = 0};
  Program p = RandomProgram(step.graph, tier_infos(1), ways, 5).make();
  for (Instr& i : p.instrs) {
    if (i.kind == InstrKind::kCompute) i.waits.clear();
  }
  FaultPlan faults;
  faults.delay_polls = 200;
  const auto file = weight_file(step);
  PlainStep plain(step, file);
  plain.run();
  StepRig rig(p, {Kind::kHost}, file, {}, [&](std::unique_ptr<Tier> inner, size_t) {
    return make_fault_tier(std::move(inner), faults);
  });
  rig.write_states();
  ASSERT_TRUE(rig.run().ok());
  const auto out = rig.executor->output(*rig.prepared, "out");
  const auto want = plain.bytes("out");
  EXPECT_NE(std::memcmp(out.data(), want.data(), want.size()), 0);
}

// Two transfers of one stream over the same bytes, the second listed without a wait for the first:
// the order of the stream is enough, whatever the tier does.
TEST(Steps, AStreamsOrderHoldsForBytesThatTwoOfItsTransfersShare) {
  Graph g;
  const TensorId a = test::add_tensor(g, "a", Role::kState, 4096);
  const TensorId b = test::add_tensor(g, "b", Role::kState, 4096);
  const TensorId out = test::add_tensor(g, "out", Role::kOutput, 256);
  Op op;
  op.kind = OpKind::kKernel;
  op.name = "op";
  op.kernel = "mix";
  op.inputs = {b};
  op.outputs = {out};
  g.ops = {op};
  RandomStep step;
  step.graph = std::make_shared<const Graph>(g);
  Program p;
  p.graph = step.graph;
  p.tiers = tier_infos(1);
  p.arena_bytes = p.tiers[0].capacity = 8192;
  const auto instr = [&](InstrKind kind, TensorId t, std::vector<Step> waits) {
    Instr i;
    i.kind = kind;
    i.tensor = t;
    i.tier = is_transfer(kind) ? TierId(1) : kDevice;
    i.stream = is_transfer(kind) ? StreamId(1) : kComputeStream;
    i.waits = std::move(waits);
    p.instrs.push_back(i);
  };
  instr(InstrKind::kStore, a, {});
  instr(InstrKind::kDetach, a, {Step(0)});
  instr(InstrKind::kLoad, b, {});  // into the bytes that the Store reads
  Instr run;
  run.op = OpId(0);
  run.waits = {Step(2)};
  p.instrs.push_back(run);
  const auto hold = [&](TensorId t, Bytes offset, int begin, int end, TierId tier) {
    Residency r;
    r.tensor = t;
    r.offset = offset;
    r.bytes = device_bytes(g.at(t));
    r.begin = Step(begin);
    r.end = Step(end);
    r.tier = tier;
    p.residencies.push_back(r);
  };
  hold(a, 0, -1, 1, kDevice);
  hold(b, 4096, -1, 4, TierId(1));
  hold(a, 0, 0, 4, TierId(1));
  hold(b, 0, 2, 4, kDevice);
  hold(out, 4096, 3, 4, kDevice);
  for (int delay : {0, 1, 5, 50}) {
    const auto late = [delay](std::unique_ptr<Tier> inner, size_t) {
      FaultPlan faults;
      faults.delay_polls = delay;
      faults.reorder_polls = delay;
      return make_fault_tier(std::move(inner), faults);
    };
    expect_plain_results(step, p, {Kind::kHost}, "delay " + std::to_string(delay), {}, late);
  }
}

// An output that is away while the last op runs: no op waits for what brings it back, run() does.
TEST(Steps, AnOutputThatIsLoadedAtTheEndHasArrivedWhenTheRunReturns) {
  Graph g;
  const TensorId a = test::add_tensor(g, "a", Role::kState, 4096);
  const TensorId out = test::add_tensor(g, "out", Role::kOutput, 4096);
  Op first, last;
  first.kind = last.kind = OpKind::kKernel;
  first.kernel = last.kernel = "mix";
  first.name = "first";
  first.inputs = {a};
  first.outputs = {out};
  last.name = "last";
  last.updates = {a};
  last.workspace = 4096;  // the bytes of the output
  g.ops = {first, last};
  RandomStep step;
  step.graph = std::make_shared<const Graph>(g);
  for (const bool cyclic : {false, true}) {
    Program p;
    p.graph = step.graph;
    p.cyclic = cyclic;
    p.tiers = tier_infos(1);
    p.arena_bytes = p.tiers[0].capacity = 8192;
    const auto instr = [&](InstrKind kind, int op, std::vector<Step> waits) {
      Instr i;
      i.kind = kind;
      if (kind == InstrKind::kCompute) i.op = OpId(op);
      if (kind != InstrKind::kCompute) i.tensor = out;
      i.tier = is_transfer(kind) ? TierId(1) : kDevice;
      i.stream = is_transfer(kind) ? StreamId(1) : kComputeStream;
      i.waits = std::move(waits);
      p.instrs.push_back(i);
    };
    // Of a cyclic Program: for the Load of the cycle before.
    instr(InstrKind::kCompute, 0, cyclic ? std::vector<Step>{Step(4)} : std::vector<Step>());
    instr(InstrKind::kStore, 0, {Step(0)});
    instr(InstrKind::kDetach, 0, {Step(1)});
    instr(InstrKind::kCompute, 1, {Step(2)});
    instr(InstrKind::kLoad, 0, {Step(3)});
    const auto hold = [&](TensorId t, int op, Bytes offset, int begin, int end, TierId tier) {
      Residency r;
      r.tensor = t;
      if (!t.valid()) r.op = OpId(op);
      r.offset = offset;
      r.bytes = 4096;
      r.begin = Step(begin);
      r.end = Step(end);
      r.tier = tier;
      p.residencies.push_back(r);
    };
    hold(a, 0, 0, -1, 5, kDevice);
    hold(out, 0, 4096, 0, 2, kDevice);
    hold(out, 0, 0, 1, 5, TierId(1));
    hold(TensorId(), 1, 4096, 3, 4, kDevice);
    hold(out, 0, 4096, 4, 5, kDevice);
    expect_valid(p);
    for (int delay : {0, 5, 50}) {
      const auto late = [delay](std::unique_ptr<Tier> inner, size_t) {
        FaultPlan faults;
        faults.delay_polls = delay;
        return make_fault_tier(std::move(inner), faults);
      };
      expect_plain_results(step, p, {Kind::kHost}, "delay " + std::to_string(delay), {}, late);
    }
  }
}

TEST(Steps, TheKthTransferFailingIsATypedErrorWithStepTensorAndTier) {
  const RandomStep step = random_step(21, 16, 3, 2);
  Ways ways;
  ways = {.move = 10, .parts = 10, .encode = 0, .encode_and_move = 5, .recompute = 5, .keep = 0,
          .cyclic = true};
  const Program p = RandomProgram(step.graph, tier_infos(2), ways, 8).make();
  expect_valid(p);
  const auto file = weight_file(step);
  for (const size_t bad : {1u, 2u}) {
    for (const bool at_submit : {false, true}) {
      bool finished = false;
      int64_t k = 1;
      for (; !finished && k < 1000; ++k) {
        FaultPlan faults;
        faults.fail_at_submit = at_submit;
        faults.delay_polls = 3;
        PlainStep plain(step, file);
        // The states are written through the tier as well: transfers count from the first run.
        StepRig rig(p, {Kind::kHost, Kind::kHost}, file, {},
                    [&](std::unique_ptr<Tier> inner, size_t tier) {
                      FaultPlan mine = faults;
                      if (tier == bad) mine.fail_at = k;
                      return make_fault_tier(std::move(inner), mine);
                    });
        Status status;
        for (const auto& [name, bytes] : first_states(*step.graph)) {
          if (status.ok()) status = rig.executor->write_state(*rig.prepared, name, bytes);
        }
        const bool running = status.ok();
        for (int cycle = 0; cycle < 2 && status.ok(); ++cycle) {
          status = rig.run();
          plain.run();
        }
        if (status.ok()) {
          const auto out = rig.executor->output(*rig.prepared, "out");
          EXPECT_EQ(std::memcmp(out.data(), plain.bytes("out").data(), out.size_bytes()), 0);
          finished = true;
          break;
        }
        EXPECT_EQ(status.code(), Code::kIo);
        EXPECT_THAT(status.message(), HasSubstr("injected: object"));
        if (running) {
          EXPECT_THAT(status.message(), HasSubstr("step "));
          EXPECT_THAT(status.message(), HasSubstr("tier 'tier" + std::to_string(bad) + "'"));
          bool named = false;
          for (const Tensor& t : step.graph->tensors) {
            named |= status.message().find("'" + t.name + "'") != std::string::npos;
          }
          EXPECT_TRUE(named) << status.message();
          EXPECT_THAT(rig.run().message(), HasSubstr("nothing runs after an error"));
        }
        // Nobody writes to the arena any more.
        const std::span<std::byte> bytes = rig.arena->at(0, rig.arena->bytes());
        const std::vector<std::byte> after(bytes.begin(), bytes.end());
        for (int i = 0; i < 20; ++i) {
          for (auto& tier : rig.tiers) tier->poll();
        }
        rig.executor.reset();
        rig.tiers.clear();
        EXPECT_EQ(std::memcmp(after.data(), bytes.data(), after.size()), 0) << "k = " << k;
      }
      EXPECT_TRUE(finished);
      EXPECT_GT(k, 10);
    }
  }
}

TEST(Steps, ArenaAndTiersAreTouchedToTheLastPlannedLineAndNotBeyond) {
  const auto highest_touched = [](std::span<const std::byte> bytes, std::byte fresh) {
    size_t n = bytes.size();
    while (n > 0 && bytes[n - 1] == fresh) --n;
    return round_up(static_cast<Bytes>(n), kLine);
  };
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    Ways ways;
    ways = {.move = 20, .parts = 20, .encode = 0, .encode_and_move = 0, .recompute = 20, .keep = 5};
    const RandomStep step = random_step(seed + 40, 30, 3, 0);
    const Program p = RandomProgram(step.graph, tier_infos(2), ways, seed).make();
    std::vector<MappedTier*> mapped;
    StepRig rig(p, {Kind::kHost, Kind::kHost}, weight_file(step), {},
                [&](std::unique_ptr<Tier> inner, size_t) {
                  mapped.push_back(static_cast<MappedTier*>(inner.get()));
                  return inner;
                });
    rig.write_states();
    ASSERT_TRUE(rig.run().ok());
    EXPECT_EQ(highest_touched(rig.arena->at(0, rig.arena->bytes()), std::byte{0xFF}),
              peak_bytes(p));
    const std::vector<Bytes> copies = copy_bytes(p);
    Trace trace;
    const Trace predicted = simulate(p);
    Bytes stored = 0, loaded = 0;
    for (size_t t = 1; t < p.tiers.size(); ++t) {
      const Bytes room = std::max(kPage, round_up(copies[t], kPage));
      EXPECT_EQ(highest_touched(*mapped[t - 1]->direct({1, 0, room}), std::byte{0}), copies[t]);
      stored += mapped[t - 1]->counters().stored_bytes - kPage;  // the file, written by the rig
      loaded += mapped[t - 1]->counters().loaded_bytes;
    }
    EXPECT_EQ(stored, predicted.stored_bytes);
    EXPECT_EQ(loaded, predicted.loaded_bytes);
    EXPECT_EQ(rig.executor->moved().stored, stored);
  }
}

// Links and ops take their time on a clock that only they move: executed and simulated times differ
// by no more than how often the executor looks.
TEST(Steps, OnVirtualTimeAStepTakesWhatTheSimulatorSays) {
  Nanos stalled = 0;
  for (uint64_t seed = 1; seed <= 30; ++seed) {
    Ways ways;
    ways = {.move = 30, .parts = 20, .encode = 0, .encode_and_move = 0, .recompute = 20,
            .keep = 20};
    const RandomStep step = random_step(seed + 70, 40, 3, 2);
    const Program p =
        RandomProgram(step.graph, tier_infos(2, seed % 2 == 0), ways, seed).make();
    expect_valid(p);
    const auto file = weight_file(step);
    PlainStep plain(step, file);
    StepRig rig(p, {Kind::kEmulated, Kind::kEmulated}, file, {.emulate_compute = true});
    rig.clock.advance(1'000'000'000);  // the links are free again
    rig.write_states();
    Trace executed;
    const Status s = rig.run(&executed);
    ASSERT_TRUE(s.ok()) << s.message();
    plain.run();
    rig.compare(plain, "seed " + std::to_string(seed));
    const Trace simulated = simulate(p);
    const double ratio =
        static_cast<double>(executed.total_ns) / static_cast<double>(simulated.total_ns);
    EXPECT_GT(ratio, 0.995) << seed;
    EXPECT_LT(ratio, 1.01) << seed;
    stalled += simulated.stall_ns;
    Trace again;
    StepRig same(p, {Kind::kEmulated, Kind::kEmulated}, file, {.emulate_compute = true});
    same.clock.advance(1'000'000'000);
    same.write_states();
    ASSERT_TRUE(same.run(&again).ok());
    EXPECT_EQ(again.total_ns, executed.total_ns) << seed;
  }
  EXPECT_GT(stalled, 100'000'000);
}

}  // namespace
}  // namespace headrace
