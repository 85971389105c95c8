// The functions of float_math.h over Lanes: the same steps in every lane. Included after
// a lanes_*.h, in *_avx2.cc and *_avx512.cc files only.
#pragma once

#include "headrace/kernel/float_math.h"

namespace headrace {
namespace {

// Calls body(i, Full) for every whole group of 16, then body(i, Part) for the rest.
template <typename Body>
inline void each_group(int64_t n, Body body) {
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) body(i, Full{});
  if (i < n) body(i, Part{n - i});
}

inline Lanes exp_lanes(Lanes x) {
  using namespace float_math;
  const Lanes magic = Lanes::splat(kRoundMagic);
  const Lanes clamped = min(Lanes::splat(kExpHigh), x);
  const Lanes t = fma(clamped, Lanes::splat(kLog2E), magic);
  const Lanes n = t - magic;
  Lanes r = fma(n, Lanes::splat(-kLn2High), clamped);
  r = fma(n, Lanes::splat(-kLn2Low), r);
  Lanes y = Lanes::splat(kExpTaylor[7]);
#pragma GCC unroll 16
  for (int i = 6; i >= 0; --i) y = fma(y, r, Lanes::splat(kExpTaylor[i]));
  // Of a NaN that sum is some number; the last difference is 0 for all others.
  y = add_exponent(y, t) + (clamped - clamped);
  return where_less(x, Lanes::splat(kExpLow), Lanes::zero(), y);
}

inline Lanes tanh_lanes(Lanes x) {
  using namespace float_math;
  const Lanes one = Lanes::splat(1), a = absolute(x), z = x * x;
  Lanes p = Lanes::splat(kTanhOdd[4]);
#pragma GCC unroll 16
  for (int i = 3; i >= 0; --i) p = fma(p, z, Lanes::splat(kTanhOdd[i]));
  const Lanes small = fma(x * z, p, x);
  const Lanes large = one - Lanes::splat(2) / (exp_lanes(a + a) + one);
  return where_less(a, Lanes::splat(kTanhSmall), small, with_sign(large, x));
}

inline Lanes softcap_lanes(Lanes x, Lanes cap) { return cap * tanh_lanes(x / cap); }

inline Lanes silu_lanes(Lanes x) {
  return x / (Lanes::splat(1) + exp_lanes(negative(x)));
}

inline Lanes gelu_tanh_lanes(Lanes x) {
  using namespace float_math;
  const Lanes u = x * fma(x * x, Lanes::splat(kGelu1), Lanes::splat(kGelu0));
  return x / (Lanes::splat(1) + exp_lanes(u));
}

}  // namespace
}  // namespace headrace
