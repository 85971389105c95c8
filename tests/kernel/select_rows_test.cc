#include <gtest/gtest.h>

#include "tests/kernel/op_harness.h"

namespace headrace::test {
namespace {

TEST(SelectRows, PacksTheAskedRowsInTheOrderAsked) {
  OpHarness h(OpKind::kSelectRows, 5, 3);
  const size_t x = h.input(DType::kF32, 5, 7), out = h.output(DType::kF32, 3, 7);
  fill_normal(h.f32(x), 35, 1);
  StepRows step = step_of(5);
  step.output_rows = {4, 1, 4};
  h.run(step);
  const auto all = h.floats(x, 5, 7);
  for (size_t i = 0; i < 3; ++i) {
    const auto row = static_cast<size_t>(step.output_rows[i]) * 7;
    EXPECT_TRUE(std::equal(all.begin() + row, all.begin() + row + 7, h.f32(out) + i * 7));
  }
}

TEST(SelectRows, WritesNothingWhenNoLogitsAreWanted) {
  OpHarness h(OpKind::kSelectRows, 2, 1);
  const size_t x = h.input(DType::kF32, 2, 4), out = h.output(DType::kF32, 1, 4);
  fill_normal(h.f32(x), 8, 1);
  const std::string before = h.bits(out);
  h.run(step_of(2));
  EXPECT_EQ(h.bits(out), before);
}

}  // namespace
}  // namespace headrace::test
