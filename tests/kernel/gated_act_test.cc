#include <gtest/gtest.h>

#include <cmath>

#include "headrace/kernel/quant.h"
#include "headrace/kernel/row_ops.h"
#include "tests/kernel/op_harness.h"

namespace headrace::test {
namespace {

struct GatedHarness {
  GatedHarness(int64_t rows, int64_t n, Act act, DType type = DType::kF32)
      : h(OpKind::kGatedAct, rows) {
    x = h.input(DType::kF32, rows, 2 * n);
    out = h.output(type, rows, n);
    h.op.attrs = {{Attr::kAct, static_cast<double>(act)}};
    fill_normal(h.f32(x), rows * 2 * n, 9, 3);
  }
  OpHarness h;
  size_t x, out;
};

TEST(GatedAct, IsActOfTheFirstHalfTimesTheSecond) {
  constexpr int64_t kN = 100;
  for (Act act : {Act::kSilu, Act::kGeluTanh}) {
    GatedHarness t(3, kN, act);
    t.h.run(step_of(3));
    for (int64_t row = 0; row < 3; ++row) {
      for (int64_t i = 0; i < kN; ++i) {
        const double g = t.h.f32(t.x)[row * 2 * kN + i];
        const double up = t.h.f32(t.x)[row * 2 * kN + kN + i];
        const double u = std::sqrt(2 / M_PI) * (g + 0.044715 * g * g * g);
        const double a =
            act == Act::kSilu ? g / (1 + std::exp(-g)) : g / 2 * (1 + std::tanh(u));
        ASSERT_NEAR(t.h.f32(t.out)[row * kN + i], a * up, 1e-5);
      }
    }
  }
}

TEST(GatedAct, IsTheSameOnEveryInstructionSetAndThreadCountFusedOrNot) {
  constexpr int64_t kRows = 40, kN = 1536;
  for (Act act : {Act::kSilu, Act::kGeluTanh}) {
    std::string want, want_fused;
    for (Isa isa : all_isas()) {
      IsaScope scope(isa);
      for (int threads : {1, 2, 3}) {
        GatedHarness plain(kRows, kN, act), fused(kRows, kN, act, DType::kActQ8);
        plain.h.run(step_of(kRows), threads);
        fused.h.run(step_of(kRows), threads);
        if (want.empty()) {
          want = plain.h.bits(plain.out);
          const Bytes stride = row_bytes(DType::kActQ8, kN);
          Buffer rows(kRows * stride);
          for (int64_t row = 0; row < kRows; ++row) {
            quantize_row(plain.h.f32(plain.out) + row * kN, kN,
                         rows.data() + row * stride);
          }
          want_fused.assign(reinterpret_cast<char*>(rows.data()),
                            static_cast<size_t>(rows.bytes()));
        }
        ASSERT_EQ(plain.h.bits(plain.out), want) << name_of(isa);
        ASSERT_EQ(fused.h.bits(fused.out), want_fused) << name_of(isa);
      }
    }
  }
}

}  // namespace
}  // namespace headrace::test
