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
  static Lanes load_half(const uint16_t* p) { return load_f16(p, Full{}); }
  static Lanes load_f16(const void* p, Full) {
    const auto* half = static_cast<const __m128i*>(p);
    return {_mm256_cvtph_ps(_mm_loadu_si128(half)), _mm256_cvtph_ps(_mm_loadu_si128(half + 1))};
  }
  // Absent lanes are 0.
  static Lanes load_f16(const void* p, Part part) {
    uint16_t all[16] = {};
    __builtin_memcpy(all, p, static_cast<size_t>(part.count) * 2);
    return load_f16(all, Full{});
  }
  static Lanes load_bf16(const void* p, Full) {
    const auto* half = static_cast<const __m128i*>(p);
    return {widen(_mm_loadu_si128(half)), widen(_mm_loadu_si128(half + 1))};
  }
  static Lanes load_bf16(const void* p, Part part) {
    uint16_t all[16] = {};
    __builtin_memcpy(all, p, static_cast<size_t>(part.count) * 2);
    return load_bf16(all, Full{});
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
  template <typename Size>
  void store_half(uint16_t* p, Size size) const {
    store_f16(p, size);
  }

  // To nearest even.
  void store_f16(void* p, Full) const {
    constexpr int kNearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
    auto* half = static_cast<__m128i*>(p);
    _mm_storeu_si128(half, _mm256_cvtps_ph(lo, kNearest));
    _mm_storeu_si128(half + 1, _mm256_cvtps_ph(hi, kNearest));
  }
  void store_f16(void* p, Part part) const {
    uint16_t all[16];
    store_f16(all, Full{});
    __builtin_memcpy(p, all, static_cast<size_t>(part.count) * 2);
  }
  void store_bf16(void* p, Full) const {
    _mm256_storeu_si256(static_cast<__m256i*>(p), narrow(nearest(lo), nearest(hi)));
  }
  void store_bf16(void* p, Part part) const {
    uint16_t all[16];
    store_bf16(all, Full{});
    __builtin_memcpy(p, all, static_cast<size_t>(part.count) * 2);
  }
  // Up with the probability that is the part cut off: the low 16 bits of `random` are added.
  template <typename Words>
  void store_bf16_random(void* p, Words random, Full) const {
    const __m256i low = _mm256_set1_epi32(0xffff);
    _mm256_storeu_si256(static_cast<__m256i*>(p),
                        narrow(_mm256_and_si256(random.lo, low),
                               _mm256_and_si256(random.hi, low)));
  }
  template <typename Words>
  void store_bf16_random(void* p, Words random, Part part) const {
    uint16_t all[16];
    store_bf16_random(all, random, Full{});
    __builtin_memcpy(p, all, static_cast<size_t>(part.count) * 2);
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
  static __m256 widen(__m128i bits) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
  }
  // What is added to the bits before they are cut off.
  static __m256i nearest(__m256 x) {
    const __m256i odd = _mm256_srli_epi32(_mm256_castps_si256(x), 16);
    return _mm256_add_epi32(_mm256_set1_epi32(0x7fff),
                            _mm256_and_si256(odd, _mm256_set1_epi32(1)));
  }
  // The high halves of the bits + added; a NaN is made quiet.
  static __m256i cut(__m256 x, __m256i added) {
    const __m256i bits = _mm256_castps_si256(x);
    const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
    const __m256 sum = _mm256_blendv_ps(
        _mm256_castsi256_ps(_mm256_add_epi32(bits, added)), _mm256_castsi256_ps(quiet),
        _mm256_cmp_ps(x, x, _CMP_UNORD_Q));
    return _mm256_srli_epi32(_mm256_castps_si256(sum), 16);
  }
  __m256i narrow(__m256i added_lo, __m256i added_hi) const {
    const __m256i packed = _mm256_packus_epi32(cut(lo, added_lo), cut(hi, added_hi));
    return _mm256_permute4x64_epi64(packed, 0xD8);
  }
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
inline Lanes root(Lanes a) { return {_mm256_sqrt_ps(a.lo), _mm256_sqrt_ps(a.hi)}; }
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

// 16 words of 32 bits.
struct Words {
  __m256i lo, hi;

  static Words splat(uint32_t x) {
    const __m256i all = _mm256_set1_epi32(static_cast<int>(x));
    return {all, all};
  }
  // 0, 1, .. 15.
  static Words index() {
    return {_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7),
            _mm256_setr_epi32(8, 9, 10, 11, 12, 13, 14, 15)};
  }
  // The high 24 bits as a number below 2^24.
  Lanes high24() const {
    return {_mm256_cvtepi32_ps(_mm256_srli_epi32(lo, 8)),
            _mm256_cvtepi32_ps(_mm256_srli_epi32(hi, 8))};
  }
};
inline Words operator+(Words a, Words b) {
  return {_mm256_add_epi32(a.lo, b.lo), _mm256_add_epi32(a.hi, b.hi)};
}
inline Words operator^(Words a, Words b) {
  return {_mm256_xor_si256(a.lo, b.lo), _mm256_xor_si256(a.hi, b.hi)};
}
inline void multiply_eight(__m256i a, __m256i by, __m256i& high, __m256i& low) {
  const __m256i even = _mm256_mul_epu32(a, by);
  const __m256i odd = _mm256_mul_epu32(_mm256_srli_epi64(a, 32), by);
  low = _mm256_blend_epi32(even, _mm256_slli_epi64(odd, 32), 0xAA);
  high = _mm256_blend_epi32(_mm256_srli_epi64(even, 32), odd, 0xAA);
}
// Both halves of the 64-bit products of a with `b`, the same in every lane.
inline void multiply(Words a, uint32_t b, Words& high, Words& low) {
  const __m256i by = _mm256_set1_epi32(static_cast<int>(b));
  multiply_eight(a.lo, by, high.lo, low.lo);
  multiply_eight(a.hi, by, high.hi, low.hi);
}

