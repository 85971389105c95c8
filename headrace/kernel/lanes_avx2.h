// Lanes: 16 f32 lanes in two AVX2 registers. Only for *_avx2.cc files; see
// lanes_avx512.h.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace headrace {
namespace {

// How many elements of a group of 16 exist.
struct Full {};
struct Part {
  int64_t count;
};

struct Lanes {
  __m256 lo, hi;

  static Lanes zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
  static Lanes splat(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
  static Lanes load(const float* p) {
    return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)};
  }
  static Lanes load(const float* p, Full) { return load(p); }
  // Absent lanes are 0.
  static Lanes load(const float* p, Part part) {
    return {_mm256_maskload_ps(p, mask(part.count)),
            part.count > 8 ? _mm256_maskload_ps(p + 8, mask(part.count - 8))
                           : _mm256_setzero_ps()};
  }
  static Lanes load_half(const uint16_t* p) {
    return {_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))),
            _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 8)))};
  }
  // 0, 1, .. 15.
  static Lanes index() {
    return {_mm256_setr_ps(0, 1, 2, 3, 4, 5, 6, 7),
            _mm256_setr_ps(8, 9, 10, 11, 12, 13, 14, 15)};
  }

  void store(float* p) const {
    _mm256_storeu_ps(p, lo);
    _mm256_storeu_ps(p + 8, hi);
  }
  void store(float* p, Full) const { store(p); }
  void store(float* p, Part part) const {
    _mm256_maskstore_ps(p, mask(part.count), lo);
    if (part.count > 8) _mm256_maskstore_ps(p + 8, mask(part.count - 8), hi);
  }
  void store_half(uint16_t* p, Full) const {
    constexpr int kNearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(lo, kNearest));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p + 8), _mm256_cvtps_ph(hi, kNearest));
  }
  void store_half(uint16_t* p, Part part) const {
    uint16_t all[16];
    store_half(all, Full{});
    for (int64_t i = 0; i < part.count; ++i) p[i] = all[i];
  }

  // Every two lanes exchanged.
  Lanes swap_pairs() const {
    return {_mm256_permute_ps(lo, 0xB1), _mm256_permute_ps(hi, 0xB1)};
  }
  float max_lane() const {
    const __m256 eight = _mm256_max_ps(lo, hi);
    const __m128 four =
        _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
  }
  // l + l+8, then +4, +2, +1.
  float tree_sum() const {
    const __m256 eight = _mm256_add_ps(lo, hi);
    const __m128 four =
        _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
  }

 private:
  // The first min(count, 8) lanes.
  static __m256i mask(int64_t count) {
    const __m256i index = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(count)), index);
  }
};

inline Lanes operator+(Lanes a, Lanes b) {
  return {_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)};
}
inline Lanes operator-(Lanes a, Lanes b) {
  return {_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)};
}
inline Lanes operator*(Lanes a, Lanes b) {
  return {_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)};
}
inline Lanes operator/(Lanes a, Lanes b) {
  return {_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)};
}
inline Lanes fma(Lanes a, Lanes b, Lanes c) {
  return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
}
// a < b ? a : b, and a > b ? a : b, as the processor has it: b where either is NaN.
inline Lanes min(Lanes a, Lanes b) {
  return {_mm256_min_ps(a.lo, b.lo), _mm256_min_ps(a.hi, b.hi)};
}
inline Lanes max(Lanes a, Lanes b) {
  return {_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)};
}
// a < b ? x : y.
inline Lanes where_less(Lanes a, Lanes b, Lanes x, Lanes y) {
  return {_mm256_blendv_ps(y.lo, x.lo, _mm256_cmp_ps(a.lo, b.lo, _CMP_LT_OQ)),
          _mm256_blendv_ps(y.hi, x.hi, _mm256_cmp_ps(a.hi, b.hi, _CMP_LT_OQ))};
}
inline Lanes absolute(Lanes a) {
  const __m256 sign = _mm256_set1_ps(-0.0f);
  return {_mm256_andnot_ps(sign, a.lo), _mm256_andnot_ps(sign, a.hi)};
}
inline Lanes negative(Lanes a) {
  const __m256 sign = _mm256_set1_ps(-0.0f);
  return {_mm256_xor_ps(a.lo, sign), _mm256_xor_ps(a.hi, sign)};
}
// The magnitude of a >= 0 with the sign of b.
inline Lanes with_sign(Lanes a, Lanes b) {
  const __m256 sign = _mm256_set1_ps(-0.0f);
  return {_mm256_or_ps(a.lo, _mm256_and_ps(b.lo, sign)),
          _mm256_or_ps(a.hi, _mm256_and_ps(b.hi, sign))};
}
// y * 2^n, where the low bits of t are n.
inline Lanes add_exponent(Lanes y, Lanes t) {
  const auto one = [](__m256 a, __m256 b) {
    return _mm256_castsi256_ps(_mm256_add_epi32(
        _mm256_castps_si256(a), _mm256_slli_epi32(_mm256_castps_si256(b), 23)));
  };
  return {one(y.lo, t.lo), one(y.hi, t.hi)};
}

