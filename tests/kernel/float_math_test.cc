#include "headrace/kernel/float_math.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>

namespace headrace {
namespace {

double ulps(float got, double want) {
  const auto near = static_cast<float>(want);
  const double ulp = std::nextafter(std::fabs(near), 1e38f) - std::fabs(near);
  return std::fabs(got - want) / ulp;
}

TEST(FloatMath, ExpIsWithinTwoUlpAndZeroBelow) {
  double worst = 0;
  for (float x = -86.99f; x < 88.37f; x += 0.00173f) {
    worst = std::max(worst, ulps(exp_f32(x), std::exp(static_cast<double>(x))));
  }
  EXPECT_LT(worst, 2);
  EXPECT_EQ(exp_f32(0), 1.0f);
  EXPECT_EQ(exp_f32(-0.0f), 1.0f);
  EXPECT_EQ(exp_f32(-87.001f), 0.0f);
  const float inf = std::numeric_limits<float>::infinity();
  // Whatever their payload: freed memory is filled with ones in tests.
  for (uint32_t nan : {0xffffffffu, 0x7fc00000u, 0x7f800001u, 0xffc12345u}) {
    EXPECT_TRUE(std::isnan(exp_f32(std::bit_cast<float>(nan)))) << nan;
  }
  EXPECT_EQ(exp_f32(-inf), 0.0f);
  EXPECT_TRUE(std::isfinite(exp_f32(inf)));
  EXPECT_TRUE(std::isnan(exp_f32(std::nanf(""))));
}

TEST(FloatMath, TanhIsCloseOddAndBounded) {
  double worst = 0;
  for (float x = -12; x < 12; x += 0.00091f) {
    worst = std::max(worst, ulps(tanh_f32(x), std::tanh(static_cast<double>(x))));
    EXPECT_EQ(tanh_f32(-x), -tanh_f32(x));
  }
  EXPECT_LT(worst, 3);
  EXPECT_EQ(tanh_f32(1000), 1.0f);
  EXPECT_EQ(tanh_f32(-1000), -1.0f);
  EXPECT_EQ(tanh_f32(1e-20f), 1e-20f);
  EXPECT_TRUE(std::isnan(tanh_f32(std::nanf(""))));
}

TEST(FloatMath, ActivationsFollowTheirFormulas) {
  for (float x = -20; x < 20; x += 0.013f) {
    const double d = x;
    EXPECT_NEAR(silu_f32(x), d / (1 + std::exp(-d)), 1e-6 * (1 + std::fabs(d)));
    const double u = std::sqrt(2 / M_PI) * (d + 0.044715 * d * d * d);
    EXPECT_NEAR(gelu_tanh_f32(x), d / 2 * (1 + std::tanh(u)), 1e-6 * (1 + std::fabs(d)));
  }
  EXPECT_EQ(silu_f32(1000), 1000.0f);
  EXPECT_NEAR(silu_f32(-1000), 0, 1e-30);
  EXPECT_EQ(gelu_tanh_f32(1000), 1000.0f);
  EXPECT_NEAR(gelu_tanh_f32(-1000), 0, 1e-30);
}

TEST(FloatMath, SoftcapIsLinearNearZeroAndBoundedByTheCap) {
  EXPECT_NEAR(softcap_f32(0.01f, 30), 0.01, 1e-8);
  EXPECT_EQ(softcap_f32(1e6f, 30), 30.0f);
  EXPECT_NEAR(softcap_f32(20, 30), 30 * std::tanh(20.0 / 30), 4e-6);
}

}  // namespace
}  // namespace headrace
