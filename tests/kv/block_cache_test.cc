#include "headrace/kv/block_cache.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <set>

#include "headrace/base/split_mix.h"
#include "headrace/tier/fault_tier.h"
#include "headrace/tier/host_tier.h"
#include "tests/kv/flaky_tier.h"

namespace headrace {
namespace {

using testing::Flaky;
using testing::FlakyTier;

constexpr int kLayers = 3;
constexpr Bytes kTile = 256, kTail = 512;  // bytes of a layer: 64 words of 8, folded to 32
constexpr int64_t kBlock = 128;

struct Sizes {
  int32_t device = 12, places = 4, width = 6, tier = 10, tails = 3, staging = 2, low = 0, high = 0;
};

// A cache, and a kernel: a tail has a word for each position, a tile those of its positions folded.
struct World {
  explicit World(const Sizes& z, const FaultPlan& plan = {}) {
    options.block_tokens = kBlock;
    options.device_blocks = z.device;
    options.places = z.places;
    options.blocks_a_sequence = z.width;
    for (int l = 0; l < kLayers; ++l) {
      pools[l].resize(static_cast<size_t>(z.device * 2 * kTile));
      tails[l].resize(static_cast<size_t>(z.places * kTail));
      options.pools.push_back({pools[l], 2 * kTile});
      options.tails.push_back({tails[l], kTail});
    }
    staging.resize(static_cast<size_t>((z.staging + 1) * kPage));
    const auto skew = static_cast<Bytes>(reinterpret_cast<uintptr_t>(staging.data()) % kPage);
    std::byte* base = staging.data() + (kPage - skew) % kPage;
    options.staging = {base, static_cast<size_t>(z.staging * kPage)};
    options.tier_blocks = z.tier;
    options.tier_tails = z.tails;
    options.low_free = z.low;
    options.high_free = z.high;
    options.start = chain_start(5, KvFormat::kF16);
    MappedOptions inline_copies;
    inline_copies.worker = false;
    auto host = open_host_tier({std::max<Bytes>(block_cache_tier(options), kPage)}, inline_copies);
    HR_CHECK(host.ok(), "host tier");
    tier = make_fault_tier(std::make_unique<FlakyTier>(std::move(*host), &flaky), plan);
    auto made = BlockCache::create(options, tier.get());
    HR_CHECK(made.ok(), "cache");
    cache = std::move(*made);
  }

