// Float functions that give the same bits on every machine and in every instruction set.
//
// Each is a fixed list of IEEE single-precision operations (fused multiply-adds are
// spelled out); the vector versions in row_ops_inl.h run the same list in every lane. The
// steps are frozen in docs/decisions/0002-attention-tile.md.
//
// Promises
//   1. exp_f32 is within 2 ulp of e^x for x in [-87, 88.37]; exactly 0 below; e^88.37
//      above; exactly 1 at 0. A NaN stays a NaN.
//   2. tanh_f32 is within 1e-7 relative below 0.625 and 2 ulp elsewhere; odd; never
//      beyond 1.
// Sources: range reduction and tanh coefficients as in the Cephes library (S. Moshier,
// 1989, expf / tanhf); the exp polynomial is the Taylor series to degree 7.
#pragma once

namespace headrace {

float exp_f32(float x);
float tanh_f32(float x);
// x / (1 + e^-x).
float silu_f32(float x);
// x / 2 (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) = x / (1 + e^-2u).
float gelu_tanh_f32(float x);
// cap tanh(x / cap).
inline float softcap_f32(float x, float cap) { return cap * tanh_f32(x / cap); }

// Constants shared with the vector versions.
namespace float_math {
constexpr float kExpLow = -87.0f;              // below: 0
constexpr float kExpHigh = 88.3762626647949f;  // above: as here
constexpr float kLog2E = 1.44269504088896341f;
constexpr float kLn2High = 0.693359375f;  // 9 bits, so n * kLn2High is exact
constexpr float kLn2Low = -2.12194440e-4f;
constexpr float kRoundMagic = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer
constexpr float kExpTaylor[8] = {1.0f,      1.0f,       1.0f / 2,   1.0f / 6,
                                 1.0f / 24, 1.0f / 120, 1.0f / 720, 1.0f / 5040};
constexpr float kTanhSmall = 0.625f;
constexpr float kTanhOdd[5] = {-3.33332819422e-1f, 1.33314422036e-1f, -5.37397155531e-2f,
                               2.06390887954e-2f, -5.70498872745e-3f};
constexpr float kGelu0 = -1.5957691216057308f;  // -2 sqrt(2 / pi)
constexpr float kGelu1 = -1.5957691216057308f * 0.044715f;
}  // namespace float_math

}  // namespace headrace
