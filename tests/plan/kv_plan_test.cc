// Plans whose KV slots have a copy in another tier: what stays, what moves, what waits for what.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "headrace/plan/passes.h"
#include "headrace/sim/simulate.h"
#include "tests/plan/kv_graphs.h"

namespace headrace {
namespace {

using ::testing::HasSubstr;
using test::KvShape;
using Shared = std::shared_ptr<const Graph>;

constexpr TierId kScratch{2};

// `kind` 0: the disk of the weights takes KV too; 1: a link of its own; 2: one for each direction.
Machine machine_of(int kind) {
  Machine m = Machine::defaults(1);
  TierInfo scratch = m.tiers[1];
  scratch.name = "scratch";
  scratch.capacity = 64 * kMiB;
  scratch.alignment = kPage;
  scratch.duplex = kind == 2;
  if (kind == 0) m.tiers[1].group = scratch.group = 0;
  m.tiers.push_back(scratch);
  return m;
}

Program plan_of(const Shared& graph, Bytes arena, int machine = 0) {
  static const Machine machines[] = {machine_of(0), machine_of(1), machine_of(2)};
  PlanRequest r;
  r.name = "kv";
  r.graph = graph;
  r.machine = &machines[machine];
  r.arena_bytes = arena;
  r.cost = {graph->max_rows, 64};
  r.kv_tier = kScratch;
  const Result<Program> p = plan_cyclic(r);
  EXPECT_TRUE(p.ok()) << p.status().message();
  return p.ok() ? *p : Program();
}

std::vector<Bytes> budgets(const Graph& g, int count) {
  const Bytes least = least_arena_bytes(g, kScratch), full = full_arena_bytes(g, kScratch);
  std::vector<Bytes> out;
  for (int i = 0; i <= count; ++i) out.push_back(least + (full - least) * i / count);
  return out;
}

// Slots that may move: those of attention in parts.
std::vector<TensorId> slots_of(const Graph& g) {
  std::vector<TensorId> out;
  for (const Op& op : g.ops) {
    if (op.kind != OpKind::kAttention) continue;
    if (op.iattr(Attr::kSegmentCount) == op.iattr(Attr::kSegments)) continue;
    for (TensorId t : op.updates) {
      if (g.at(t).slot.layer >= 0) out.push_back(t);
    }
  }
  return out;
}

// Where the instructions of a tensor are; -1: there is none. `load` is of either tier.
struct Steps {
  int32_t load = -1, compute = -1, store = -1, detach = -1;
  int loads = 0, stores = 0;
};
Steps steps_of(const Program& p, TensorId tensor) {
  Steps out;
  for (size_t i = 0; i < p.instrs.size(); ++i) {
    const Instr& in = p.instrs[i];
    const auto step = static_cast<int32_t>(i);
    if (in.kind == InstrKind::kCompute) {
      const Op& op = p.graph->at(in.op);
      for (const auto* list : {&op.inputs, &op.updates}) {
        if (std::find(list->begin(), list->end(), tensor) != list->end()) out.compute = step;
      }
    } else if (in.tensor == tensor) {
      if (in.kind == InstrKind::kLoad) out.load = step, ++out.loads;
      if (in.kind == InstrKind::kStore) out.store = step, ++out.stores;
      if (in.kind == InstrKind::kDetach) out.detach = step;
    }
  }
  return out;
}

bool waits(const Program& p, int32_t step, int32_t on) {
  const std::vector<Step>& w = p.instrs[static_cast<size_t>(step)].waits;
  return std::find(w.begin(), w.end(), Step(on)) != w.end();
}

std::vector<const Residency*> held(const Program& p, TensorId tensor, TierId tier) {
  std::vector<const Residency*> out;
  for (const Residency& r : p.residencies) {
    if (r.tensor == tensor && r.tier == tier) out.push_back(&r);
  }
  return out;
}

// A slot is stored each cycle; one that does not stay is loaded in the cycle that uses it.
void expect_moves_as_it_should(const Program& p, TensorId slot) {
  const Steps s = steps_of(p, slot);
  const std::string& name = p.graph->at(slot).name;
  ASSERT_EQ(s.stores, 1) << name;
  ASSERT_GT(s.store, s.compute) << name;
  ASSERT_TRUE(waits(p, s.store, s.compute)) << name;
  EXPECT_EQ(p.instrs[static_cast<size_t>(s.store)].tier, kScratch);
  const auto on_device = held(p, slot, kDevice);
  ASSERT_EQ(on_device.size(), 1u) << name << ": a Load for the next cycle would hold it twice";
  if (s.loads == 0) {
    EXPECT_EQ(on_device[0]->begin, kEntry) << name;
    EXPECT_EQ(on_device[0]->end, p.exit()) << name;
    EXPECT_TRUE(waits(p, s.compute, s.store)) << name << ": the Store before reads what changes";
    return;
  }
  ASSERT_EQ(s.loads, 1) << name;
  EXPECT_EQ(p.instrs[static_cast<size_t>(s.load)].tier, kScratch) << name;
  ASSERT_LT(s.load, s.compute) << name;
  ASSERT_GT(s.detach, s.store) << name;
  EXPECT_TRUE(waits(p, s.compute, s.load)) << name;
  EXPECT_TRUE(waits(p, s.detach, s.store)) << name;
  EXPECT_TRUE(waits(p, s.load, s.store)) << name << ": of the cycle before";
  EXPECT_EQ(on_device[0]->begin, Step(s.load)) << name;
  EXPECT_EQ(on_device[0]->end, Step(s.detach)) << name;
}

// One copy a slot, for the whole cycle, on pages of its own.
void expect_copies_are_apart(const Program& p) {
  std::vector<std::pair<Bytes, Bytes>> places;
  for (const TensorId slot : slots_of(*p.graph)) {
    const auto copies = held(p, slot, kScratch);
    ASSERT_EQ(copies.size(), 2u) << "until the Store, and from it on";
    EXPECT_EQ(copies[0]->begin, kEntry);
    EXPECT_EQ(copies[0]->end, copies[1]->begin);
    EXPECT_EQ(copies[1]->end, p.exit());
    EXPECT_EQ(copies[0]->offset, copies[1]->offset);
    EXPECT_EQ(copies[0]->offset % kPage, 0);
    EXPECT_GE(copies[0]->bytes, p.graph->at(slot).bytes);
    places.push_back({copies[0]->offset, copies[0]->offset + round_up(copies[0]->bytes, kPage)});
  }
  std::sort(places.begin(), places.end());
  Bytes end = 0;
  for (const auto& [from, to] : places) {
    EXPECT_EQ(from, end) << "packed, and nothing twice";
    end = to;
  }
  EXPECT_EQ(peak_bytes(p, kScratch), end);
}

TEST(KvPlan, EveryBudgetOfEveryRandomShapeIsGoodAndInsideItsArena) {
  int streamed = 0;
  for (uint64_t seed = 1; seed <= 500; ++seed) {
    const Shared g = test::kv_graph(test::random_kv_shape(seed));
    const Status good = verify(*g);
    ASSERT_TRUE(good.ok()) << "seed " << seed << ": " << good.message();
    for (const Bytes arena : budgets(*g, 6)) {
      const Program p = plan_of(g, arena, static_cast<int>(seed % 3));
      const Status s = verify(p);
      ASSERT_TRUE(s.ok()) << "seed " << seed << " arena " << arena << ": " << s.message();
      ASSERT_LE(p.arena_bytes, arena);
      ASSERT_LE(peak_bytes(p), arena) << seed;
      for (const MemoryPoint& m : memory_curve(p)) ASSERT_LE(m.bytes, arena) << seed;
      for (const TensorId slot : slots_of(*g)) {
        expect_moves_as_it_should(p, slot);
        streamed += steps_of(p, slot).loads;
      }
      expect_copies_are_apart(p);
      if (HasFailure()) FAIL() << "seed " << seed << " arena " << arena;
    }
  }
  EXPECT_GT(streamed, 5000) << "the shapes are too small to say anything";
}

TEST(KvPlan, LeastIsAcceptedAndOnePageLessIsRefused) {
  const Machine machine = machine_of(0);
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    const Shared g = test::kv_graph(test::random_kv_shape(seed));
    const Bytes least = least_arena_bytes(*g, kScratch);
    EXPECT_LE(least, least_arena_bytes(*g)) << "KV that may move needs no more than KV that stays";
    PlanRequest r{"too small", g, &machine, least - kPage, {g->max_rows, 1}, kScratch};
    const Result<Program> p = plan_cyclic(r);
    ASSERT_FALSE(p.ok()) << seed;
    EXPECT_EQ(p.status().code(), Code::kDoesNotFit);
    EXPECT_THAT(p.status().message(), HasSubstr(std::to_string(least)));
  }
}

TEST(KvPlan, AtFullNothingIsLoadedAndEverySlotIsStillSaved) {
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    const Shared g = test::kv_graph(test::random_kv_shape(seed));
    const Program p = plan_of(g, full_arena_bytes(*g, kScratch));
    for (const Instr& i : p.instrs) EXPECT_NE(i.kind, InstrKind::kLoad) << seed;
    for (const TensorId slot : slots_of(*g)) EXPECT_EQ(steps_of(p, slot).stores, 1) << seed;
  }
}