  static uint64_t word(uint64_t history, int layer) {
    return mixed(history + static_cast<uint64_t>(layer));
  }
  static uint64_t next(uint64_t history, int32_t token) {
    return mixed(history * 31 + static_cast<uint64_t>(token) + 1);
  }
  uint64_t* tail_at(int layer, int32_t place) {
    return reinterpret_cast<uint64_t*>(tails[layer].data() + place * kTail);
  }
  uint64_t* tile_at(int layer, int32_t block, int64_t position) {
    return reinterpret_cast<uint64_t*>(pools[layer].data() + block * 2 * kTile +
                                       position % kBlock / kKvTile * kTile);
  }
  // The kernel: appends the rows of one sequence.
  void write(uint64_t history, const StepRows& rows, int32_t place) {
    for (size_t r = 0; r < rows.tokens.size(); ++r) {
      if (rows.sequences[r] != place) continue;
      const int64_t p = rows.positions[r];
      history = next(history, rows.tokens[r]);
      for (int l = 0; l < kLayers; ++l) {
        tail_at(l, place)[p % kKvTile] = word(history, l);
        if (p % kKvTile != kKvTile - 1) continue;
        const int32_t block = rows.blocks[static_cast<size_t>(place * options.blocks_a_sequence +
                                                              p / kBlock)];
        HR_CHECK(block >= 0, "a step has its blocks");
        for (int i = 0; i < 32; ++i)
          tile_at(l, block, p)[i] = tail_at(l, place)[2 * i] ^ tail_at(l, place)[2 * i + 1] * 3;
      }
    }
  }
  // What a sequence of `tokens` that is all in memory must hold.
  bool holds(KvSequence id, const std::vector<int32_t>& tokens) {
    uint64_t history = 0;
    std::vector<uint64_t> seen;
    for (size_t p = 0; p < tokens.size(); ++p) {
      seen.push_back(history = next(history, tokens[p]));
      if (p % kKvTile != kKvTile - 1) continue;
      const int32_t block = cache->device_block(id, static_cast<int64_t>(p) / kBlock);
      if (block < 0) return false;
      for (int l = 0; l < kLayers; ++l)
        for (size_t i = 0; i < 32; ++i)
          if (tile_at(l, block, static_cast<int64_t>(p))[i] !=
              (word(seen[p - 63 + 2 * i], l) ^ word(seen[p - 62 + 2 * i], l) * 3))
            return false;
    }
    for (size_t p = tokens.size() / kKvTile * kKvTile; p < tokens.size(); ++p)
      for (int l = 0; l < kLayers; ++l)
        if (tail_at(l, cache->place(id))[p % kKvTile] != word(seen[p], l)) return false;
    return true;
  }
  static uint64_t history_of(const std::vector<int32_t>& tokens) {
    uint64_t history = 0;
    for (int32_t t : tokens) history = next(history, t);
    return history;
  }
  // A step of one sequence. Its status.
  Status step(KvSequence id, std::vector<int32_t>& tokens, const std::vector<int32_t>& more) {
    StepRows rows;
    KvStepRun run{id, more};
    HR_TRY(cache->reserve({&run, 1}, &rows));
    if (run.status.ok()) {
      EXPECT_TRUE(holds(id, tokens));
      write(history_of(tokens), rows, cache->place(id));
      tokens.insert(tokens.end(), more.begin(), more.end());
    }
    cache->commit();
    return run.status;
  }

