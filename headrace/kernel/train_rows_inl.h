// TrainRows written once over Lanes. Included by train_rows.cc, train_rows_avx2.cc and
// train_rows_avx512.cc, each after its lanes_*.h.
#pragma once

#include "headrace/kernel/lanes_math.h"
#include "headrace/kernel/philox.h"
#include "headrace/kernel/train_act_inl.h"
#include "headrace/kernel/train_elements_inl.h"
#include "headrace/kernel/train_rows.h"

namespace headrace {
namespace {

inline Lanes present(Lanes x, Full) { return x; }
// Absent lanes become 0.
inline Lanes present(Lanes x, Part part) {
  return where_less(Lanes::index(), Lanes::splat(static_cast<float>(part.count)), x,
                    Lanes::zero());
}

// ---- norms

template <typename Size>
inline Lanes norm_weight(NormKind kind, const std::byte* weight, int64_t i, Size size) {
  const Lanes w = F32::load(weight, i, size);
  return kind.add_one ? w + Lanes::splat(1) : w;
}

template <typename C>
void norm(NormKind kind, const std::byte* x, const std::byte* weight, const std::byte* bias,
          std::byte* y, float* stat) {
  const auto count = static_cast<double>(kind.n);
  float mean = 0;
  if (kind.layer) {
    DoubleLanes sum;
    each_group(kind.n, [&](int64_t i, auto size) { sum.add(C::load(x, i, size)); });
    mean = static_cast<float>(sum.tree_sum() / count);
    *stat++ = mean;
  }
  const Lanes centre = Lanes::splat(mean);
  DoubleLanes squares;
  each_group(kind.n, [&](int64_t i, auto size) {
    squares.add_square(present(C::load(x, i, size) - centre, size));
  });
  *stat = static_cast<float>(1 / __builtin_sqrt(squares.tree_sum() / count + kind.eps));
  const Lanes scale = Lanes::splat(*stat);
  each_group(kind.n, [&](int64_t i, auto size) {
    Lanes out = (C::load(x, i, size) - centre) * scale * norm_weight(kind, weight, i, size);
    if (bias != nullptr) out = out + F32::load(bias, i, size);
    C::store(out, y, i, size);
  });
}

// With g = dy weight, xhat the normalised x: dx = scale (g - mean(g) - xhat mean(g xhat)), where
// RMS norm has no mean(g).
template <typename C>
void norm_dx(NormKind kind, const std::byte* dy, const std::byte* x, const std::byte* weight,
             const float* stat, const std::byte* add, std::byte* dx) {
  const Lanes centre = Lanes::splat(kind.layer ? stat[0] : 0.0f);
  const Lanes scale = Lanes::splat(kind.layer ? stat[1] : stat[0]);
  const auto gradient = [&](int64_t i, auto size) {
    return C::load(dy, i, size) * norm_weight(kind, weight, i, size);
  };
  DoubleLanes sum, product;
  each_group(kind.n, [&](int64_t i, auto size) {
    const Lanes g = gradient(i, size);
    if (kind.layer) sum.add(g);
    product.add_product(g, (C::load(x, i, size) - centre) * scale);
  });
  const auto count = static_cast<double>(kind.n);
  const Lanes shift = Lanes::splat(static_cast<float>(-sum.tree_sum() / count));
  const Lanes slope = Lanes::splat(static_cast<float>(-product.tree_sum() / count));
  each_group(kind.n, [&](int64_t i, auto size) {
    const Lanes xhat = (C::load(x, i, size) - centre) * scale;
    Lanes out = scale * fma(xhat, slope, gradient(i, size) + shift);
    if (add != nullptr) out = out + C::load(add, i, size);
    C::store(out, dx, i, size);
  });
}

template <typename C>
void norm_dw(NormKind kind, const std::byte* dy, const std::byte* x, const float* stat,
             float* dweight, float* dbias) {
  const Lanes centre = Lanes::splat(kind.layer ? stat[0] : 0.0f);
  const Lanes scale = Lanes::splat(kind.layer ? stat[1] : stat[0]);
  each_group(kind.n, [&](int64_t i, auto size) {
    const Lanes g = C::load(dy, i, size), xhat = (C::load(x, i, size) - centre) * scale;
    fma(g, xhat, Lanes::load(dweight + i, size)).store(dweight + i, size);
    if (dbias == nullptr) return;
    (Lanes::load(dbias + i, size) + g).store(dbias + i, size);
  });
}

// ---- rope

template <typename C>
void rotate(const std::byte* x, const float* cosines, const float* sines, std::byte* out,
            int64_t n, bool half_split) {
  if (!half_split) {
    each_group(n, [&](int64_t i, auto size) {
      const Lanes v = C::load(x, i, size);
      const Lanes a = v * Lanes::load(cosines + i, size);
      C::store(a + v.swap_pairs() * Lanes::load(sines + i, size), out, i, size);
    });
    return;
  }
  const int64_t half = n / 2;
  each_group(half, [&](int64_t i, auto size) {
    const Lanes a = C::load(x, i, size), b = C::load(x, half + i, size);
    const Lanes low = a * Lanes::load(cosines + i, size);
    const Lanes high = b * Lanes::load(cosines + half + i, size);
    C::store(low + b * Lanes::load(sines + i, size), out, i, size);
    C::store(high + a * Lanes::load(sines + half + i, size), out, half + i, size);
  });
}

// ---- random numbers

struct FourWords {
  Words w[4];
};

// The four words of the 16 blocks of group `group` (64 values); philox.h has the scalar form.
inline FourWords draw_group(const Draw& draw, uint32_t purpose, int64_t group) {
  using namespace philox;
  auto key0 = static_cast<uint32_t>(draw.seed), key1 = static_cast<uint32_t>(draw.seed >> 32);
  Words c0 = Words::splat(static_cast<uint32_t>(16 * group)) + Words::index();
  Words c1 = Words::splat(draw.row), c2 = Words::splat(draw.stream), c3 = Words::splat(purpose);
#pragma GCC unroll 10
  for (int round = 0; round < kRounds; ++round) {
    Words high0, low0, high2, low2;
    multiply(c0, kMultiply0, high0, low0);
    multiply(c2, kMultiply1, high2, low2);
    c0 = high2 ^ c1 ^ Words::splat(key0);
    c1 = low2;
    c2 = high0 ^ c3 ^ Words::splat(key1);
    c3 = low0;
    key0 += kWeyl0;
    key1 += kWeyl1;
  }
  return {{c0, c1, c2, c3}};
}

// Calls body(i, size, words) for every 16 elements of [begin, end), begin a multiple of 64; words
// are drawn when kDrawn, else left as they are.
template <bool kDrawn, typename Body>
inline void each_drawn(const Draw& draw, uint32_t purpose, int64_t begin, int64_t end, Body body) {
  for (int64_t at = begin; at < end; at += 64) {
    FourWords words;
    if constexpr (kDrawn) words = draw_group(draw, purpose, at / 64);
    for (int w = 0; w < 4; ++w) {
      const int64_t i = at + 16 * w, left = end - i;
      if (left >= 16) {
        body(i, Full{}, words.w[w]);
      } else if (left > 0) {
        body(i, Part{left}, words.w[w]);
      }
    }
  }
}

template <typename C>
void dropout(const std::byte* x, std::byte* y, int64_t n, Draw draw, float threshold, float scale) {
  const Lanes below = Lanes::splat(threshold * 0x1p24f), by = Lanes::splat(scale);
  each_drawn<true>(draw, philox::kDropout, 0, n, [&](int64_t i, auto size, const Words& word) {
    const Lanes kept = C::load(x, i, size) * by;
    C::store(where_less(word.high24(), below, Lanes::zero(), kept), y, i, size);
  });
}

// ---- products and sums

template <typename C>
void scale(const std::byte* x, const std::byte* weight, std::byte* y, int64_t n, float scale) {
  const Lanes by = Lanes::splat(scale);
  each_group(n, [&](int64_t i, auto size) {
    Lanes out = C::load(x, i, size) * by;
    if (weight != nullptr) out = out * F32::load(weight, i, size);
    C::store(out, y, i, size);
  });
}

template <typename C>
void add(const std::byte* a, const std::byte* b, std::byte* out, int64_t n) {
  each_group(n, [&](int64_t i, auto size) {
    C::store(C::load(a, i, size) + C::load(b, i, size), out, i, size);
  });
}

template <typename C>
void add_to(const std::byte* x, float* sum, int64_t n) {
  each_group(n, [&](int64_t i, auto size) {
    (Lanes::load(sum + i, size) + C::load(x, i, size)).store(sum + i, size);
  });
}

// ---- optimizers

// A parameter's new value, and its copy if there is one.
template <typename P, typename Step, typename Size>
inline void store_param(Lanes p, const Step& s, int64_t i, Size size, const Words& word) {
  if constexpr (__is_same(P, F32)) {
    p.store(reinterpret_cast<float*>(s.param + 4 * i), size);
    if (s.copy == nullptr) return;
    s.f16_copy ? F16::store(p, s.copy, i, size) : Bf16::store(p, s.copy, i, size);
  } else {
    p.store_bf16_random(s.param + 2 * i, word, size);
  }
}

template <typename P>
void adamw_of(const AdamwStep& s, int64_t begin, int64_t end) {
  const Lanes factor = Lanes::splat(s.factor), beta1 = Lanes::splat(s.beta1);
  const Lanes rest1 = Lanes::splat(s.rest1), beta2 = Lanes::splat(s.beta2);
  const Lanes rest2 = Lanes::splat(s.rest2), step = Lanes::splat(-s.step);
  const Lanes to_root = Lanes::splat(s.root), eps = Lanes::splat(s.eps);
  const Lanes keep = Lanes::splat(s.keep);
  const auto body = [&](int64_t i, auto size, const Words& word) {
    const Lanes g = Lanes::load(s.gradient + i, size) * factor;
    const Lanes m = fma(beta1, Lanes::load(s.m + i, size), rest1 * g);
    const Lanes v = fma(beta2, Lanes::load(s.v + i, size), rest2 * (g * g));
    m.store(s.m + i, size);
    v.store(s.v + i, size);
    const Lanes direction = m / fma(root(v), to_root, eps);
    const Lanes p = fma(step, direction, P::load(s.param, i, size) * keep);
    store_param<P>(p, s, i, size, word);
  };
  each_drawn<__is_same(P, Bf16)>(s.draw, philox::kRounding, begin, end, body);
}

void adamw(const AdamwStep& step, int64_t begin, int64_t end) {
  step.bf16_param ? adamw_of<Bf16>(step, begin, end) : adamw_of<F32>(step, begin, end);
}

template <typename P>
void sgd_of(const SgdStep& s, int64_t begin, int64_t end) {
  const Lanes factor = Lanes::splat(s.factor), rate = Lanes::splat(-s.rate);
  const Lanes decay = Lanes::splat(s.decay), keep = Lanes::splat(s.keep_momentum);
  const auto body = [&](int64_t i, auto size, const Words& word) {
    const Lanes p = P::load(s.param, i, size);
    Lanes b = fma(decay, p, Lanes::load(s.gradient + i, size) * factor);
    if (s.momentum != nullptr) {
      b = fma(keep, Lanes::load(s.momentum + i, size), b);
      b.store(s.momentum + i, size);
    }
    store_param<P>(fma(rate, b, p), s, i, size, word);
  };
  each_drawn<__is_same(P, Bf16)>(s.draw, philox::kRounding, begin, end, body);
}

void sgd(const SgdStep& step, int64_t begin, int64_t end) {
  step.bf16_param ? sgd_of<Bf16>(step, begin, end) : sgd_of<F32>(step, begin, end);
}

template <typename C>
constexpr TypedTrainRows typed_rows() {
  return {norm<C>,     norm_dx<C>, norm_dw<C>, rotate<C>, act<C>,
          act_grad<C>, dropout<C>, scale<C>,   add<C>,    add_to<C>};
}

constexpr TrainRows kTrainRows{typed_rows<F32>(), typed_rows<Bf16>(), typed_rows<F16>(), adamw,
                               sgd};

}  // namespace
}  // namespace headrace
