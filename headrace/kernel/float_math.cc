#include "headrace/kernel/float_math.h"

#include <bit>
#include <cmath>
#include <cstdint>

namespace headrace {

using namespace float_math;

float exp_f32(float x) {
  // Written as the min instruction does it, so that a NaN passes.
  const float clamped = kExpHigh < x ? kExpHigh : x;
  if (x < kExpLow) return 0.0f;
  const float t = std::fmaf(clamped, kLog2E, kRoundMagic);
  const float n = t - kRoundMagic;
  float r = std::fmaf(n, -kLn2High, clamped);
  r = std::fmaf(n, -kLn2Low, r);
  float y = kExpTaylor[7];
  for (int i = 6; i >= 0; --i) y = std::fmaf(y, r, kExpTaylor[i]);
  // The low bits of t are n: adding them to the exponent of y multiplies it by 2^n.
  // Of a NaN that sum is some number; the last difference is 0 for all others.
  return std::bit_cast<float>(std::bit_cast<uint32_t>(y) + (std::bit_cast<uint32_t>(t) << 23)) +
         (clamped - clamped);
}

float tanh_f32(float x) {
  const float a = std::fabs(x);
  if (a < kTanhSmall) {
    const float z = x * x;
    float p = kTanhOdd[4];
    for (int i = 3; i >= 0; --i) p = std::fmaf(p, z, kTanhOdd[i]);
    return std::fmaf(x * z, p, x);
  }
  return std::copysign(1.0f - 2.0f / (exp_f32(a + a) + 1.0f), x);
}

float silu_f32(float x) { return x / (1.0f + exp_f32(-x)); }

float gelu_tanh_f32(float x) {
  return x / (1.0f + exp_f32(x * std::fmaf(x * x, kGelu1, kGelu0)));
}

}  // namespace headrace
