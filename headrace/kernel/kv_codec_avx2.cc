#include "headrace/kernel/lanes_avx2.h"

namespace headrace {
namespace {

inline Lanes load_i8(const void* p) {
  const __m128i bytes = _mm_loadu_si128(static_cast<const __m128i*>(p));
  return {_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes)),
          _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_unpackhi_epi64(bytes, bytes)))};
}
inline Lanes load_u4(const void* p) {
  const __m128i low = _mm_set1_epi8(15), pairs = _mm_loadl_epi64(static_cast<const __m128i*>(p));
  const __m128i high = _mm_and_si128(_mm_srli_epi16(pairs, 4), low);
  return {_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_and_si128(pairs, low))),
          _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(high))};
}
// Rounded to nearest even, as bytes.
inline __m128i to_bytes(Lanes x) {
  // The pack works within 128-bit halves; the permutation puts the quarters in order again.
  const __m256i words = _mm256_permute4x64_epi64(
      _mm256_packs_epi32(_mm256_cvtps_epi32(x.lo), _mm256_cvtps_epi32(x.hi)), 0xD8);
  return _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
}

// Of every block of 2 kHalf lanes, the sums of its halves and their differences.
template <int kHalf>
inline Lanes butterfly(Lanes x) {
  if constexpr (kHalf == 8) {
    return {_mm256_add_ps(x.lo, x.hi), _mm256_sub_ps(x.lo, x.hi)};
  } else {
    const auto one = [](__m256 a) {
      if constexpr (kHalf == 4) {
        const __m256 b = _mm256_permute2f128_ps(a, a, 1);
        return _mm256_blend_ps(_mm256_add_ps(a, b), _mm256_sub_ps(b, a), 0xF0);
      } else {
        const __m256 b = _mm256_permute_ps(a, kHalf == 1 ? 0xB1 : 0x4E);
        return _mm256_blend_ps(_mm256_add_ps(a, b), _mm256_sub_ps(b, a), kHalf == 1 ? 0xAA : 0xCC);
      }
    };
    return {one(x.lo), one(x.hi)};
  }
}

}  // namespace
}  // namespace headrace

#include "headrace/kernel/kv_codec_inl.h"

namespace headrace {

const KvCodecFns& avx2_kv_codec() { return kFns; }

}  // namespace headrace
