// Training: what users of other systems ran into with memory, one test a report, named in the
// comment before it. README.md has the whole list.
#include <gtest/gtest.h>
#include <malloc.h>
#include <sys/mman.h>

#include <algorithm>
#include <filesystem>

#include "headrace/base/system_memory.h"
#include "headrace/tier/fault_tier.h"
#include "tests/conformance/allocation_counter.h"
#include "tests/train/test_run.h"

namespace headrace {
namespace {

using test::TestRun;

int64_t entries(const char* folder) {
  return std::distance(std::filesystem::directory_iterator(folder),
                       std::filesystem::directory_iterator());
}

// pytorch PR #186161, torchtitan PR #3521: 3 ms for each pinned allocation, 155 of them a step.
// NeMo-RL #2319, SkyRL PR #1768: fragmentation, out of memory at step 2.
TEST(TrainMemory, NoStepAfterTheFirstAllocates) {
  for (const bool disk : {false, true}) {
    for (const int threads : {1, 2}) {
      TestRun run;
      if (disk) run.o.tiers = {{"disk", run.o.config.out, 0}};
      run.o.config.optimizer.clip_norm = disk ? 0.5 : 0;
      run.o.threads = threads;
      run.plan_tight(0.7);
      auto t = run.start();
      ASSERT_TRUE(t.ok()) << t.status().message();
      ASSERT_TRUE((*t)->step().ok());
      const size_t held = ::mallinfo2().uordblks;
      for (int step = 2; step <= 20; ++step) {
        const int64_t before = allocations_so_far();
        const bool ok = (*t)->step().ok();
        const int64_t made = allocations_so_far() - before;
        ASSERT_TRUE(ok);
        EXPECT_EQ(made, 0) << "step " << step << ", disk " << disk << ", threads " << threads;
      }
      EXPECT_EQ(::mallinfo2().uordblks, held) << "disk " << disk << ", threads " << threads;
    }
  }
}

// Memory that grows by a little every step: deepspeed #4871 and others. 256 KiB in 180 steps is
// what the kernel's own counting may be off by.
TEST(TrainMemory, ARunOf200StepsDoesNotGrow) {
  TestRun run;
  run.o.tiers = {{"disk", run.o.config.out, 0}};
  run.o.threads = 2;
  run.plan_tight(0.7);
  auto t = run.start();
  ASSERT_TRUE(t.ok());
  Bytes early = 0;
  for (int step = 1; step <= 200; ++step) {
    ASSERT_TRUE((*t)->step().ok());
    if (step == 20) early = process_memory().rss;
  }
  EXPECT_LE(process_memory().rss, early + 256 * kKiB);
}

// TRL PR #5700, #5730: 5 GB leak when a step is left by an exception.
TEST(TrainMemory, ARunThatFailsInTheMiddleOfAStepGivesBackEverything) {
  TestRun run;
  run.o.tiers = {{"disk", run.o.config.out, 0}};
  run.o.threads = 2;
  run.plan_tight(0.7);
  const auto fail = [&](int64_t transfers) {
    EngineOptions options;
    options.wrap = [transfers](std::unique_ptr<Tier> inner, size_t) {
      FaultPlan faults;
      faults.fail_at = transfers;
      faults.max_tickets = 1024;
      return make_fault_tier(std::move(inner), faults);
    };
    auto t = run.start("", options);
    Status status = t.status();
    for (int i = 0; status.ok() && i < 50; ++i) status = (*t)->step().status();
    EXPECT_EQ(status.code(), Code::kIo) << transfers;
  };
  // What each way of failing sets up the first time it is met stays.
  for (int64_t transfers = 20; transfers <= 400; transfers += 20) fail(transfers);
  ::malloc_trim(0);
  const Bytes rss = process_memory().rss;
  const size_t held = ::mallinfo2().uordblks;
  const int64_t files = entries("/proc/self/fd"), threads = entries("/proc/self/task");
  for (int64_t transfers = 20; transfers <= 400; transfers += 20) fail(transfers);
  ::malloc_trim(0);
  EXPECT_LE(process_memory().rss, rss + 256 * kKiB);
  EXPECT_EQ(::mallinfo2().uordblks, held);
  EXPECT_EQ(entries("/proc/self/fd"), files);
  EXPECT_EQ(entries("/proc/self/task"), threads);
}

// Pages of [begin, begin + bytes) that hold memory.
Bytes touched(const std::byte* begin, Bytes bytes) {
  std::vector<unsigned char> pages(static_cast<size_t>(round_up(bytes, kPage) / kPage));
  EXPECT_EQ(::mincore(const_cast<std::byte*>(begin), static_cast<size_t>(bytes), pages.data()), 0);
  return kPage * std::count_if(pages.begin(), pages.end(), [](int p) { return (p & 1) != 0; });
}

// Where the arena begins: from an output's address and its place in the plan.
const std::byte* arena_of(TrainEngine& engine) {
  const Program& p = engine.program();
  for (const Residency& r : p.residencies) {
    if (!r.tensor.valid() || r.tier != kDevice || r.end != p.exit()) continue;
    if (p.graph->at(r.tensor).name != "loss") continue;
    return reinterpret_cast<const std::byte*>(engine.output("loss").data()) -
           (r.offset - r.range.begin);
  }
  return nullptr;
}

// deepspeed #3770, transformers #24356: the estimator said 12.39 GB, 16 GB did not do.
TEST(TrainMemory, ThePlansPeakIsTheArenaAndAStepUsesAllOfIt) {
  for (const double share : {1.0, 0.7, 0.4}) {
    TestRun run;
    run.o.config.sequence = 64;
    run.plan_tight(share);
    auto t = run.start();
    ASSERT_TRUE(t.ok());
    for (int i = 0; i < 2; ++i) ASSERT_TRUE((*t)->step().ok());
    const Program& p = (*t)->engine().program();
    EXPECT_EQ(run.planned->arena_bytes, p.arena_bytes);
    EXPECT_LE(peak_bytes(p), p.arena_bytes);
    EXPECT_GE(peak_bytes(p), p.arena_bytes - p.arena_bytes / 100) << share;
    const Bytes used = touched(arena_of((*t)->engine()), p.arena_bytes);
    EXPECT_GE(used, p.arena_bytes - p.arena_bytes / 50) << share;
  }
}

// The same, and deepspeed #4867, #4571, #5290, pytorch #150517: what the process takes beside the
// arena is in the plan too, nothing is rounded up to a power of two.
TEST(TrainMemory, WhatAProcessGrowsByIsInThePlan) {
  for (const bool disk : {false, true}) {
    TestRun run;
    run.o.config.sequence = 256;
    if (disk) run.o.tiers = {{"disk", run.o.config.out, 0}};
    if (disk) {
      run.plan_tight(0.7);
    } else {
      run.planned = *run.plan();
    }
    ASSERT_TRUE(run.open_data().ok());
    const Bytes before = process_memory().rss;
    auto t = run.start();
    ASSERT_TRUE(t.ok());
    for (int i = 0; i < 3; ++i) ASSERT_TRUE((*t)->step().ok());
    ASSERT_TRUE((*t)->save().ok());
    const Bytes grown = process_memory().rss - before;
    EXPECT_LE(grown, run.planned->arena_bytes + train_overhead(*run.planned->step, 1)) << disk;
  }
}

}  // namespace
}  // namespace headrace
