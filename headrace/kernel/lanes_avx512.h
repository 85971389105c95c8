// Lanes: 16 f32 lanes in one AVX-512 register. Only for *_avx512.cc files; the same
// interface as lanes_avx2.h, so that row_ops_inl.h and attention_inl.h are written once.
// Everything is in an unnamed namespace: code compiled for one instruction set must never
// be shared by the linker.
#pragma once

// GCC 12 warns of the "undefined" operands in its own header (GCC bug 105593).
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#include <immintrin.h>
#pragma GCC diagnostic pop

#include <cstdint>

namespace headrace {
namespace {

// How many elements of a group of 16 exist.
struct Full {};
struct Part {
  int64_t count;
};

struct Lanes {
  __m512 v;

  static Lanes zero() { return {_mm512_setzero_ps()}; }
  static Lanes splat(float x) { return {_mm512_set1_ps(x)}; }
  static Lanes load(const float* p) { return {_mm512_loadu_ps(p)}; }
  static Lanes load(const float* p, Full) { return load(p); }
  // Absent lanes are 0.
  static Lanes load(const float* p, Part part) {
    return {_mm512_maskz_loadu_ps(mask(part), p)};
  }
  static Lanes load_half(const uint16_t* p) { return load_f16(p, Full{}); }
  static Lanes load_f16(const void* p, Full) {
    return {_mm512_cvtph_ps(_mm256_loadu_si256(static_cast<const __m256i*>(p)))};
  }
  // Absent lanes are 0.
  static Lanes load_f16(const void* p, Part part) {
    return {_mm512_cvtph_ps(_mm256_maskz_loadu_epi16(mask(part), p))};
  }
  static Lanes load_bf16(const void* p, Full) {
    return widen(_mm256_loadu_si256(static_cast<const __m256i*>(p)));
  }
  static Lanes load_bf16(const void* p, Part part) {
    return widen(_mm256_maskz_loadu_epi16(mask(part), p));
  }
  // 0, 1, .. 15.
  static Lanes index() {
    return {_mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15)};
  }

  void store(float* p) const { _mm512_storeu_ps(p, v); }
  void store(float* p, Full) const { store(p); }
  void store(float* p, Part part) const { _mm512_mask_storeu_ps(p, mask(part), v); }
  template <typename Size>
  void store_half(uint16_t* p, Size size) const {
    store_f16(p, size);
  }

  // To nearest even.
  void store_f16(void* p, Full) const { _mm256_storeu_si256(static_cast<__m256i*>(p), half()); }
  void store_f16(void* p, Part part) const { _mm256_mask_storeu_epi16(p, mask(part), half()); }
  void store_bf16(void* p, Full) const {
    _mm256_storeu_si256(static_cast<__m256i*>(p), narrow(nearest()));
  }
  void store_bf16(void* p, Part part) const {
    _mm256_mask_storeu_epi16(p, mask(part), narrow(nearest()));
  }
  // Up with the probability that is the part cut off: the low 16 bits of `random` are added.
  template <typename Words, typename Size>
  void store_bf16_random(void* p, Words random, Size size) const {
    const __m512i low = _mm512_and_si512(random.v, _mm512_set1_epi32(0xffff));
    const __m256i bits = narrow(low);
    if constexpr (__is_same(Size, Full)) {
      _mm256_storeu_si256(static_cast<__m256i*>(p), bits);
    } else {
      _mm256_mask_storeu_epi16(p, mask(size), bits);
    }
  }

  // Every two lanes exchanged.
  Lanes swap_pairs() const { return {_mm512_permute_ps(v, 0xB1)}; }
  float max_lane() const { return _mm512_reduce_max_ps(v); }
  // l + l+8, then +4, +2, +1.
  float tree_sum() const {
    const __m256 eight =
        _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
    const __m128 four =
        _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
  }

 private:
  static __mmask16 mask(Part part) {
    return static_cast<__mmask16>((1u << part.count) - 1u);
  }
  static Lanes widen(__m256i bits) {
    return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16))};
  }
  // What is added to the bits before they are cut off.
  __m512i nearest() const {
    const __m512i odd = _mm512_srli_epi32(_mm512_castps_si512(v), 16);
    return _mm512_add_epi32(_mm512_set1_epi32(0x7fff),
                            _mm512_and_si512(odd, _mm512_set1_epi32(1)));
  }
  // The high halves of the bits + added; a NaN is made quiet.
  __m256i narrow(__m512i added) const {
    const __m512i bits = _mm512_castps_si512(v);
    const __m512i sum = _mm512_mask_or_epi32(
        _mm512_add_epi32(bits, added), _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q), bits,
        _mm512_set1_epi32(0x400000));
    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(sum, 16));
  }
  __m256i half() const {
    return _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  }
};

