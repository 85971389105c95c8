#include "headrace/kernel/rms_norm.h"

#include <gtest/gtest.h>

#include <cmath>

#include "headrace/kernel/half.h"
#include "headrace/kernel/quant.h"
#include "tests/kernel/op_harness.h"

namespace headrace::test {
namespace {

constexpr double kEps = 1e-5;

struct NormCase {
  int64_t n;
  DType weight = DType::kF32;
  bool residual = false, add_one = false;
  DType out = DType::kF32;
};

class NormHarness {
 public:
  explicit NormHarness(const NormCase& c, int64_t rows)
      : h(OpKind::kRmsNorm, rows), n(c.n) {
    x = h.input(DType::kF32, rows, n);
    weight = h.input(c.weight, 1, n, Role::kWeight);
    residual = c.residual ? h.input(DType::kF32, rows, n) : 0;
    if (!c.residual) h.absent_input();
    out = h.output(c.out, rows, n);
    h.op.attrs = {{Attr::kEps, kEps}, {Attr::kAddOne, c.add_one}};
    fill_normal(h.f32(x), rows * n, 1, 4);
    if (c.residual) fill_normal(h.f32(residual), rows * n, 3);
    for (int64_t i = 0; i < n; ++i) {
      const float w = weight_value(i);
      std::byte* at = h.bytes(weight);
      const uint16_t half = c.weight == DType::kF16
                                ? f32_to_f16(w)
                                : static_cast<uint16_t>(std::bit_cast<uint32_t>(w) >> 16);
      if (c.weight == DType::kF32) std::memcpy(at + 4 * i, &w, 4);
      if (c.weight != DType::kF32) std::memcpy(at + 2 * i, &half, 2);
    }
  }
  // A value that f16 and bf16 hold exactly.
  static float weight_value(int64_t i) { return static_cast<float>(i % 17 - 8) / 8; }

  OpHarness h;
  int64_t n;
  size_t x, weight, residual, out;
};

const NormCase kCases[] = {
    {576},
    {100, DType::kF16},
    {33, DType::kBF16, true},
    {1152, DType::kF32, true, true},
    {64, DType::kBF16, false, true},
};

TEST(RmsNorm, FollowsItsFormulaInDoublePrecision) {
  for (const NormCase& c : kCases) {
    NormHarness t(c, 7);
    IsaScope scalar(Isa::kScalar);
    t.h.run(step_of(7));
    for (int64_t row = 0; row < 7; ++row) {
      const float* x = t.h.f32(t.x) + row * c.n;
      double sum = 0;
      for (int64_t i = 0; i < c.n; ++i) sum += static_cast<double>(x[i]) * x[i];
      const double scale = 1 / std::sqrt(sum / static_cast<double>(c.n) + kEps);
      for (int64_t i = 0; i < c.n; ++i) {
        const double w = NormHarness::weight_value(i) + (c.add_one ? 1 : 0);
        const double r = c.residual ? t.h.f32(t.residual)[row * c.n + i] : 0;
        ASSERT_NEAR(t.h.f32(t.out)[row * c.n + i], r + x[i] * scale * w, 3e-6) << c.n;
      }
    }
  }
}

TEST(RmsNorm, IsTheSameOnEveryInstructionSetWithEveryThreadCountAndAlone) {
  for (const NormCase& c : kCases) {
    NormHarness t(c, 300), alone(c, 1);
    std::string want;
    for (Isa isa : all_isas()) {
      IsaScope scope(isa);
      for (int threads : {1, 2, 3}) {
        t.h.buffers[t.out].fill(0xFF);
        t.h.run(step_of(300), threads);
        if (want.empty()) want = t.h.bits(t.out);
        ASSERT_EQ(t.h.bits(t.out), want) << c.n << " " << name_of(isa);
      }
      std::memcpy(alone.h.f32(alone.x), t.h.f32(t.x) + 299 * c.n,
                  static_cast<size_t>(c.n) * 4);
      if (c.residual) {
        std::memcpy(alone.h.f32(alone.residual), t.h.f32(t.residual) + 299 * c.n,
                    static_cast<size_t>(c.n) * 4);
      }
      alone.h.run(step_of(1));
      EXPECT_EQ(alone.h.bits(alone.out), want.substr(static_cast<size_t>(299 * c.n) * 4));
    }
  }
}

TEST(RmsNorm, AnActQ8OutputIsTheF32OutputQuantised) {
  NormCase c{576, DType::kF32, true};
  NormHarness plain(c, 50);
  c.out = DType::kActQ8;
  NormHarness fused(c, 50);
  for (Isa isa : all_isas()) {
    IsaScope scope(isa);
    plain.h.run(step_of(50));
    fused.h.run(step_of(50), 3);
    const Bytes stride = row_bytes(DType::kActQ8, c.n);
    for (int64_t row = 0; row < 50; ++row) {
      Buffer want(stride);
      quantize_row(plain.h.f32(plain.out) + row * c.n, c.n, want.data());
      ASSERT_EQ(std::memcmp(fused.h.bytes(fused.out) + row * stride, want.data(),
                            static_cast<size_t>(stride)),
                0);
    }
  }
}

TEST(RmsNorm, BehindSelectRowsOnlyTheSelectedRowsAreMade) {
  NormHarness t({64}, 2);
  t.h.graph.max_rows = 8;
  t.h.graph.max_output_rows = 2;
  StepRows step = step_of(8);
  step.output_rows = {7};
  t.h.run(step);
  EXPECT_FALSE(std::isnan(t.h.f32(t.out)[63]));
  EXPECT_TRUE(std::isnan(t.h.f32(t.out)[64]));
}

}  // namespace
}  // namespace headrace::test