// ---- what stays

TEST(KvKeepOrder, IsWeightsAndThenSlotsTheOlderFirst) {
  for (uint64_t seed = 1; seed <= 100; ++seed) {
    const Shared g = test::kv_graph(test::random_kv_shape(seed));
    const auto order = plan::keep_order(*g, true);
    std::set<TensorId> seen;
    bool slot_seen = false;
    int32_t segment = 0;
    for (const plan::Cached& c : order) {
      EXPECT_TRUE(seen.insert(c.tensor).second);
      EXPECT_TRUE(c.slot || !slot_seen) << "seed " << seed << ": a weight after a slot";
      slot_seen |= c.slot;
      if (!c.slot) continue;
      EXPECT_GE(g->at(c.tensor).slot.segment, segment) << seed;
      segment = g->at(c.tensor).slot.segment;
    }
    for (const TensorId slot : slots_of(*g)) EXPECT_TRUE(seen.count(slot)) << seed;
    const auto weights = plan::keep_order(*g, false);
    ASSERT_LE(weights.size(), order.size());
    for (size_t i = 0; i < weights.size(); ++i) EXPECT_EQ(weights[i].tensor, order[i].tensor);
  }
}

TEST(KvKeepOrder, ASegmentIsSpreadOverTheLayers) {
  KvShape shape;
  shape.layers = 32;
  shape.segments = 2;
  const Shared g = test::kv_graph(shape);
  std::vector<bool> kept(32, false);
  int count = 0;
  for (const plan::Cached& c : plan::keep_order(*g, true)) {
    if (!c.slot || g->at(c.tensor).slot.segment != 0) continue;
    kept[static_cast<size_t>(g->at(c.tensor).slot.layer)] = true;
    ++count;
    for (int begin = 0; begin + 8 <= 32; ++begin) {
      const double inside = static_cast<double>(
          std::count(kept.begin() + begin, kept.begin() + begin + 8, true));
      EXPECT_NEAR(inside, count * 8.0 / 32, 2.5);
    }
  }
  EXPECT_EQ(count, 32);
}

