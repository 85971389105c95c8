#include <gtest/gtest.h>

#include "tests/kernel/op_harness.h"

namespace headrace::test {
namespace {

TEST(Add, AddsRowByRowOnEveryInstructionSetAndThreadCount) {
  constexpr int64_t kRows = 90, kN = 577;
  for (Isa isa : all_isas()) {
    IsaScope scope(isa);
    for (int threads : {1, 3}) {
      OpHarness h(OpKind::kAdd, kRows);
      const size_t a = h.input(DType::kF32, kRows, kN),
                   b = h.input(DType::kF32, kRows, kN);
      const size_t out = h.output(DType::kF32, kRows, kN);
      fill_normal(h.f32(a), kRows * kN, 1);
      fill_normal(h.f32(b), kRows * kN, 2);
      h.run(step_of(kRows), threads);
      for (int64_t i = 0; i < kRows * kN; ++i) {
        ASSERT_EQ(h.f32(out)[i], h.f32(a)[i] + h.f32(b)[i]);
      }
    }
  }
}

}  // namespace
}  // namespace headrace::test
