// What transfers of KV slots move, step by step, held against a model of the bytes: `near` is what
// the device has of a slot, `far` its copy. The ops are synthetic: every byte of a slot, stale ones
// included, decides about what they write, so one byte too many or too few is seen.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "headrace/ir/kv.h"
#include "headrace/tier/checksum_tier.h"
#include "tests/run/step_testing.h"

namespace headrace {
namespace {

using ::testing::HasSubstr;
using test::Kind;
using test::StepRig;

constexpr int64_t kTiles = 4;
constexpr Bytes kTileBytes = 4352;  // no multiple of a page, nor is the slot

StepRows rows_at(int64_t first, int64_t count, int32_t sequence = 0) {
  StepRows rows;
  for (int64_t i = 0; i < count; ++i) {
    rows.tokens.push_back(0);
    rows.sequences.push_back(sequence);
    rows.positions.push_back(static_cast<int32_t>(first + i));
  }
  rows.output_rows = {0};
  return rows;
}

std::string slot_name(int i) {
  return "kv." + std::to_string(i / 2) + ".0." + std::to_string(i % 2);
}

// Slot i is segment i % 2 of layer i / 2; op i updates it and reads what op i - 1 wrote.
std::shared_ptr<const Graph> slots_graph(int slots) {
  Graph g;
  g.max_rows = 600;
  TensorId before;
  for (int i = 0; i < slots; ++i) {
    Tensor slot;
    slot.name = slot_name(i);
    slot.dtype = DType::kI8;
    slot.role = Role::kState;
    slot.rows = kTiles;
    slot.cols = kTileBytes;
    slot.bytes = kTiles * kTileBytes;
    slot.slot = {i / 2, 0, i % 2};
    slot.data_class = DataClass::kKv;
    slot.alignment = kPage;
    Op op;
    op.kind = OpKind::kKernel;
    op.kernel = "mix";
    op.name = "op" + std::to_string(i);
    if (before.valid()) op.inputs = {before};
    op.updates = {g.add(slot)};
    const bool last = i + 1 == slots;
    before = test::add_tensor(g, last ? "out" : "t" + std::to_string(i),
                              last ? Role::kOutput : Role::kActivation, 256);
    op.outputs = {before};
    g.ops.push_back(op);
  }
  return std::make_shared<const Graph>(std::move(g));
}

struct Maker {
  Program p;
  Step add(InstrKind kind, int32_t what, std::vector<Step> waits, Range range = {}) {
    Instr i;
    i.kind = kind;
    if (kind == InstrKind::kCompute) i.op = OpId(what);
    if (kind != InstrKind::kCompute) i.tensor = TensorId(what);
    i.range = range;
    if (is_transfer(kind)) {
      i.tier = TierId(1);
      i.stream = link_stream(p.tiers, TierId(1), kind);
    }
    i.waits = std::move(waits);
    p.instrs.push_back(i);
    return Step(static_cast<int64_t>(p.instrs.size()) - 1);
  }
  void hold(int32_t t, Bytes offset, Step begin, Step end, TierId tier = kDevice,
            Range range = {}) {
    Residency r;
    r.tensor = TensorId(t);
    r.offset = offset;
    r.range = range;
    r.bytes = range_bytes(p.graph->at(r.tensor), range);
    r.begin = begin;
    r.end = end;
    r.tier = tier;
    p.residencies.push_back(r);
  }
};

constexpr Bytes kSlotRoom = 5 * kPage;

Maker maker_of(const std::shared_ptr<const Graph>& graph, bool duplex, Bytes places) {
  Maker m;
  m.p.name = "slots";
  m.p.graph = graph;
  m.p.tiers.resize(2);
  m.p.tiers[0].name = "device";
  m.p.tiers[1].name = "scratch";
  m.p.tiers[1].capacity = kGiB;
  m.p.tiers[1].load_bytes_per_s = m.p.tiers[1].store_bytes_per_s = 1e8;
  m.p.tiers[1].duplex = duplex;
  m.p.tiers[1].alignment = kPage;
  const auto slots = static_cast<Bytes>(graph->ops.size());
  m.p.arena_bytes = m.p.tiers[0].capacity = places * kSlotRoom + slots * 256;
  return m;
}

// Every slot is streamed: Load, op, Store, Detach. Slot i has place i % places of the arena. Loads
// and Stores are of the parts that begin at `cuts`. A Load is listed one op ahead of its use, unless
// there is one place only, and waits for the Detach of the place's tenant before.
Program streamed(const std::shared_ptr<const Graph>& graph, int places, bool cyclic, bool duplex,
                 const std::vector<Bytes>& cuts = {0}) {
  Maker m = maker_of(graph, duplex, places);
  m.p.cyclic = cyclic;
  const int slots = static_cast<int>(graph->ops.size());
  std::vector<Step> detached(static_cast<size_t>(slots));  // the last of each slot
  std::vector<std::vector<Step>> loads(static_cast<size_t>(slots));
  const auto range = [&](size_t part) {
    return Range{cuts[part], part + 1 < cuts.size() ? cuts[part + 1] - cuts[part] : -1};
  };
  // In a cycle each slot has loads, op, stores and a detach of all of it.
  const auto detach_of = [&](int i) { return detached[static_cast<size_t>(i)]; };
  const auto load = [&](int i) {
    if (i >= slots || !loads[static_cast<size_t>(i)].empty()) return;
    for (size_t part = 0; part < cuts.size(); ++part) {
      std::vector<Step> waits;
      if (i >= places) waits.push_back(detach_of(i - places));
      loads[static_cast<size_t>(i)].push_back(m.add(InstrKind::kLoad, 2 * i, waits, range(part)));
    }
  };
  for (int i = 0; i < slots; ++i) {
    for (int ahead = i; ahead < std::min(i + places, i + 2); ++ahead) load(ahead);
    const Step op = m.add(InstrKind::kCompute, i, loads[static_cast<size_t>(i)]);
    std::vector<Step> stores;
    for (size_t part = 0; part < cuts.size(); ++part) {
      stores.push_back(m.add(InstrKind::kStore, 2 * i, {op}, range(part)));
    }
    const Step detach = m.add(InstrKind::kDetach, 2 * i, stores);
    detached[static_cast<size_t>(i)] = detach;
    for (size_t part = 0; part < cuts.size(); ++part) {
      m.hold(2 * i, i % places * kSlotRoom + cuts[part], loads[static_cast<size_t>(i)][part],
             detach, kDevice, range(part));
    }
    m.hold(2 * i + 1, places * kSlotRoom + i * 256, op,
           Step(i + 1 == slots ? 1'000'000 : static_cast<int>(op.value) + 1));
  }
  // What the first tenants of a place wait for is the last of the cycle before.
  for (int i = 0; i < std::min(places, slots) && cyclic; ++i) {
    int last = i;
    while (last + places < slots) last += places;
    for (Step s : loads[static_cast<size_t>(i)]) m.p.instrs[s.index()].waits = {detach_of(last)};
  }
  for (int i = 0; i < slots; ++i) m.hold(2 * i, i * kSlotRoom, kEntry, m.p.exit(), TierId(1));
  for (Residency& r : m.p.residencies) r.end = std::min(r.end, m.p.exit());
  for (Residency& r : m.p.residencies) {
    if (r.tier != kDevice || m.p.graph->at(r.tensor).role != Role::kActivation) continue;
    r.end = m.p.exit();
  }
  return m.p;
}

// The bytes as they should be.
struct Model {
  const Graph& g;
  std::vector<std::vector<std::byte>> near, far;  // by slot, of whole pages
  std::vector<std::vector<std::byte>> made;       // by op
  Bytes loaded = 0, stored = 0;                   // of the last step