// Slots of one size, weights so small that they always stay: only slots move.
KvShape slots_alone() {
  KvShape s;
  s.layers = 4;
  s.segments = 8;
  s.segment_tokens = 256;
  return s;
}

TEST(KvPlan, TheOldestStayTheNewestMoveAndMoreRoomKeepsMoreInTheSamePlaces) {
  const Shared g = test::kv_graph(slots_alone());
  std::map<std::string, Bytes> before;
  size_t most = 0;
  for (const Bytes arena : budgets(*g, 40)) {
    const Program p = plan_of(g, arena);
    // The ring begins where the first that is loaded lies.
    Bytes ring = p.arena_bytes;
    int32_t newest_kept = -1, oldest_moved = 8;
    for (const TensorId slot : slots_of(*g)) {
      if (steps_of(p, slot).loads > 0) ring = std::min(ring, held(p, slot, kDevice)[0]->offset);
    }
    std::map<std::string, Bytes> now;
    for (const TensorId slot : slots_of(*g)) {
      const Residency& r = *held(p, slot, kDevice)[0];
      const int32_t segment = g->at(slot).slot.segment;
      if (r.begin != kEntry) oldest_moved = std::min(oldest_moved, segment);
      if (r.begin != kEntry || r.offset >= ring) continue;  // or alone in its place of the ring
      newest_kept = std::max(newest_kept, segment);
      now[g->at(slot).name] = r.offset;
    }
    EXPECT_LE(newest_kept, oldest_moved) << "arena " << arena;
    // A larger ring may win over a kept slot; what both plans keep never moves.
    for (const auto& [name, offset] : now) {
      if (!before.count(name)) continue;
      EXPECT_EQ(before[name], offset) << name;
    }
    before = now;
    most = std::max(most, now.size());
  }
  EXPECT_EQ(most, 32u);
}

