#include <gtest/gtest.h>

#include "tests/kernel/train_harness.h"

namespace headrace::test {
namespace {

TEST(TrainAdd, AddsAndRoundsOnce) {
  for (DType type : kTrainTypes) {
    for (int64_t n : {1, 31, 768}) {
      TrainHarness h("hr.add");
      const size_t a = h.input(type, 50, n), b = h.input(type, 50, n);
      const size_t y = h.output(type, 50, n);
      h.normal(a, 1);
      h.normal(b, 2);
      h.run_everywhere(train_rows_of(50));
      const auto x = h.values(a), z = h.values(b), got = h.values(y);
      for (size_t i = 0; i < got.size(); ++i) {
        const float sum = static_cast<float>(x[i]) + static_cast<float>(z[i]);
        const float want = type == DType::kF32    ? sum
                           : type == DType::kBF16 ? bf16_to_f32(f32_to_bf16(sum))
                                                  : f16_to_f32(f32_to_f16(sum));
        ASSERT_EQ(got[i], static_cast<double>(want));
      }
    }
  }
}

TEST(TrainAdd, NanAndInfinityPassInBothTypes) {
  for (DType type : kTrainTypes) {
    TrainHarness h("hr.add");
    const size_t a = h.input(type, 1, 20), b = h.input(type, 1, 20), y = h.output(type, 1, 20);
    std::vector<float> x(20, 1.0f), z(20, 1.0f);
    x[3] = std::numeric_limits<float>::quiet_NaN();
    x[4] = std::numeric_limits<float>::infinity();
    x[19] = -std::numeric_limits<float>::infinity();
    h.put(a, x);
    h.put(b, z);
    for (Isa isa : all_isas()) {
      IsaScope scope(isa);
      h.run(train_rows_of(1));
      const auto got = h.values(y);
      EXPECT_TRUE(std::isnan(got[3]));
      EXPECT_EQ(got[4], std::numeric_limits<double>::infinity());
      EXPECT_EQ(got[19], -std::numeric_limits<double>::infinity());
      EXPECT_EQ(got[5], 2);
    }
  }
}

}  // namespace
}  // namespace headrace::test
