#include <gtest/gtest.h>

#include <cmath>

#include "tests/kernel/op_harness.h"

namespace headrace::test {
namespace {

TEST(RopeTable, HoldsCosinesThenSinesOfTheRoundedAngleTimesMscale) {
  constexpr int64_t kHalf = 32;
  OpHarness h(OpKind::kRopeTable, 5);
  const size_t inv_freq = h.input(DType::kF32, 1, kHalf, Role::kConstant);
  for (int64_t i = 0; i < kHalf; ++i) {
    h.f32(inv_freq)[i] = std::pow(10000.0f, -static_cast<float>(i) / kHalf);
  }
  const size_t out = h.output(DType::kF32, 5, 2 * kHalf);
  h.op.attrs = {{Attr::kMscale, 1.25}};
  StepRows step = step_of(3, 1000);
  append(step, step_of(2, 131071, 1));
  h.run(step, 2);
  for (int64_t row = 0; row < 5; ++row) {
    for (int64_t i = 0; i < kHalf; ++i) {
      const float angle = static_cast<float>(step.positions[static_cast<size_t>(row)]) *
                          h.f32(inv_freq)[i];
      const float* at = h.f32(out) + row * 2 * kHalf;
      EXPECT_EQ(at[i], static_cast<float>(std::cos(static_cast<double>(angle))) * 1.25f);
      EXPECT_EQ(at[kHalf + i],
                static_cast<float>(std::sin(static_cast<double>(angle))) * 1.25f);
    }
  }
}

}  // namespace
}  // namespace headrace::test