TEST(KvPlan, WhereThereIsRoomSeveralSlotsAreOnTheirWay) {
  KvShape shape;
  shape.layers = 16;
  shape.segments = 32;
  shape.segment_tokens = 1024;
  shape.kv_heads = shape.heads = 4;
  shape.head_dim = 64;
  const Shared graph = test::kv_graph(shape);
  const Bytes least = least_arena_bytes(*graph, kScratch);
  const Bytes full = full_arena_bytes(*graph, kScratch);
  ASSERT_GT(full - least, 400 * kMiB);  // slots of 1 MiB
  EXPECT_EQ(summarize(plan_of(graph, least + 300 * kMiB)).ring_bytes, 25 * kMiB);
  // An eighth of less room, and never less than two slots.
  const Bytes some = summarize(plan_of(graph, least + 80 * kMiB)).ring_bytes;
  EXPECT_GE(some, 10 * kMiB);
  EXPECT_LE(some, 11 * kMiB);
  EXPECT_EQ(summarize(plan_of(graph, least + 4 * kMiB)).ring_bytes, 2 * kMiB);
}

TEST(KvPlan, AWeightIsKeptBeforeAnySlot) {
  KvShape shape = slots_alone();
  shape.cols = 256;
  shape.ff = 512;  // 512 KiB and 256 KiB a tile: streamed where there is no room
  const Shared g = test::kv_graph(shape);
  Bytes largest = 0;
  for (const Tensor& t : g->tensors) {
    if (t.role == Role::kWeight) largest = std::max(largest, device_bytes(t));
  }
  int streamed = 0;
  for (const Bytes arena : budgets(*g, 40)) {
    const Program p = plan_of(g, arena);
    Bytes ring = p.arena_bytes, kept = 0;
    bool weight_moves = false;
    for (const Instr& i : p.instrs) {
      if (i.kind != InstrKind::kLoad) continue;
      ring = std::min(ring, held(p, i.tensor, kDevice)[0]->offset);
      weight_moves |= g->at(i.tensor).role == Role::kWeight;
    }
    for (const TensorId slot : slots_of(*g)) {
      const Residency& r = *held(p, slot, kDevice)[0];
      if (r.begin == kEntry && r.offset < ring) kept += r.bytes;
    }
    if (!weight_moves) continue;
    ++streamed;
    EXPECT_LT(kept, largest) << "arena " << arena << ": what a weight did not fit into holds slots";
  }
  EXPECT_GT(streamed, 5);
}

// ---- what waits for what

// Who lies in the place of the ring before: its Store, or its last use, comes first.
TEST(KvPlan, TheNextTenantOfAPlaceWaitsForTheStoreOfTheOneBefore) {
  int waited = 0;
  for (const int64_t rows : {1, 100}) {
    KvShape shape = slots_alone();
    shape.rows = rows;
    const Shared g = test::kv_graph(shape);
    for (const Bytes arena : budgets(*g, 12)) {
      const Program p = plan_of(g, arena, 2);
      struct Tenant {
        const Residency* r;
        Steps steps;
      };
      std::vector<Tenant> ring;
      for (const TensorId slot : slots_of(*g)) {
        const Steps s = steps_of(p, slot);
        if (s.loads > 0) ring.push_back({held(p, slot, kDevice)[0], s});
      }
      std::sort(ring.begin(), ring.end(), [](const Tenant& a, const Tenant& b) {
        return a.steps.compute < b.steps.compute;
      });
      for (size_t j = 0; j < ring.size(); ++j) {
        // Slots of one size take turns in whole places.
        for (size_t k = 1; k < ring.size(); ++k) {
          const Tenant& before = ring[(j + ring.size() - k) % ring.size()];
          if (before.r->offset != ring[j].r->offset) continue;
          EXPECT_TRUE(waits(p, ring[j].steps.load, before.steps.store))
              << "arena " << arena << ", " << g->at(ring[j].r->tensor).name << " after "
              << g->at(before.r->tensor).name;
          ++waited;
          break;
        }
      }
    }
  }
  EXPECT_GT(waited, 100);
}