inline Lanes operator+(Lanes a, Lanes b) { return {_mm512_add_ps(a.v, b.v)}; }
inline Lanes operator-(Lanes a, Lanes b) { return {_mm512_sub_ps(a.v, b.v)}; }
inline Lanes operator*(Lanes a, Lanes b) { return {_mm512_mul_ps(a.v, b.v)}; }
inline Lanes operator/(Lanes a, Lanes b) { return {_mm512_div_ps(a.v, b.v)}; }
inline Lanes fma(Lanes a, Lanes b, Lanes c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
// a < b ? a : b, and a > b ? a : b, as the processor has it: b where either is NaN.
inline Lanes min(Lanes a, Lanes b) { return {_mm512_min_ps(a.v, b.v)}; }
inline Lanes max(Lanes a, Lanes b) { return {_mm512_max_ps(a.v, b.v)}; }
// a < b ? x : y.
inline Lanes where_less(Lanes a, Lanes b, Lanes x, Lanes y) {
  return {_mm512_mask_blend_ps(_mm512_cmp_ps_mask(a.v, b.v, _CMP_LT_OQ), y.v, x.v)};
}
inline Lanes root(Lanes a) { return {_mm512_sqrt_ps(a.v)}; }
inline Lanes absolute(Lanes a) { return {_mm512_abs_ps(a.v)}; }
inline Lanes negative(Lanes a) { return {_mm512_xor_ps(a.v, _mm512_set1_ps(-0.0f))}; }
// The magnitude of a >= 0 with the sign of b.
inline Lanes with_sign(Lanes a, Lanes b) {
  return {_mm512_or_ps(a.v, _mm512_and_ps(b.v, _mm512_set1_ps(-0.0f)))};
}
// y * 2^n, where the low bits of t are n.
inline Lanes add_exponent(Lanes y, Lanes t) {
  return {_mm512_castsi512_ps(_mm512_add_epi32(
      _mm512_castps_si512(y.v), _mm512_slli_epi32(_mm512_castps_si512(t.v), 23)))};
}

// 16 words of 32 bits.
struct Words {
  __m512i v;

  static Words splat(uint32_t x) { return {_mm512_set1_epi32(static_cast<int>(x))}; }
  // 0, 1, .. 15.
  static Words index() {
    return {_mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15)};
  }
  // The high 24 bits as a number below 2^24.
  Lanes high24() const { return {_mm512_cvtepi32_ps(_mm512_srli_epi32(v, 8))}; }
};
inline Words operator+(Words a, Words b) { return {_mm512_add_epi32(a.v, b.v)}; }
inline Words operator^(Words a, Words b) { return {_mm512_xor_si512(a.v, b.v)}; }
// Both halves of the 64-bit products of a with `b`, the same in every lane.
inline void multiply(Words a, uint32_t b, Words& high, Words& low) {
  const __m512i by = _mm512_set1_epi32(static_cast<int>(b));
  const __m512i even = _mm512_mul_epu32(a.v, by);
  const __m512i odd = _mm512_mul_epu32(_mm512_srli_epi64(a.v, 32), by);
  low.v = _mm512_mask_mov_epi32(even, 0xAAAA, _mm512_slli_epi64(odd, 32));
  high.v = _mm512_mask_mov_epi32(_mm512_srli_epi64(even, 32), 0xAAAA, odd);
}

// 16 lanes of double.
struct DoubleLanes {
  __m512d lo = _mm512_setzero_pd(), hi = _mm512_setzero_pd();

  void add(Lanes x) {
    lo = _mm512_add_pd(lo, low(x));
    hi = _mm512_add_pd(hi, high(x));
  }
  void add_square(Lanes x) { add_product(x, x); }
  void add_product(Lanes x, Lanes y) {
    lo = _mm512_fmadd_pd(low(x), low(y), lo);
    hi = _mm512_fmadd_pd(high(x), high(y), hi);
  }
  double tree_sum() const {
    const __m512d eight = _mm512_add_pd(lo, hi);
    const __m256d four =
        _mm256_add_pd(_mm512_castpd512_pd256(eight), _mm512_extractf64x4_pd(eight, 1));
    const __m128d two =
        _mm_add_pd(_mm256_castpd256_pd128(four), _mm256_extractf128_pd(four, 1));
    return _mm_cvtsd_f64(_mm_add_sd(two, _mm_unpackhi_pd(two, two)));
  }

 private:
  static __m512d low(Lanes x) { return _mm512_cvtps_pd(_mm512_castps512_ps256(x.v)); }
  static __m512d high(Lanes x) {
    return _mm512_cvtps_pd(_mm512_extractf32x8_ps(x.v, 1));
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

// Attention: dot products, queries, and groups of 16 elements of V in flight; as many
// accumulators as the registers hold.
constexpr int kDots = 16, kQueries = 4, kValueLanes = 4;
// Products of blocks: groups of 16 columns in flight, by 4 rows.
constexpr int kTileLanes = 4;

// sums[i] = acc[i].tree_sum(), i < 16: four rounds that halve the lanes and the
// registers.
inline void tree_sums(const Lanes* acc, float* sums) {
  __m512 a[8], b[4];
#pragma GCC unroll 16
  for (int i = 0; i < 8; ++i) {  // [x: 8 lanes, y: 8 lanes]
    const __m512 x = acc[2 * i].v, y = acc[2 * i + 1].v;
    a[i] =
        _mm512_add_ps(_mm512_shuffle_f32x4(x, y, 0x44), _mm512_shuffle_f32x4(x, y, 0xEE));
  }
#pragma GCC unroll 16
  for (int i = 0; i < 4; ++i) {  // [4 dots: 4 lanes each]
    const __m512 x = a[2 * i], y = a[2 * i + 1];
    b[i] =
        _mm512_add_ps(_mm512_shuffle_f32x4(x, y, 0x88), _mm512_shuffle_f32x4(x, y, 0xDD));
  }
  const auto pairs = [](__m512 x, __m512 y) {
    const __m512d xd = _mm512_castps_pd(x), yd = _mm512_castps_pd(y);
    return _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(xd, yd)),
                         _mm512_castpd_ps(_mm512_unpackhi_pd(xd, yd)));
  };
  const __m512 x = pairs(b[0], b[1]), y = pairs(b[2], b[3]);
  const __m512 z =
      _mm512_add_ps(_mm512_shuffle_ps(x, y, 0x88), _mm512_shuffle_ps(x, y, 0xDD));
  // Element 4 k + m of z is dot 4 m + k.
  const __m512i order =
      _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  _mm512_storeu_ps(sums, _mm512_permutexvar_ps(order, z));
}

}  // namespace
}  // namespace headrace