// 16 lanes of double.
struct DoubleLanes {
  __m256d v[4] = {_mm256_setzero_pd(), _mm256_setzero_pd(), _mm256_setzero_pd(),
                  _mm256_setzero_pd()};

  void add(Lanes x) {
#pragma GCC unroll 16
    for (int i = 0; i < 4; ++i) v[i] = _mm256_add_pd(v[i], quarter(x, i));
  }
  void add_square(Lanes x) { add_product(x, x); }
  void add_product(Lanes x, Lanes y) {
#pragma GCC unroll 16
    for (int i = 0; i < 4; ++i) {
      v[i] = _mm256_fmadd_pd(quarter(x, i), quarter(y, i), v[i]);
    }
  }
  double tree_sum() const {
    const __m256d four =
        _mm256_add_pd(_mm256_add_pd(v[0], v[2]), _mm256_add_pd(v[1], v[3]));
    const __m128d two =
        _mm_add_pd(_mm256_castpd256_pd128(four), _mm256_extractf128_pd(four, 1));
    return _mm_cvtsd_f64(_mm_add_sd(two, _mm_unpackhi_pd(two, two)));
  }

 private:
  static __m256d quarter(Lanes x, int i) {
    const __m256 half = i < 2 ? x.lo : x.hi;
    return _mm256_cvtps_pd(i % 2 == 0 ? _mm256_castps256_ps128(half)
                                      : _mm256_extractf128_ps(half, 1));
  }
};

// to[4][4] = from[4][4] transposed.
inline void transpose4(const float* from, int64_t from_stride, float* to,
                       int64_t to_stride) {
  __m128 a = _mm_loadu_ps(from), b = _mm_loadu_ps(from + from_stride);
  __m128 c = _mm_loadu_ps(from + 2 * from_stride);
  __m128 d = _mm_loadu_ps(from + 3 * from_stride);
  _MM_TRANSPOSE4_PS(a, b, c, d);
  _mm_storeu_ps(to, a);
  _mm_storeu_ps(to + to_stride, b);
  _mm_storeu_ps(to + 2 * to_stride, c);
  _mm_storeu_ps(to + 3 * to_stride, d);
}

// See lanes_avx512.h; two registers a Lanes, 16 registers.
constexpr int kDots = 4, kQueries = 2, kValueLanes = 2;
constexpr int kTileLanes = 1;

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