// The verifier would not let any of these waits be missed.
TEST(KvPlan, WithoutAnyOneOfItsWaitsThePlanIsRefused) {
  const Shared g = test::kv_graph(slots_alone());
  int tried = 0;
  // Nothing is loaded in the second: there no transfer of another slot stands in for a wait. A link
  // for each direction, so that no order of a queue does either.
  for (const Bytes arena : {budgets(*g, 4)[1], full_arena_bytes(*g, kScratch)}) {
    const Program p = plan_of(g, arena, 2);
    ASSERT_TRUE(verify(p).ok());
    for (const TensorId slot : slots_of(*g)) {
      const Steps s = steps_of(p, slot);
      std::vector<std::pair<int32_t, int32_t>> needed = {{s.store, s.compute}};
      if (s.loads > 0) needed.push_back({s.compute, s.load});
      if (arena == full_arena_bytes(*g, kScratch)) needed.push_back({s.compute, s.store});
      for (const auto& [step, on] : needed) {
        Program broken = p;
        std::erase(broken.instrs[static_cast<size_t>(step)].waits, Step(on));
        EXPECT_FALSE(verify(broken).ok())
            << g->at(slot).name << ": step " << step << " does not wait for " << on;
        ++tried;
      }
    }
  }
  EXPECT_GT(tried, 100);
}

TEST(KvPlan, WhereSlotsAreSelectedNoneIsLoadedBeforeItIsKnownWhich) {
  KvShape shape = slots_alone();
  shape.sparse_tokens = 3 * shape.segment_tokens;
  const Shared g = test::kv_graph(shape);
  ASSERT_TRUE(verify(*g).ok()) << verify(*g).message();
  int loaded = 0;
  for (const Bytes arena : budgets(*g, 8)) {
    const Program p = plan_of(g, arena, 1);
    ASSERT_TRUE(verify(p).ok()) << verify(p).message();
    for (const TensorId slot : slots_of(*g)) {
      const Steps s = steps_of(p, slot);
      if (s.loads == 0) continue;
      ++loaded;
      const std::string name = "blk." + std::to_string(g->at(slot).slot.layer) + ".select";
      for (int32_t i = s.load; i < s.compute; ++i) {
        const Instr& in = p.instrs[static_cast<size_t>(i)];
        if (in.kind != InstrKind::kCompute) continue;
        EXPECT_NE(g->at(in.op).name, name);
      }
    }
  }
  EXPECT_GT(loaded, 20);
}

// ---- what is moved

StepRows rows_at(int64_t first, int64_t count, int64_t sequences) {
  StepRows rows;
  for (int64_t s = 0; s < sequences; ++s) {
    const int64_t share = count / sequences;
    for (int64_t i = 0; i < std::max<int64_t>(1, share); ++i) {
      rows.tokens.push_back(0);
      rows.sequences.push_back(static_cast<int32_t>(s));
      rows.positions.push_back(static_cast<int32_t>(first + 31 * s + i));
    }
  }
  return rows;
}