  BlockCacheOptions options;
  std::vector<std::byte> pools[kLayers], tails[kLayers], staging;
  Flaky flaky;
  std::unique_ptr<Tier> tier;
  std::unique_ptr<BlockCache> cache;
};

std::vector<int32_t> text(int64_t count, int32_t stream = 0) {
  std::vector<int32_t> t;
  for (int64_t i = 0; i < count; ++i)
    t.push_back(static_cast<int32_t>(mixed(static_cast<uint64_t>(i * 3 + stream)) % 100));
  return t;
}

TEST(BlockCache, AStepThatDoesNotFitIsRefusedWithNumbersAndChangesNothing) {
  World w({.device = 3});
  std::vector<int32_t> tokens;
  const KvSequence id = *w.cache->open();
  ASSERT_TRUE(w.step(id, tokens, text(200)).ok());
  const std::vector<int32_t> more = text(300);
  const Status status = w.step(id, tokens, more);
  EXPECT_EQ(status.code(), Code::kDoesNotFit);
  EXPECT_NE(status.message().find("needs 4 blocks in memory, there are 3"), std::string::npos)
      << status.message();
  EXPECT_EQ(w.cache->length(id), 200);
  EXPECT_TRUE(w.cache->verify().ok());
  EXPECT_TRUE(w.step(id, tokens, text(10)).ok());
}

TEST(BlockCache, WhatAnOpenStepUsesStaysWhereItIs) {
  World w({});
  std::vector<int32_t> tokens;
  const KvSequence id = *w.cache->open();
  ASSERT_TRUE(w.step(id, tokens, text(256)).ok());
  const KvSequence child = *w.cache->fork(id, 256);
  const std::vector<int32_t> one = {1};
  KvStepRun run{id, one};
  StepRows rows;
  ASSERT_TRUE(w.cache->reserve({&run, 1}, &rows).ok());
  const int32_t block = w.cache->device_block(id, 0);
  EXPECT_EQ(w.cache->close(id).code(), Code::kUsage);
  (void)w.cache->evict(child, 0, 2);
  EXPECT_EQ(w.cache->device_block(id, 0), block);
  EXPECT_TRUE(w.cache->verify().ok());
  w.cache->abandon(false);
  EXPECT_TRUE(w.cache->evict(child, 0, 2).ok());
  EXPECT_EQ(w.cache->device_block(id, 0), -1);
  EXPECT_TRUE(w.step(id, tokens, one).ok());
}

TEST(BlockCache, ASharedBlockIsCopiedBeforeItIsWritten) {
  World w({});
  std::vector<int32_t> a = {}, b;
  const KvSequence parent = *w.cache->open();
  ASSERT_TRUE(w.step(parent, a, text(70)).ok());
  const KvSequence child = *w.cache->fork(parent, 69);
  EXPECT_EQ(w.cache->length(child), 69);
  b.assign(a.begin(), a.begin() + 69);
  EXPECT_EQ(w.cache->device_block(parent, 0), w.cache->device_block(child, 0));
  ASSERT_TRUE(w.step(child, b, text(90, 1)).ok());
  ASSERT_TRUE(w.step(parent, a, text(90, 2)).ok());
  EXPECT_EQ(w.cache->counts().copies_on_write, 1);
  EXPECT_TRUE(w.holds(parent, a));
  EXPECT_TRUE(w.holds(child, b));
}

TEST(BlockCache, AnotherSequenceFindsWholeBlocksAndIsToldHowManyPositionsThatAre) {
  World w({});
  std::vector<int32_t> tokens;
  const KvSequence first = *w.cache->open();
  ASSERT_TRUE(w.step(first, tokens, text(300)).ok());
  EXPECT_EQ(w.cache->block_hash(first, 0), chain_over(w.options.start, text(128)));
  ASSERT_TRUE(w.cache->close(first).ok());  // cached all the same
  const KvSequence second = *w.cache->open();
  std::vector<int32_t> other = text(300);
  other[200] += 1;  // in block 1: a part of the text is not all of it
  EXPECT_EQ(*w.cache->adopt(second, other), 128);
  std::vector<int32_t> held = text(128);
  ASSERT_TRUE(w.step(second, held, text(64, 1)).ok());
  EXPECT_TRUE(w.holds(second, held));
  EXPECT_EQ(*w.cache->adopt(*w.cache->open(), text(300)), 256);
  EXPECT_TRUE(w.cache->verify().ok());
}

TEST(BlockCache, ABlockThatComesBackChangedIsAnErrorOfItsSequencesAlone) {
  World w({});
  std::vector<int32_t> a, b;
  const KvSequence bad = *w.cache->open(), good = *w.cache->open();
  ASSERT_TRUE(w.step(bad, a, text(256)).ok());
  ASSERT_TRUE(w.step(good, b, text(256, 1)).ok());
  ASSERT_TRUE(w.cache->evict(bad, 1, 2).ok());
  w.flaky.flip = true;
  const std::vector<int32_t> one = {1};
  KvStepRun runs[] = {{bad, one}, {good, one}};
  StepRows rows;
  ASSERT_TRUE(w.cache->reserve(runs, &rows).ok());
  EXPECT_EQ(runs[0].status.code(), Code::kBadFile) << runs[0].status.message();
  EXPECT_EQ(runs[0].sound, 128);
  EXPECT_TRUE(runs[1].status.ok());
  EXPECT_EQ(rows.rows(), 1);
  w.cache->abandon(false);
  EXPECT_TRUE(w.cache->verify().ok());
  EXPECT_EQ(*w.cache->truncate(bad, runs[0].sound), 128);
  a.resize(128);
  EXPECT_TRUE(w.step(bad, a, text(130, 2)).ok());
}

TEST(BlockCache, AFailedOrFullTierLosesNothing) {
  World w({.device = 4, .tier = 1, .tails = 1, .staging = 1});
  std::vector<int32_t> a, b;
  const KvSequence first = *w.cache->open(), second = *w.cache->open();
  ASSERT_TRUE(w.step(first, a, text(300)).ok());
  w.flaky.fail_stores = true;
  EXPECT_EQ(w.cache->evict(first, 0, 2).code(), Code::kIo);
  EXPECT_EQ(w.cache->preempt(first).status().code(), Code::kIo);
  EXPECT_TRUE(w.holds(first, a));
  w.flaky.fail_stores = false;
  EXPECT_EQ(w.cache->evict(first, 0, 2).code(), Code::kDoesNotFit);  // one of two
  const Status full = w.step(second, b, text(512, 1));
  EXPECT_EQ(full.code(), Code::kDoesNotFit);
  EXPECT_NE(full.message().find("the tier takes 1 blocks"), std::string::npos) << full.message();
  EXPECT_EQ(*w.cache->preempt(first), 1);
  EXPECT_TRUE(w.cache->verify().ok());
  ASSERT_TRUE(w.cache->restore(first).ok());
  EXPECT_TRUE(w.step(first, a, {1}).ok());
  EXPECT_TRUE(w.holds(first, a));
}

TEST(BlockCache, WhatIsClosedTwiceOrNotOpenIsRefused) {
  World w({});
  const KvSequence id = *w.cache->open();
  EXPECT_TRUE(w.cache->close(id).ok());
  EXPECT_EQ(w.cache->close(id).code(), Code::kUsage);
  EXPECT_EQ(w.cache->fork(id, 0).status().code(), Code::kUsage);
  EXPECT_EQ(w.cache->evict(id, 0, 0).code(), Code::kUsage);
  EXPECT_EQ(w.cache->restore(id).code(), Code::kUsage);
  EXPECT_TRUE(w.cache->verify().ok());
}

TEST(BlockCache, KeepsItsReserveOfFreeBlocksWithoutWaitingOrTakingThemFromWhoRuns) {
  World w({.device = 8, .tier = 10, .staging = 1, .low = 3, .high = 5},
          {.delay_polls = 2});
  std::vector<int32_t> a, old;
  const KvSequence closed = *w.cache->open();
  ASSERT_TRUE(w.step(closed, old, text(4 * kBlock, 5)).ok());
  ASSERT_TRUE(w.cache->close(closed).ok());
  const KvSequence id = *w.cache->open();
  ASSERT_TRUE(w.step(id, a, text(2 * kBlock)).ok());
  EXPECT_EQ(w.cache->free_blocks(), 2);
  for (int i = 0; i < 30; ++i) w.cache->maintain();
  EXPECT_EQ(w.cache->free_blocks(), 5);
  EXPECT_TRUE(w.cache->verify().ok());
  ASSERT_TRUE(w.step(id, a, text(4 * kBlock, 6)).ok());
  EXPECT_EQ(w.cache->free_blocks(), 1);
  for (int i = 0; i < 30; ++i) w.cache->maintain();
  EXPECT_EQ(w.cache->free_blocks(), 2) << "six are those of a sequence that runs";
  for (int64_t g = 0; g < 6; ++g) EXPECT_GE(w.cache->device_block(id, g), 0);
}

TEST(BlockCache, FetchesOneBlockWhereRoomIsFree) {
  World w({.device = 4, .tier = 10});
  std::vector<int32_t> a, b;
  const KvSequence id = *w.cache->open();
  ASSERT_TRUE(w.step(id, a, text(3 * kBlock)).ok());
  ASSERT_TRUE(w.cache->evict(id, 0, 3).ok());
  EXPECT_TRUE(w.cache->fetch(id, 1).ok());
  EXPECT_EQ(w.cache->device_block(id, 0), -1);
  EXPECT_GE(w.cache->device_block(id, 1), 0);
  EXPECT_EQ(w.cache->fetch(id, 3).code(), Code::kUsage);
  const KvSequence other = *w.cache->open();
  ASSERT_TRUE(w.step(other, b, text(3 * kBlock, 7)).ok());
  EXPECT_EQ(w.cache->fetch(id, 2).code(), Code::kDoesNotFit);
  EXPECT_TRUE(w.cache->verify().ok());
}

TEST(BlockCache, AStepThatFailedInTheMiddleCostsAtMostTheTileBeingFilled) {
  World w({});
  std::vector<int32_t> a;
  const KvSequence id = *w.cache->open();
  ASSERT_TRUE(w.step(id, a, text(100)).ok());
  for (const bool crosses : {false, true}) {
    const std::vector<int32_t> more = text(crosses ? 100 : 10, 3);
    KvStepRun run{id, more};
    StepRows rows;
    ASSERT_TRUE(w.cache->reserve({&run, 1}, &rows).ok());
    w.write(World::history_of(a), rows, w.cache->place(id));
    w.cache->abandon(true);
    EXPECT_TRUE(w.cache->verify().ok());
    a.resize(static_cast<size_t>(w.cache->length(id)));
    EXPECT_EQ(a.size(), crosses ? 64u : 100u);
    EXPECT_TRUE(w.holds(id, a));
  }
}

// An obvious model: the tokens of each sequence. Everything else follows from them.
class Cycles {
 public:
  Cycles(World& world, uint64_t seed, bool faults) : w_(world), random_(seed), faults_(faults) {}

