#include <gtest/gtest.h>

#include <cmath>

#include "tests/kernel/op_harness.h"

namespace headrace::test {
namespace {

TEST(Softcap, BoundsLogitsTheSameOnEveryInstructionSetAndThreadCount) {
  constexpr int64_t kN = 20011;
  std::string want;
  for (Isa isa : all_isas()) {
    IsaScope scope(isa);
    for (int threads : {1, 2, 3}) {
      OpHarness h(OpKind::kSoftcap, 8, 2);
      const size_t x = h.input(DType::kF32, 2, kN), out = h.output(DType::kF32, 2, kN);
      h.op.attrs = {{Attr::kSoftcap, 30.0}};
      fill_normal(h.f32(x), 2 * kN, 4, 25);
      StepRows step = step_of(8);
      step.output_rows = {3, 7};
      h.run(step, threads);
      if (want.empty()) want = h.bits(out);
      ASSERT_EQ(h.bits(out), want) << name_of(isa);
      for (int64_t i = 0; i < 2 * kN; i += 11) {
        ASSERT_NEAR(h.f32(out)[i], 30 * std::tanh(h.f32(x)[i] / 30.0), 8e-6);
      }
    }
  }
}

}  // namespace
}  // namespace headrace::test