TEST(KvPlan, TheSimulatorMovesWhatTheStepNeedsOfEachSlotAndNoMore) {
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    KvShape shape = test::random_kv_shape(seed);
    shape.sparse_tokens = 0;
    shape.rows = std::max(shape.rows, shape.sequences);
    const Shared g = test::kv_graph(shape);
    const int64_t context = shape.segments * shape.segment_tokens;
    for (const Bytes arena : budgets(*g, 3)) {
      const Program p = plan_of(g, arena);
      for (const int64_t at : {int64_t{0}, int64_t{62}, int64_t{63}, context / 2, context - 240}) {
        if (at < 0 || at + shape.rows + 31 > context) continue;
        const StepRows rows = rows_at(at, shape.rows, shape.sequences);
        const Trace trace = simulate(p, {.tiers = {}, .rows = &rows});
        Bytes loaded = 0, stored = 0;
        for (size_t i = 0; i < p.instrs.size(); ++i) {
          const Instr& in = p.instrs[i];
          const bool store = in.kind == InstrKind::kStore;
          if (in.kind != InstrKind::kLoad && !store) continue;
          const Tensor& t = g->at(in.tensor);
          Bytes bytes = device_bytes(t);
          if (t.role == Role::kState) {
            const KvPart part = kv_part(t, store, rows);
            bytes = part.empty() ? 0 : part.end - part.begin;
          }
          ASSERT_EQ(trace.records[i].bytes, bytes) << seed << " at " << at << ' ' << t.name;
          (store ? stored : loaded) += bytes;
        }
        EXPECT_EQ(trace.loaded_bytes, loaded);
        EXPECT_EQ(trace.stored_bytes, stored);
      }
    }
  }
}

TEST(KvPlan, BeforeTheSequenceGetsToASlotNothingOfItIsMoved) {
  const Shared g = test::kv_graph(slots_alone());
  const Program p = plan_of(g, budgets(*g, 4)[1]);
  Bytes before = 0;
  // Slots of 256 positions: what is loaded grows by tiles, and is nothing while the oldest stay.
  EXPECT_EQ(summarize(p, 0).kv_loaded_bytes, 0);
  for (int64_t at = 0; at < 8 * 256; at += 64) {
    const Bytes now = summarize(p, at).kv_loaded_bytes;
    EXPECT_GE(now, before) << at;
    before = now;
  }
  EXPECT_GT(before, 0);
}

// ---- from one Program to another

TEST(KvPlan, ProgramsOfASessionAgreeOnTailsAndCopiesAndBridgesLoadWhatIsMissing) {
  KvShape one = slots_alone(), many = slots_alone();
  many.rows = 100;
  const Shared decode = test::kv_graph(one), prefill = test::kv_graph(many);
  std::vector<Program> programs;
  for (const Shared& g : {decode, prefill}) {
    for (const Bytes arena : budgets(*g, 3)) programs.push_back(plan_of(g, arena));
  }
  std::map<std::string, Bytes> places;
  for (const Program& p : programs) {
    for (const Residency& r : p.residencies) {
      if (!r.tensor.valid() || p.graph->at(r.tensor).role != Role::kState) continue;
      if (r.tier == kDevice && p.graph->at(r.tensor).slot.layer >= 0) continue;
      const auto [at, added] = places.emplace(p.graph->at(r.tensor).name, r.offset);
      EXPECT_EQ(at->second, r.offset) << at->first;
    }
  }
  EXPECT_EQ(places.size(), 4u * 9u);
  for (const Program& from : programs) {
    for (const Program& to : programs) {
      const std::vector<Placed> state = exit_state(from);
      const Result<Program> bridge = plan_bridge(to, state);
      ASSERT_TRUE(bridge.ok()) << bridge.status().message();
      ASSERT_TRUE(verify(*bridge).ok()) << verify(*bridge).message();
      EXPECT_EQ(exit_state(*bridge), entry_state(to));
      std::set<std::pair<std::string, Bytes>> there;
      for (const Placed& p : state) there.insert({p.name, p.offset});
      std::multiset<std::string> loads, wanted;
      for (const Instr& i : bridge->instrs) {
        if (i.kind == InstrKind::kLoad && bridge->graph->at(i.tensor).role == Role::kState) {
          loads.insert(bridge->graph->at(i.tensor).name);
          EXPECT_EQ(i.tier, kScratch);
        }
      }
      for (const TensorId slot : slots_of(*to.graph)) {
        const Residency& r = *held(to, slot, kDevice)[0];
        const std::string& name = to.graph->at(slot).name;
        if (r.begin != kEntry || !there.count({name, r.offset})) wanted.insert(name);
      }
      EXPECT_EQ(loads, wanted);
    }
  }
}

}  // namespace
}  // namespace headrace