  void run(int operations) {
    for (int i = 0; i < operations && !::testing::Test::HasFailure(); ++i) {
      one();
      const Status sound = w_.cache->verify();
      ASSERT_TRUE(sound.ok()) << "operation " << i << ": " << sound.message();
    }
    while (!all_.empty()) close(all_.begin());
    w_.cache->settle();
    ASSERT_TRUE(w_.cache->verify().ok());
  }
  int64_t steps = 0, errors = 0, checked = 0;

 private:
  using Entry = std::map<int32_t, std::vector<int32_t>>::iterator;
  bool ok(const Status& status) {
    if (status.ok()) return true;
    ++errors;
    const Code c = status.code();
    EXPECT_TRUE(c == Code::kDoesNotFit || (faults_ && (c == Code::kIo || c == Code::kBadFile)))
        << status.message();
    return false;
  }
  Entry any() {
    auto it = all_.begin();
    std::advance(it, random_.below(all_.size()));
    return it;
  }
  void close(Entry e) {
    EXPECT_TRUE(w_.cache->close(KvSequence(e->first)).ok());
    all_.erase(e);
  }
  void open() {
    auto id = w_.cache->open();
    if (!ok(id.status())) return;
    const auto prompt = text(random_.below(400), random_.below(3));
    const auto kept = w_.cache->adopt(*id, prompt);
    ASSERT_TRUE(kept.ok());
    all_[id->value] = {prompt.begin(), prompt.begin() + *kept};
    EXPECT_EQ(w_.cache->length(*id), *kept);
  }
  void step() {
    std::vector<KvStepRun> runs;
    std::vector<std::vector<int32_t>> more;
    more.reserve(all_.size());
    for (const auto& [id, tokens] : all_) {
      const auto room = static_cast<int64_t>(w_.options.blocks_a_sequence) * kBlock -
                        static_cast<int64_t>(tokens.size());
      if (w_.cache->place(KvSequence(id)) < 0 || room < 1 || random_.below(2) == 0) continue;
      const int64_t n = std::min<int64_t>(room, random_.below(3) == 0 ? 1 + random_.below(150)
                                                                      : 1 + random_.below(5));
      auto all = text(static_cast<int64_t>(tokens.size()) + n, random_.below(3));
      more.emplace_back(all.end() - n, all.end());
      runs.push_back({KvSequence(id), more.back()});
    }
    StepRows rows;
    if (!ok(w_.cache->reserve(runs, &rows))) return;
    ASSERT_TRUE(w_.cache->verify().ok()) << w_.cache->verify().message();
    w_.cache->maintain();  // as between the ops of a step
    const bool fails = random_.below(8) == 0;
    for (const KvStepRun& run : runs) {
      if (!ok(run.status)) continue;
      auto& tokens = all_[run.sequence.value];
      EXPECT_TRUE(w_.holds(run.sequence, tokens)) << "sequence " << run.sequence.value;
      ++checked;
      w_.write(World::history_of(tokens), rows, w_.cache->place(run.sequence));
      if (!fails) tokens.insert(tokens.end(), run.tokens.begin(), run.tokens.end());
    }
    if (!fails) return ++steps, w_.cache->commit();
    w_.cache->abandon(true);
    for (const KvStepRun& run : runs)
      all_[run.sequence.value].resize(static_cast<size_t>(w_.cache->length(run.sequence)));
  }
  void one() {
    if (all_.empty()) return open();
    const Entry e = any();
    const KvSequence id(e->first);
    const auto length = static_cast<int64_t>(e->second.size());
    const int64_t at = random_.below(static_cast<uint64_t>(length) + 1);
    EXPECT_EQ(w_.cache->length(id), length);
    switch (random_.below(12)) {
      case 0: return open();
      case 1: {
        if (all_.size() > 7) return close(e);
        auto child = w_.cache->fork(id, at);
        if (!ok(child.status())) return;
        const auto kept = w_.cache->length(*child);
        EXPECT_TRUE(kept <= at && (kept == at || kept == at / 64 * 64));
        all_[child->value] = {e->second.begin(), e->second.begin() + kept};
        return;
      }
      case 2: {
        auto kept = w_.cache->truncate(id, length - at / 4);
        ASSERT_TRUE(kept.ok());
        return e->second.resize(static_cast<size_t>(*kept));
      }
      case 3: return close(e);
      case 4:
      case 5: {
        const int64_t blocks = (length / 64 * 64 + kBlock - 1) / kBlock;
        const int64_t begin = random_.below(static_cast<uint64_t>(blocks) + 1);
        (void)ok(w_.cache->evict(id, begin, blocks));
        return;
      }
      case 6:
      case 7: {
        if (w_.cache->place(id) >= 0) return (void)ok(w_.cache->preempt(id).status());
        if (random_.below(2) == 0) (void)ok(w_.cache->prefetch(id).status());
        return (void)ok(w_.cache->restore(id));
      }
      case 8: return w_.cache->maintain();
      default: return step();
    }
  }

