// RowOps written once over Lanes. Included by row_ops_avx2.cc and row_ops_avx512.cc, each
// after its lanes_*.h; the steps are those of row_ops.cc and float_math.cc in every lane.
#pragma once

#include <algorithm>
#include <limits>

#include "headrace/kernel/lanes_math.h"
#include "headrace/kernel/row_ops.h"

namespace headrace {
namespace {

double sum_squares(const float* x, int64_t n) {
  DoubleLanes sum;
  each_group(n, [&](int64_t i, auto size) { sum.add_square(Lanes::load(x + i, size)); });
  return sum.tree_sum();
}

void scale_weight(const float* x, float scale, const float* weight, const float* residual,
                  float* out, int64_t n) {
  const Lanes factor = Lanes::splat(scale);
  each_group(n, [&](int64_t i, auto size) {
    Lanes y = Lanes::load(x + i, size) * factor * Lanes::load(weight + i, size);
    if (residual != nullptr) y = Lanes::load(residual + i, size) + y;
    y.store(out + i, size);
  });
}

void rotate_halves(const float* x, const float* partner, const float* cosines,
                   const float* sines, float* out, int64_t n) {
  each_group(n, [&](int64_t i, auto size) {
    const Lanes a = Lanes::load(x + i, size) * Lanes::load(cosines + i, size);
    const Lanes b = Lanes::load(partner + i, size) * Lanes::load(sines + i, size);
    (a + b).store(out + i, size);
  });
}

void rotate(const float* x, const float* cosines, const float* sines, float* out,
            int64_t n, bool half_split) {
  if (half_split) {
    const int64_t h = n / 2;
    rotate_halves(x, x + h, cosines, sines, out, h);
    rotate_halves(x + h, x, cosines + h, sines + h, out + h, h);
    return;
  }
  each_group(n, [&](int64_t i, auto size) {
    const Lanes v = Lanes::load(x + i, size);
    const Lanes a = v * Lanes::load(cosines + i, size);
    const Lanes b = v.swap_pairs() * Lanes::load(sines + i, size);
    (a + b).store(out + i, size);
  });
}

void to_half(const float* x, uint16_t* out, int64_t n) {
  each_group(n, [&](int64_t i, auto size) {
    Lanes::load(x + i, size).store_half(out + i, size);
  });
}

void gated(const float* gate, const float* up, float* out, int64_t n, Act act) {
  const auto with = [&](auto function) {
    each_group(n, [&](int64_t i, auto size) {
      const Lanes y = function(Lanes::load(gate + i, size)) * Lanes::load(up + i, size);
      y.store(out + i, size);
    });
  };
  if (act == Act::kSilu) {
    with([](Lanes x) { return silu_lanes(x); });
  } else {
    with([](Lanes x) { return gelu_tanh_lanes(x); });
  }
}

void add(const float* a, const float* b, float* out, int64_t n) {
  each_group(n, [&](int64_t i, auto size) {
    (Lanes::load(a + i, size) + Lanes::load(b + i, size)).store(out + i, size);
  });
}

void scale(const float* x, float factor, float* out, int64_t n) {
  const Lanes by = Lanes::splat(factor);
  each_group(n, [&](int64_t i, auto size) {
    (Lanes::load(x + i, size) * by).store(out + i, size);
  });
}

void softcap(const float* x, float cap, float* out, int64_t n) {
  const Lanes c = Lanes::splat(cap);
  each_group(n, [&](int64_t i, auto size) {
    softcap_lanes(Lanes::load(x + i, size), c).store(out + i, size);
  });
}

double sum_exp(const float* x, int64_t n) {
  DoubleLanes sum;
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) sum.add(exp_lanes(Lanes::load(x + i)));
  if (i < n) {
    float rest[16];
    std::fill(std::copy(x + i, x + n, rest), rest + 16, -std::numeric_limits<float>::infinity());
    sum.add(exp_lanes(Lanes::load(rest)));
  }
  return sum.tree_sum();
}

constexpr RowOps kRowOps{sum_squares, scale_weight, rotate,  to_half, gated,
                         add,         scale,        softcap, sum_exp};

}  // namespace
}  // namespace headrace
