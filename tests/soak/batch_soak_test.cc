// Long runs of what tests/session/batch_random_test.cc does for a moment.
#include <gtest/gtest.h>

#include "tests/session/batch_random.h"

namespace headrace::test {
namespace {

class BatchSoak : public ::testing::TestWithParam<RandomBatch> {};

TEST_P(BatchSoak, GivesTheBitsOfEachSequenceAlone) {
  BatchLives lives(GetParam());
  for (const uint64_t seed : {1, 2, 3}) lives.run(seed);
  EXPECT_GT(lives.rows_checked(), GetParam().cycles);
}

INSTANTIATE_TEST_SUITE_P(Batch, BatchSoak, ::testing::ValuesIn(random_batches(50000)),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace headrace::test