  explicit Model(const Graph& graph) : g(graph) {
    for (size_t i = 0; i < g.ops.size(); ++i) {
      near.emplace_back(static_cast<size_t>(kSlotRoom), std::byte{0xFF});
      far.emplace_back(static_cast<size_t>(kSlotRoom), std::byte{0});
      made.emplace_back(256);
    }
  }
  void step(const StepRows& rows, bool loads = true) {
    loaded = stored = 0;
    ThreadPool pool(1, false);
    for (size_t i = 0; i < g.ops.size(); ++i) {
      const Op& op = g.ops[i];
      const Tensor& slot = g.at(op.updates[0]);
      if (loads) loaded += copy(kv_part(slot, false, rows), far[i], near[i]);
      std::vector<const std::byte*> inputs;
      if (i > 0) inputs = {made[i - 1].data()};
      const std::vector<std::byte*> outputs = {made[i].data()}, updates = {near[i].data()};
      find_kernel(op, DeviceKind::kCpu)(
          OpContext{g, op, inputs, outputs, updates, {}, rows, pool});
      stored += copy(kv_part(slot, true, rows), near[i], far[i]);
    }
  }
  static Bytes copy(const KvPart& part, const std::vector<std::byte>& from,
                    std::vector<std::byte>& to) {
    if (part.empty()) return 0;
    std::copy(from.begin() + part.begin, from.begin() + part.end, to.begin() + part.begin);
    return part.end - part.begin;
  }
};

// Own bytes of each copy, given through write_state and set in the model.
void fill_copies(StepRig& rig, Model& model) {
  for (size_t i = 0; i < model.far.size(); ++i) {
    const auto bytes = test::random_floats(kTiles * kTileBytes, 50 + i);
    std::copy(bytes.begin(), bytes.end(), model.far[i].begin());
    const std::string name = slot_name(static_cast<int>(i));
    const Status s = rig.executor->write_state(*rig.prepared, name, bytes);
    ASSERT_TRUE(s.ok()) << s.message();
  }
}

void expect_model(StepRig& rig, const Model& model, const std::string& where) {
  const auto out = rig.executor->output(*rig.prepared, "out");
  ASSERT_EQ(out.size_bytes(), 256u);
  EXPECT_EQ(std::memcmp(out.data(), model.made.back().data(), 256), 0) << where << ": out";
  for (size_t i = 0; i < model.far.size(); ++i) {
    auto far = rig.executor->read_state(*rig.prepared, slot_name(static_cast<int>(i)));
    ASSERT_TRUE(far.ok()) << far.status().message();
    EXPECT_EQ(std::memcmp(far->data(), model.far[i].data(), far->size()), 0)
        << where << ": copy of " << slot_name(static_cast<int>(i));
  }
}

TEST(KvTransfers, EveryStepMovesTheTilesSealedBeforeItAndSavesThoseThatItSeals) {
  const auto graph = slots_graph(2);  // segments 0 and 1: positions 0..511
  const std::vector<std::vector<Bytes>> all_cuts = {{0}, {0, 2 * kPage}, {0, kPage, 4 * kPage}};
  for (const std::vector<Bytes>& cuts : all_cuts) {
    for (const int64_t chunk : {1, 7, 64, 65, 200}) {
      for (const Kind kind : {Kind::kHost, Kind::kFile}) {
        if (kind == Kind::kFile && chunk < 64) continue;
        StepRig rig(streamed(graph, 2, true, false, cuts), {kind}, {});
        ASSERT_NE(rig.prepared, nullptr);
        Model model(*graph);
        fill_copies(rig, model);
        const Executor::Moved& moved = rig.executor->moved();
        for (int64_t at = 0; at + chunk <= 570; at += chunk) {
          const std::string where = "position " + std::to_string(at) + ", chunk " +
                                    std::to_string(chunk) + ", parts " +
                                    std::to_string(cuts.size());
          const StepRows rows = rows_at(at, chunk);
          const Executor::Moved before = moved;
          const TierCounters tier_before = rig.tiers[0]->counters();
          Trace trace;
          const Status s = rig.executor->run(*rig.prepared, rows, &trace);
          ASSERT_TRUE(s.ok()) << s.message();
          model.step(rows);
          EXPECT_EQ(trace.loaded_bytes, model.loaded) << where;
          EXPECT_EQ(trace.stored_bytes, model.stored) << where;
          EXPECT_EQ(moved.kv_loaded - before.kv_loaded, model.loaded) << where;
          EXPECT_EQ(moved.kv_stored - before.kv_stored, model.stored) << where;
          EXPECT_EQ(moved.loaded - before.loaded, model.loaded) << where;
          Bytes recorded = 0;
          for (const TraceRecord& r : trace.records) recorded += r.bytes;
          EXPECT_EQ(recorded, model.loaded + model.stored) << where;
          const TierCounters tier = rig.tiers[0]->counters();
          if (model.loaded == 0) { EXPECT_EQ(tier.loads, tier_before.loads) << where; }
          const bool check = chunk > 1 || at % 16 == 0 || at % 64 == 63;
          if (check) expect_model(rig, model, where);
          if (HasFailure()) return;
        }
        EXPECT_LE(moved.kv_wait_ns, moved.load_wait_ns);
      }
    }
  }
}

// Forth, back, another sequence in between: a copy is never older than what the step saw.
TEST(KvTransfers, RewindsAndDelaysChangeNothing) {
  const auto graph = slots_graph(6);
  for (uint64_t seed = 1; seed <= 24; ++seed) {
    const bool duplex = seed % 2 == 0, cyclic = seed % 4 < 2;
    const auto late = [seed](std::unique_ptr<Tier> inner, size_t) {
      FaultPlan faults;
      faults.delay_polls = static_cast<int>(seed % 7);
      faults.reorder_polls = static_cast<int>(seed % 5) * 4;
      faults.seed = seed;
      faults.poison = false;  // stale bytes are part of the model
      return make_fault_tier(std::move(inner), faults);
    };
    StepRig rig(streamed(graph, 6, cyclic, duplex), {Kind::kHost}, {}, {}, late);
    ASSERT_NE(rig.prepared, nullptr);
    Model model(*graph);
    fill_copies(rig, model);
    std::mt19937_64 random(seed);
    int64_t at = 0;
    for (int step = 0; step < 60; ++step) {
      const int64_t count = 1 + static_cast<int64_t>(random() % 150);
      if (random() % 6 == 0 || at + count > 570) at = static_cast<int64_t>(random() % 200);
      const StepRows rows = rows_at(at, count, random() % 8 == 0 ? 1 : 0);
      const Status s = rig.executor->run(*rig.prepared, rows, nullptr);
      ASSERT_TRUE(s.ok()) << s.message();
      model.step(rows);
      at += count;
      if (step % 5 == 4) expect_model(rig, model, "seed " + std::to_string(seed));
      if (HasFailure()) return;
    }
  }
}

// Slots go through one or two places of the arena. Stores that move nothing keep their place in the
// order; what waits for them waits for what they waited for. Everything freed is poisoned.
TEST(KvTransfers, SlotsThatShareAPlaceDoNotSeeEachOther) {
  const auto graph = slots_graph(6);
  const StepRows rows = rows_at(512, 3);  // all is sealed: whole slots come, nothing goes
  for (uint64_t seed = 1; seed <= 24; ++seed) {
    const auto late = [seed](std::unique_ptr<Tier> inner, size_t) {
      FaultPlan faults;
      faults.delay_polls = static_cast<int>(seed % 6);
      faults.reorder_polls = static_cast<int>(seed % 5) * 4;
      faults.seed = seed;
      return make_fault_tier(std::move(inner), faults);
    };
    StepRig rig(streamed(graph, 1 + static_cast<int>(seed % 2), seed % 3 > 0, seed % 4 < 2),
                {seed % 5 == 0 ? Kind::kHostThread : Kind::kHost}, {}, {.poison_freed = true},
                late);
    ASSERT_NE(rig.prepared, nullptr);
    Model model(*graph);
    fill_copies(rig, model);
    for (int cycle = 0; cycle < 5; ++cycle) {
      const Status s = rig.executor->run(*rig.prepared, rows, nullptr);
      ASSERT_TRUE(s.ok()) << s.message();
      model.step(rows);
      EXPECT_EQ(model.stored, 0);
      if (cycle % 2 == 1) expect_model(rig, model, "seed " + std::to_string(seed));
      if (HasFailure()) return;
    }
  }
}

TEST(KvTransfers, TheKthTransferFailingNamesSlotAndTierAndNothingRunsAfterwards) {
  const auto graph = slots_graph(2);
  for (const bool at_submit : {false, true}) {
    int64_t k = 1;
    for (bool finished = false; !finished && k < 200; ++k) {
      const auto broken = [&](std::unique_ptr<Tier> inner, size_t) {
        FaultPlan faults;
        faults.fail_at = k + 2;  // the first two write the copies
        faults.fail_at_submit = at_submit;
        faults.delay_polls = 3;
        return make_fault_tier(std::move(inner), faults);
      };
      StepRig rig(streamed(graph, 2, true, true), {Kind::kHost}, {}, {}, broken);
      Model model(*graph);
      fill_copies(rig, model);
      Status status;
      for (int64_t at = 0; at < 512 && status.ok(); at += 40) {
        status = rig.executor->run(*rig.prepared, rows_at(at, 40), nullptr);
      }
      if (status.ok()) {
        const auto read = rig.executor->read_state(*rig.prepared, slot_name(1));
        finished = read.ok();
        if (finished) break;
        status = read.status();  // of a Store that was still under way
      }
      EXPECT_EQ(status.code(), Code::kIo);
      EXPECT_THAT(status.message(), HasSubstr("injected: object 1"));
      EXPECT_THAT(status.message(), HasSubstr("'kv.0.0."));
      EXPECT_THAT(status.message(), HasSubstr("tier 'scratch'"));
    }
    EXPECT_GT(k, 20);
  }
}

TEST(KvTransfers, AFlippedBitInTheScratchIsAnErrorThatNamesSlotAndTier) {
  const auto graph = slots_graph(2);
  for (const Bytes page : {0, 1, 2, 3, 4}) {
    MappedTier* scratch = nullptr;
    const auto checked = [&](std::unique_ptr<Tier> inner, size_t) {
      scratch = static_cast<MappedTier*>(inner.get());
      return make_checksum_tier(std::move(inner), {0, 2 * kSlotRoom});
    };
    StepRig rig(streamed(graph, 2, true, false), {Kind::kHost}, {}, {}, checked);
    for (int64_t at = 0; at < 512; at += 64) {
      const Status s = rig.executor->run(*rig.prepared, rows_at(at, 64), nullptr);
      ASSERT_TRUE(s.ok()) << s.message();
    }
    ASSERT_TRUE(rig.executor->run(*rig.prepared, rows_at(512, 1), nullptr).ok());
    auto byte = scratch->direct({1, kSlotRoom + page * kPage + 77, 1});
    ASSERT_TRUE(byte.ok());
    (*byte)[0] ^= std::byte{16};
    // Not while its page is not asked for.
    ASSERT_TRUE(rig.executor->run(*rig.prepared, rows_at(200, 1), nullptr).ok());
    const Status bad = rig.executor->run(*rig.prepared, rows_at(513, 1), nullptr);
    EXPECT_EQ(bad.code(), Code::kIo);
    EXPECT_THAT(bad.message(), HasSubstr("load of 'kv.0.0.1', tier 'scratch'"));
    EXPECT_THAT(bad.message(), HasSubstr("the checksum differs"));
    const Status after = rig.executor->run(*rig.prepared, rows_at(0, 1), nullptr);
    EXPECT_THAT(after.message(), HasSubstr("nothing runs after an error"));
  }
}

// One slot, resident at `offset` from entry to exit, its copy at `far`.
Program resident(const std::shared_ptr<const Graph>& graph, Bytes offset, Bytes far, bool loads) {
  Maker m = maker_of(graph, true, 3);
  m.p.cyclic = !loads;
  std::vector<Step> waits;
  if (loads) waits = {m.add(InstrKind::kLoad, 0, {})};
  const Step begin = loads ? waits[0] : kEntry;
  const Step op = m.add(InstrKind::kCompute, 0, waits);
  m.add(InstrKind::kStore, 0, {op});
  m.hold(0, far, kEntry, m.p.exit(), TierId(1));
  m.hold(0, offset, begin, m.p.exit());
  m.hold(1, 3 * kSlotRoom, op, m.p.exit());
  return m.p;
}

TEST(KvTransfers, ABridgeBringsASlotFromItsCopyToWhereTheNextProgramHasIt) {
  const auto graph = slots_graph(1);
  StepRig rig(resident(graph, 0, 0, false), {Kind::kHost}, {});
  auto bridge = rig.executor->prepare(resident(graph, 2 * kSlotRoom, 0, true));
  auto moved = rig.executor->prepare(resident(graph, 2 * kSlotRoom, 0, false));
  ASSERT_TRUE(bridge.ok() && moved.ok());
  Model model(*graph);
  const auto run = [&](Prepared& p, int64_t at, bool reloads) {
    const StepRows rows = rows_at(at, 64);
    // Nothing may still be stored from there.
    ASSERT_TRUE(at == 0 || rig.executor->read_state(*rig.prepared, slot_name(0)).ok());
    if (reloads) std::memset(rig.arena->base(), 0xFF, static_cast<size_t>(rig.arena->bytes()));
    const Status s = rig.executor->run(p, rows, nullptr);
    ASSERT_TRUE(s.ok()) << s.message();
    if (reloads) std::fill(model.near[0].begin(), model.near[0].end(), std::byte{0xFF});
    model.step(rows, reloads);
    const auto out = rig.executor->output(p, "out");
    EXPECT_EQ(std::memcmp(out.data(), model.made[0].data(), 256), 0) << at;
  };
  run(*rig.prepared, 0, false);
  EXPECT_EQ(rig.executor->moved().kv_loaded, 0);
  run(**bridge, 64, true);
  EXPECT_EQ(rig.executor->moved().kv_loaded, 2 * kPage);
  // From there on it stays.
  run(**moved, 128, false);
  run(**moved, 192, false);
  EXPECT_EQ(rig.executor->moved().kv_loaded, 2 * kPage);
}

TEST(KvTransfersDeathTest, AProgramIsNotEnteredWithASlotInAnotherPlace) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto graph = slots_graph(1);
  const Program here = resident(graph, 0, 0, false);
  const auto run_both = [&](const Program& first, const Program& next) {
    ThreadPool pool(1, false);
    Arena arena = Arena::create(kMiB).value();
    auto tier = open_host_tier({kMiB}, {256, false}).value();
    Executor executor(arena, {nullptr, tier.get()}, pool, {.copies = {{}, {0, 0, kMiB}}});
    auto a = executor.prepare(first), b = executor.prepare(next);
    HR_CHECK(a.ok() && b.ok(), "both are good");
    HR_CHECK(executor.run(**a, rows_at(0, 1), nullptr).ok(), "the first runs");
    return executor.run(**b, rows_at(1, 1), nullptr);
  };
  EXPECT_TRUE(run_both(here, here).ok());
  EXPECT_TRUE(run_both(here, resident(graph, kSlotRoom, 0, true)).ok());
  EXPECT_DEATH((void)run_both(here, resident(graph, kSlotRoom, 0, false)),
               "entered from another state");
  EXPECT_DEATH((void)run_both(streamed(graph, 1, true, true), here), "entered from another state");
  EXPECT_DEATH((void)run_both(here, resident(graph, 0, kSlotRoom, false)),
               "entered from another state");
}

TEST(KvTransfers, PartsOfSlotsAreWrittenToEveryPlaceWithoutReading) {
  const auto graph = slots_graph(1);
  for (const bool entered : {false, true}) {
    StepRig rig(resident(graph, kSlotRoom, 2 * kSlotRoom, false), {Kind::kHost}, {});
    ASSERT_NE(rig.prepared, nullptr);
    if (entered) {
      ASSERT_TRUE(rig.executor->run(*rig.prepared, rows_at(0, 1), nullptr).ok());
    }
    auto* scratch = static_cast<MappedTier*>(rig.tiers[0].get());
    const auto bytes = test::random_floats(kTiles * kTileBytes, 3);
    const std::span<const std::byte> all(bytes);
    const int64_t loads = scratch->counters().loads;
    for (int64_t tile = 0; tile < kTiles; ++tile) {
      const auto part = all.subspan(static_cast<size_t>(tile * kTileBytes),
                                    static_cast<size_t>(kTileBytes));
      const Status s =
          rig.executor->write_state(*rig.prepared, slot_name(0), part, tile * kTileBytes);
      ASSERT_TRUE(s.ok()) << s.message();
    }
    EXPECT_EQ(scratch->counters().loads, loads);
    const std::byte* near = rig.arena->at(kSlotRoom, kSlotRoom).data();
    const std::byte* far = scratch->direct({1, 2 * kSlotRoom, kSlotRoom})->data();
    EXPECT_EQ(std::memcmp(near, bytes.data(), bytes.size()), 0);
    EXPECT_EQ(std::memcmp(far, bytes.data(), bytes.size()), 0);
  }
}

// A tier that moves pages: only the pages at the ends of a part are read, and only where it has not
// all of them.
TEST(KvTransfers, OfATierThatMovesPagesOnlyPagesWrittenInPartAreReadFirst) {
  const auto graph = slots_graph(1);
  StepRig rig(resident(graph, kSlotRoom, 0, false), {Kind::kFile}, {});
  ASSERT_NE(rig.prepared, nullptr);
  std::vector<std::byte> want(static_cast<size_t>(kTiles * kTileBytes));
  uint64_t seed = 1;
  const auto write = [&](Bytes begin, Bytes bytes) {
    const Bytes before = rig.tiers[0]->counters().loaded_bytes;
    auto part = test::random_floats(round_up(bytes, 4), ++seed);
    part.resize(static_cast<size_t>(bytes));
    std::copy(part.begin(), part.end(), want.begin() + begin);
    const Status s = rig.executor->write_state(*rig.prepared, slot_name(0), part, begin);
    EXPECT_TRUE(s.ok()) << s.message();
    return rig.tiers[0]->counters().loaded_bytes - before;
  };
  const Bytes all = kTiles * kTileBytes;
  EXPECT_EQ(write(0, all), 0);
  EXPECT_EQ(write(kPage, 2 * kPage), 0);
  EXPECT_EQ(write(4 * kPage, all - 4 * kPage), 0);  // what is after it is nobody's
  EXPECT_EQ(write(0, 3 * kPage + 1), kPage);
  EXPECT_EQ(write(100, 3 * kPage), 2 * kPage);
  EXPECT_EQ(write(kPage + 5, 10), 2 * kPage);
  auto got = rig.executor->read_state(*rig.prepared, slot_name(0));
  ASSERT_TRUE(got.ok());
  EXPECT_TRUE(*got == want);
}

TEST(KvTransfers, StateIsNotWrittenWhereAProgramThatCannotBeEnteredHasIt) {
  const auto graph = slots_graph(1);
  StepRig rig(resident(graph, 0, 0, false), {Kind::kHost}, {});
  auto other = rig.executor->prepare(resident(graph, kSlotRoom, 0, false));
  ASSERT_TRUE(other.ok());
  ASSERT_TRUE(rig.executor->run(*rig.prepared, rows_at(0, 1), nullptr).ok());
  const std::vector<std::byte> bytes(64);
  const Status s = rig.executor->write_state(**other, slot_name(0), bytes);
  EXPECT_EQ(s.code(), Code::kUsage);
  EXPECT_THAT(s.message(), HasSubstr("state 'kv.0.0.0' is not where program 'slots' has it"));
}

}  // namespace
}  // namespace headrace