  World& w_;
  SplitMix random_;
  const bool faults_;
  std::map<int32_t, std::vector<int32_t>> all_;
};

TEST(BlockCache, HoldsTheSameBytesThroughRandomCyclesAndDelays) {
  for (uint64_t seed = 1; seed <= 4; ++seed) {
    World w({.staging = seed % 2 == 0 ? 1 : 3, .low = 2, .high = 4},
            {.delay_polls = 2, .reorder_polls = 3, .seed = seed,
             .max_tickets = seed == 4 ? 1 : 64});
    Cycles cycles(w, seed, false);
    cycles.run(10000);
    EXPECT_GT(cycles.checked, 1000);
    EXPECT_GT(w.cache->counts().loads, 100);
    EXPECT_GT(w.cache->counts().copies_on_write, 10);
    EXPECT_GT(w.cache->counts().adopted, 10);
    EXPECT_EQ(w.cache->counts().mismatches + w.cache->counts().failed_loads, 0);
  }
}

TEST(BlockCache, HoldsTheSameBytesOrSaysWhyNotThroughRandomCyclesDelaysAndFaults) {
  for (uint64_t seed = 1; seed <= 6; ++seed) {
    World w({.device = seed % 2 == 0 ? 12 : 7, .tier = seed == 3 ? 2 : 10,
             .staging = seed % 2 == 0 ? 1 : 3, .low = 2, .high = 4},
            {.delay_polls = 1, .reorder_polls = 3, .seed = seed});
    w.flaky.fail_one_in = 10;
    w.flaky.flip_one_in = 10;
    Cycles cycles(w, 100 + seed, true);
    cycles.run(10000);
    EXPECT_GT(cycles.checked, 1000);
    EXPECT_GT(w.cache->counts().mismatches, 10);
    EXPECT_GT(w.cache->counts().failed_loads, 10);
  }
}

}  // namespace
}  // namespace headrace
