// Plans of batches: inside the budget, as said; what does not fit is refused with numbers.
#include "headrace/session/batch_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "headrace/plan/plan.h"
#include "tests/session/batch_models.h"

namespace headrace {
namespace {

using ::testing::HasSubstr;
using test::BlockFolder;
using test::SmallModel;

BatchOptions options(int32_t places = 8) {
  BatchOptions o;
  o.places = places;
  o.context = 1024;
  o.step_rows = 64;
  o.typical_tokens = 256;
  return o;
}

Result<BatchPlan> plan_with(const Model& model, BatchOptions o, Bytes above) {
  const ProcessMemory now = process_memory();
  const auto least = least_batch_memory(model, o, now);
  EXPECT_TRUE(least.ok()) << least.status().message();
  o.memory_bytes = *least + above;
  return plan_batch(model, o, now);
}

TEST(BatchPlan, HoldsItsBudgetAndTheLeastBudgetIsEnough) {
  const SmallModel m(test::streamed_llama());
  const BlockFolder folder;
  for (const bool disk : {false, true}) {
    BatchOptions o = options();
    if (disk) o.kv_folder = folder.folder();
    for (const Bytes above : {kMiB + kMiB / 2, 4 * kMiB, 64 * kMiB}) {
      const auto plan = plan_with(*m.model, o, above);
      ASSERT_TRUE(plan.ok()) << plan.status().message();
      EXPECT_TRUE(verify(plan->step).ok());
      EXPECT_LE(plan->ledger.reserved(), plan->options.memory_bytes);
      EXPECT_EQ(plan->step.arena_bytes, plan->arena_bytes);
      EXPECT_EQ(plan->blocks_a_sequence, 4);
      EXPECT_GE(plan->options.blocks, 4);
      EXPECT_LE(plan->options.blocks, 8 * 4);
      EXPECT_GE(plan->pool_bytes, plan->options.blocks * plan->block_bytes);
      EXPECT_EQ(plan->disk_blocks > 0, disk);
      EXPECT_EQ(plan->kv_disk_bytes > 0, disk);
    }
  }
}

TEST(BatchPlan, WhatDoesNotFitSaysWhatWould) {
  const SmallModel m(test::streamed_llama());
  BatchOptions o = options();
  o.memory_bytes = *least_batch_memory(*m.model, o) - 8 * kMiB;
  const auto plan = plan_batch(*m.model, o);
  ASSERT_EQ(plan.status().code(), Code::kDoesNotFit);
  EXPECT_THAT(plan.status().message(), HasSubstr("one sequence of 1024 positions"));
  EXPECT_THAT(plan.status().message(), HasSubstr("the least budget is"));
  EXPECT_THAT(plan.status().message(), HasSubstr("--kv q8"));
}

TEST(BatchPlan, IsTheSameForTheSameQuestion) {
  const SmallModel m(test::streamed_llama());
  BatchOptions o = options();
  const ProcessMemory now = process_memory();
  o.memory_bytes = *least_batch_memory(*m.model, o, now) + 8 * kMiB;
  const auto a = plan_batch(*m.model, o, now), b = plan_batch(*m.model, o, now);
  ASSERT_TRUE(a.ok() && b.ok());
  EXPECT_EQ(a->options.blocks, b->options.blocks);
  EXPECT_EQ(to_text(a->step), to_text(b->step));
}

TEST(BatchPlan, TimesGrowWithRowsAndLieOnALineBetween) {
  const SmallModel m(test::streamed_llama());
  const auto plan = plan_with(*m.model, options(), 3 * kMiB);
  ASSERT_TRUE(plan.ok());
  ASSERT_EQ(plan->times.size(), 7u);  // 1, 2, 4 ... 64
  for (size_t i = 1; i < plan->times.size(); ++i) {
    EXPECT_EQ(plan->times[i].rows, 2 * plan->times[i - 1].rows);
    EXPECT_GE(plan->times[i].ns, plan->times[i - 1].ns);
  }
  for (const auto& t : plan->times) EXPECT_EQ(plan->step_ns(t.rows), t.ns);
  EXPECT_EQ(plan->step_ns(0), plan->times[0].ns);
  EXPECT_EQ(plan->step_ns(48), (plan->times[5].ns + plan->times[6].ns) / 2);
  EXPECT_GE(plan->step_ns(1000), plan->times[6].ns);
}

// A slow link makes each pass dear, so that sharing it is worth weights that do not stay; a context
// of one block and places for all of it leave only one way.
TEST(BatchPlan, ChoosesMoreBlocksWhereAPassIsDear) {
  const SmallModel m(test::streamed_llama());
  BatchOptions o = options(16);
  o.machine.tiers[1].load_bytes_per_s = 1e6;
  const auto dear = plan_with(*m.model, o, 5 * kMiB / 2);
  ASSERT_TRUE(dear.ok()) << dear.status().message();
  EXPECT_GT(dear->options.blocks, 4);
  o = options(1);
  const auto one = plan_with(*m.model, o, 5 * kMiB / 2);
  ASSERT_TRUE(one.ok());
  EXPECT_EQ(one->options.blocks, 4) << "one sequence never has more";
}

TEST(BatchPlan, BlocksOfMoreMemoryThanAllWeightsTakeTheRest) {
  const SmallModel m(test::streamed_llama());
  const auto plan = plan_with(*m.model, options(), 256 * kMiB);
  ASSERT_TRUE(plan.ok());
  EXPECT_EQ(plan->options.blocks, 8 * 4);
  EXPECT_EQ(summarize(plan->step).streamed_bytes, 0);
}

TEST(BatchPlan, AShorterContextIsChosenWhereALongOneTakesTooMuch) {
  testing::TinyShape shape = test::streamed_llama();
  shape.kv_heads = 4;
  shape.head_dim = 64;
  const SmallModel m(shape);
  BatchOptions o = options();
  o.context = 0;
  o.typical_tokens = 100;
  const auto small = plan_with(*m.model, o, 3 * kMiB / 2);
  ASSERT_TRUE(small.ok()) << small.status().message();
  const auto large = plan_with(*m.model, o, 1024 * kMiB);
  ASSERT_TRUE(large.ok()) << large.status().message();
  EXPECT_LT(small->options.context, large->options.context);
  EXPECT_GE(small->options.context, 256);
  EXPECT_LE(large->options.context, 8192);
}

TEST(BatchPlan, OptionsOutOfRangeAreNamed) {
  const SmallModel m(test::streamed_llama());
  const auto refused = [&](auto change, const char* what) {
    BatchOptions o = options();
    o.memory_bytes = kGiB;
    change(o);
    const Status s = plan_batch(*m.model, o).status();
    EXPECT_EQ(s.code(), Code::kUsage) << what;
    EXPECT_THAT(s.message(), HasSubstr(what));
    EXPECT_EQ(least_batch_memory(*m.model, o).status().code(), Code::kUsage);
  };
  refused([](BatchOptions& o) { o.threads = 0; }, "threads");
  refused([](BatchOptions& o) { o.places = 0; }, "places");
  refused([](BatchOptions& o) { o.context = -1; }, "context");
  refused([](BatchOptions& o) { o.step_rows = 7; }, "step_rows is 7; 8 (places times");
  refused([](BatchOptions& o) { o.speculate = 64; }, "speculate");
  refused([](BatchOptions& o) { o.block_tokens = 100; }, "block_tokens");
  refused([](BatchOptions& o) { o.blocks = 3; }, "blocks is 3; at least 4");
  refused([](BatchOptions& o) { o.typical_tokens = 0; }, "typical_tokens");
  refused([](BatchOptions& o) { o.beside_bytes = -1; }, "beside_bytes");
}

TEST(BatchPlan, FourBitsOfKeysWithABiasAreRefused) {
  testing::TinyShape shape = test::streamed_llama();
  shape.architecture = "qwen2";
  const SmallModel m(shape);
  BatchOptions o = options();
  o.memory_bytes = kGiB;
  o.kv_format = KvFormat::kQ4;
  EXPECT_EQ(plan_batch(*m.model, o).status().code(), Code::kUnsupported);
}

TEST(BatchPlan, AFolderThatIsNotThereOrTooSmallIsRefused) {
  const SmallModel m(test::streamed_llama());
  BatchOptions o = options();
  o.memory_bytes = kGiB;
  o.kv_folder = "/nonexistent/folder";
  EXPECT_EQ(plan_batch(*m.model, o).status().code(), Code::kIo);
  const BlockFolder folder;
  o.kv_folder = folder.folder();
  o.kv_disk_bytes = Bytes{1} << 60;
  const auto plan = plan_batch(*m.model, o);
  EXPECT_EQ(plan.status().code(), Code::kIo);
  EXPECT_THAT(plan.status().message(), HasSubstr(folder.folder()));
}

}  // namespace
}  // namespace headrace
