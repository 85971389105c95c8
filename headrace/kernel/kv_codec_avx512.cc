#include "headrace/kernel/lanes_avx512.h"

namespace headrace {
namespace {

inline Lanes load_i8(const void* p) {
  const __m128i bytes = _mm_loadu_si128(static_cast<const __m128i*>(p));
  return {_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes))};
}
inline Lanes load_u4(const void* p) {
  const __m128i low = _mm_set1_epi8(15), pairs = _mm_loadl_epi64(static_cast<const __m128i*>(p));
  const __m128i bytes = _mm_unpacklo_epi64(_mm_and_si128(pairs, low),
                                           _mm_and_si128(_mm_srli_epi16(pairs, 4), low));
  return {_mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(bytes))};
}
// Rounded to nearest even, as bytes.
inline __m128i to_bytes(Lanes x) { return _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(x.v)); }

// Of every block of 2 kHalf lanes, the sums of its halves and their differences.
template <int kHalf>
inline Lanes butterfly(Lanes x) {
  __m512 y;
  __mmask16 high;
  if constexpr (kHalf == 1) {
    y = _mm512_permute_ps(x.v, 0xB1), high = 0xAAAA;
  } else if constexpr (kHalf == 2) {
    y = _mm512_permute_ps(x.v, 0x4E), high = 0xCCCC;
  } else if constexpr (kHalf == 4) {
    y = _mm512_shuffle_f32x4(x.v, x.v, 0xB1), high = 0xF0F0;
  } else {
    y = _mm512_shuffle_f32x4(x.v, x.v, 0x4E), high = 0xFF00;
  }
  return {_mm512_mask_sub_ps(_mm512_add_ps(x.v, y), high, y, x.v)};
}

}  // namespace
}  // namespace headrace

#include "headrace/kernel/kv_codec_inl.h"

namespace headrace {

const KvCodecFns& avx512_kv_codec() { return kFns; }

}  // namespace headrace