// 16 lanes of double.
struct DoubleLanes {
  __m256d v[4] = {_mm256_setzero_pd(), _mm256_setzero_pd(), _mm256_setzero_pd(),
                  _mm256_setzero_pd()};

  void add_square(Lanes x) {
    const __m256 half[2] = {x.lo, x.hi};
#pragma GCC unroll 16
    for (int i = 0; i < 4; ++i) {
      const __m256 h = half[i / 2];
      const __m128 four =
          i % 2 == 0 ? _mm256_castps256_ps128(h) : _mm256_extractf128_ps(h, 1);
      const __m256d d = _mm256_cvtps_pd(four);
      v[i] = _mm256_fmadd_pd(d, d, v[i]);
    }
  }
  double tree_sum() const {
    const __m256d four =
        _mm256_add_pd(_mm256_add_pd(v[0], v[2]), _mm256_add_pd(v[1], v[3]));
    const __m128d two =
        _mm_add_pd(_mm256_castpd256_pd128(four), _mm256_extractf128_pd(four, 1));
    return _mm_cvtsd_f64(_mm_add_sd(two, _mm_unpackhi_pd(two, two)));
  }
};

// See lanes_avx512.h; two registers a Lanes, 16 registers.
constexpr int kDots = 4, kQueries = 2, kValueLanes = 2;

// sums[i] = acc[i].tree_sum(), i < 4.
inline void tree_sums(const Lanes* acc, float* sums) {
  __m256 a[4];
#pragma GCC unroll 16
  for (int i = 0; i < 4; ++i) a[i] = _mm256_add_ps(acc[i].lo, acc[i].hi);
  const auto halves = [](__m256 x, __m256 y) {  // [x: 4 lanes, y: 4 lanes]
    return _mm256_add_ps(_mm256_permute2f128_ps(x, y, 0x20),
                         _mm256_permute2f128_ps(x, y, 0x31));
  };
  const __m256d x = _mm256_castps_pd(halves(a[0], a[1]));
  const __m256d y = _mm256_castps_pd(halves(a[2], a[3]));
  // [0, 0, 2, 2 | 1, 1, 3, 3]
  const __m256 two = _mm256_add_ps(_mm256_castpd_ps(_mm256_unpacklo_pd(x, y)),
                                   _mm256_castpd_ps(_mm256_unpackhi_pd(x, y)));
  // [0, 2, .. | 1, 3, ..]
  const __m256 one =
      _mm256_add_ps(_mm256_permute_ps(two, 0x88), _mm256_permute_ps(two, 0xDD));
  _mm_storeu_ps(
      sums, _mm_unpacklo_ps(_mm256_castps256_ps128(one), _mm256_extractf128_ps(one, 1)));
}

}  // namespace
}  // namespace headrace
