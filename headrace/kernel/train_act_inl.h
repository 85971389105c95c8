// The activation functions of TrainRows over Lanes. Included by train_rows_inl.h.
#pragma once

#include "headrace/kernel/lanes_math.h"
#include "headrace/kernel/train_elements_inl.h"
#include "headrace/kernel/train_rows.h"

namespace headrace {
namespace {

// Each gives f(x) and its slope.
struct Silu {
  Lanes s, f, slope;
  explicit Silu(Lanes x) {
    const Lanes one = Lanes::splat(1);
    s = one / (one + exp_lanes(negative(x)));
    f = x * s;
    slope = s * fma(x, one - s, one);
  }
};
// x / (1 + e^-1.702 x): what CLIP has for GELU.
struct QuickGelu {
  Lanes f, slope;
  explicit QuickGelu(Lanes x) {
    const Lanes one = Lanes::splat(1), steep = x * Lanes::splat(1.702f);
    const Lanes s = one / (one + exp_lanes(negative(steep)));
    f = x * s;
    slope = s * fma(steep, one - s, one);
  }
};
struct Relu {
  Lanes f, slope;
  explicit Relu(Lanes x)
      : f(max(Lanes::zero(), x)),  // x where that is not a number
        slope(where_less(Lanes::zero(), x, Lanes::splat(1), Lanes::zero())) {}
};
// x P(x), P the normal distribution's function: x / 2 (1 + erf(x / sqrt 2)) (arXiv 1606.08415).
// 1 - P(a), a = |x|, is e^(-a^2 / 2) times a polynomial in 1 / (1 + 0.3 a), fitted to 6e-8 of its
// value for a <= 13.5, where e^.. is 0 already. What a^2 was rounded by is multiplied in after
// that, so that f is within 5e-7 of its value for all such x and the slope within 2e-7.
struct Gelu {
  static constexpr float kTail[9] = {6.853478e-06f, 0.11949305f,  0.12188214f,
                                     0.09483263f,   0.14218594f,  -0.076000966f,
                                     0.22821859f,   -0.1689526f,  0.038334407f};
  Lanes f, slope;
  explicit Gelu(Lanes x) {
    const Lanes one = Lanes::splat(1), minus_half = Lanes::splat(-0.5f);
    const Lanes a = min(Lanes::splat(20), absolute(x));  // above, a^2 could be infinite
    const Lanes square = a * a, rest = fma(a, a, negative(square));
    const Lanes bell = exp_lanes(square * minus_half);
    const Lanes e = fma(bell * minus_half, rest, bell);
    const Lanes t = one / fma(a, Lanes::splat(0.3f), one);
    Lanes p = Lanes::splat(kTail[8]);
#pragma GCC unroll 16
    for (int i = 7; i >= 0; --i) p = fma(p, t, Lanes::splat(kTail[i]));
    const Lanes tail = e * p, below = where_less(x, Lanes::zero(), tail, one - tail);
    f = x * below;
    slope = fma(with_sign(a, x), e * Lanes::splat(0.3989422804014327f), below);
  }
};
struct GeluTanh {
  Lanes s, f, slope;
  explicit GeluTanh(Lanes x) {
    using namespace float_math;
    const Lanes one = Lanes::splat(1), square = x * x;
    const Lanes inner = fma(square, Lanes::splat(kGelu1), Lanes::splat(kGelu0));
    const Lanes steep = fma(square, Lanes::splat(-3 * kGelu1), Lanes::splat(-kGelu0));
    s = one / (one + exp_lanes(x * inner));
    f = x * s;
    slope = fma(f * (one - s), steep, s);
  }
};

// Asks for an element 2 KiB further on, be it of the next row. An exp and a division an element
// leave the processor no room to look ahead by itself: activations take 0.6 of the time with it.
template <typename C>
inline void look_ahead(const std::byte* row, int64_t i) {
  __builtin_prefetch(row + C::kBytes * i + 2048);
}

template <typename C, typename F>
void gated(const std::byte* x, std::byte* y, int64_t n) {
  each_group(n, [&](int64_t i, auto size) {
    look_ahead<C>(x, i);
    look_ahead<C>(x, n + i);
    C::store(F(C::load(x, i, size)).f * C::load(x, n + i, size), y, i, size);
  });
}

template <typename C, typename F>
void plain(const std::byte* x, std::byte* y, int64_t n) {
  each_group(n, [&](int64_t i, auto size) {
    look_ahead<C>(x, i);
    C::store(F(C::load(x, i, size)).f, y, i, size);
  });
}

template <typename C>
void act(const std::byte* x, std::byte* y, int64_t n, TrainAct act) {
  switch (act) {
    case TrainAct::kSilu: return gated<C, Silu>(x, y, n);
    case TrainAct::kGeluTanh: return gated<C, GeluTanh>(x, y, n);
    case TrainAct::kPlainGeluTanh: return plain<C, GeluTanh>(x, y, n);
    case TrainAct::kPlainGelu: return plain<C, Gelu>(x, y, n);
    case TrainAct::kPlainRelu: return plain<C, Relu>(x, y, n);
    case TrainAct::kPlainSilu: return plain<C, Silu>(x, y, n);
    case TrainAct::kGelu: return gated<C, Gelu>(x, y, n);
    case TrainAct::kPlainQuickGelu: return plain<C, QuickGelu>(x, y, n);
  }
}

template <typename C, typename F>
void gated_grad(const std::byte* dy, const std::byte* x, std::byte* dx, int64_t n) {
  each_group(n, [&](int64_t i, auto size) {
    look_ahead<C>(dy, i);
    look_ahead<C>(x, i);
    look_ahead<C>(x, n + i);
    const F value(C::load(x, i, size));
    const Lanes g = C::load(dy, i, size), up = C::load(x, n + i, size);
    C::store(g * up * value.slope, dx, i, size);
    C::store(g * value.f, dx, n + i, size);
  });
}

template <typename C, typename F>
void plain_grad(const std::byte* dy, const std::byte* x, std::byte* dx, int64_t n) {
  each_group(n, [&](int64_t i, auto size) {
    look_ahead<C>(dy, i);
    look_ahead<C>(x, i);
    C::store(C::load(dy, i, size) * F(C::load(x, i, size)).slope, dx, i, size);
  });
}

template <typename C>
void act_grad(const std::byte* dy, const std::byte* x, std::byte* dx, int64_t n, TrainAct act) {
  switch (act) {
    case TrainAct::kSilu: return gated_grad<C, Silu>(dy, x, dx, n);
    case TrainAct::kGeluTanh: return gated_grad<C, GeluTanh>(dy, x, dx, n);
    case TrainAct::kPlainGeluTanh: return plain_grad<C, GeluTanh>(dy, x, dx, n);
    case TrainAct::kPlainGelu: return plain_grad<C, Gelu>(dy, x, dx, n);
    case TrainAct::kPlainRelu: return plain_grad<C, Relu>(dy, x, dx, n);
    case TrainAct::kPlainSilu: return plain_grad<C, Silu>(dy, x, dx, n);
    case TrainAct::kGelu: return gated_grad<C, Gelu>(dy, x, dx, n);
    case TrainAct::kPlainQuickGelu: return plain_grad<C, QuickGelu>(dy, x, dx, n);
  }
}

}  // namespace
}  // namespace headrace
