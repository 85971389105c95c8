// Random schedules: ragged chunks, decode rows, drafts, forks, shared beginnings, truncations,
// preemption and resumption under memory pressure, faults. Every row has the bits of a Session
// alone.
#include <gtest/gtest.h>

#include "tests/session/batch_random.h"

namespace headrace::test {
namespace {

class BatchSchedules : public ::testing::TestWithParam<RandomBatch> {};

TEST_P(BatchSchedules, GiveTheBitsOfEachSequenceAlone) {
  BatchLives lives(GetParam());
  lives.run(17);
  const RandomBatch& c = GetParam();
  EXPECT_GT(lives.rows_checked(), c.cycles);
  EXPECT_GT(lives.counts().adopted, 0);
  EXPECT_GT(lives.counts().copies_on_write + lives.counts().discarded, 0);
  if (c.disk) {
    EXPECT_GT(lives.counts().loads, c.cycles / 50);
  }
  if (c.bad_weights) {
    EXPECT_GT(lives.recoveries(), 0);
  }
  if (c.bad_blocks) {
    EXPECT_GT(lives.bad_parts(), 0);
  }
  RecordProperty("rows", static_cast<int>(lives.rows_checked()));
}

INSTANTIATE_TEST_SUITE_P(Batch, BatchSchedules, ::testing::ValuesIn(random_batches(1500)),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace headrace::test
