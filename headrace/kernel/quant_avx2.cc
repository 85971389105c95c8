// quantize_row for AVX2; AVX-512 machines use it too (it is a few per cent of a matmul's
// time). Same bits as quantize_row_scalar.
#include "headrace/kernel/quant_isa.h"

#if defined(__x86_64__)

#include <immintrin.h>

#include <cstring>

namespace headrace {
namespace {

// The planes of a row (quant.h).
struct Planes {
  int8_t* q;
  float* d;
  float* s32;
  float* s16;
};

// The largest magnitude of 32 floats, as an integer.
uint32_t largest_magnitude(const __m256* x) {
  const __m256i magnitude = _mm256_set1_epi32(0x7fffffff);
  __m256i most = _mm256_setzero_si256();
  for (int i = 0; i < 4; ++i) {
    most = _mm256_max_epu32(most, _mm256_and_si256(_mm256_castps_si256(x[i]), magnitude));
  }
  __m128i m =
      _mm_max_epu32(_mm256_castsi256_si128(most), _mm256_extracti128_si256(most, 1));
  m = _mm_max_epu32(m, _mm_shuffle_epi32(m, 0x4e));
  m = _mm_max_epu32(m, _mm_shuffle_epi32(m, 0xb1));
  return static_cast<uint32_t>(_mm_cvtsi128_si32(m));
}

// Quantises one block; the 32 bytes in row order. Writes its scale and sums.
__m256i quantize_block(const float* x, int64_t block, const Planes& out) {
  const __m256 v[4] = {_mm256_loadu_ps(x), _mm256_loadu_ps(x + 8),
                       _mm256_loadu_ps(x + 16), _mm256_loadu_ps(x + 24)};
  const uint32_t largest = largest_magnitude(v);
  float amax;
  std::memcpy(&amax, &largest, 4);
  if (largest >= 0x7f800000u || amax < kTinyBlock) {
    const float scale = largest >= 0x7f800000u ? __builtin_nanf("") : 0.0f;
    out.d[block] = out.s32[block] = out.s16[2 * block] = out.s16[2 * block + 1] = scale;
    return _mm256_setzero_si256();
  }
  const __m256 inverse = _mm256_set1_ps(127.0f / amax);
  __m256i i[4];
  for (int j = 0; j < 4; ++j) i[j] = _mm256_cvtps_epi32(_mm256_mul_ps(v[j], inverse));
  // The packs work within 128-bit halves; the permutation puts the dwords in order again.
  const __m256i packed =
      _mm256_packs_epi16(_mm256_packs_epi32(i[0], i[1]), _mm256_packs_epi32(i[2], i[3]));
  const __m256i q =
      _mm256_permutevar8x32_epi32(packed, _mm256_set_epi32(7, 3, 6, 2, 5, 1, 4, 0));
  const __m256i fours = _mm256_madd_epi16(_mm256_maddubs_epi16(_mm256_set1_epi8(1), q),
                                          _mm256_set1_epi16(1));
  __m256i halves = _mm256_add_epi32(fours, _mm256_shuffle_epi32(fours, 0x4e));
  halves = _mm256_add_epi32(halves, _mm256_shuffle_epi32(halves, 0xb1));
  const int first = _mm256_extract_epi32(halves, 0),
            second = _mm256_extract_epi32(halves, 4);
  const float scale = amax / 127.0f;
  out.d[block] = scale;
  out.s32[block] = scale * static_cast<float>(first + second);
  out.s16[2 * block] = scale * static_cast<float>(first);
  out.s16[2 * block + 1] = scale * static_cast<float>(second);
  return q;
}

}  // namespace

void quantize_row_avx2(const float* x, int64_t n, std::byte* row) {
  std::memset(row, 0, static_cast<size_t>(row_bytes(DType::kActQ8, n)));
  const int64_t chunks = (n + 63) / 64, groups = (n + 255) / 256;
  Planes out;
  out.q = reinterpret_cast<int8_t*>(row);
  out.d = reinterpret_cast<float*>(row + chunks * 64);
  out.s32 = out.d + chunks * 2;
  out.s16 = out.s32 + groups * 8;
  for (int64_t c = 0; c < chunks; ++c) {
    const float* from = x + 64 * c;
    float tail[64];
    const int64_t left = n - 64 * c;
    if (left < 64) {
      std::memset(tail, 0, sizeof(tail));
      std::memcpy(tail, from, static_cast<size_t>(left) * 4);
      from = tail;
    }
    const __m256i a = quantize_block(from, 2 * c, out);
    const __m256i b = quantize_block(from + 32, 2 * c + 1, out);
    const __m256i low = _mm256_unpacklo_epi32(a, b), high = _mm256_unpackhi_epi32(a, b);
    __m256i* to = reinterpret_cast<__m256i*>(out.q + 64 * c);
    _mm256_storeu_si256(to, _mm256_permute2x128_si256(low, high, 0x20));
    _mm256_storeu_si256(to + 1, _mm256_permute2x128_si256(low, high, 0x31));
  }
}

}  // namespace headrace

#else

namespace headrace {

void quantize_row_avx2(const float* x, int64_t n, std::byte* row) {
  quantize_row_scalar(x, n, row);  // never in force: supported() says no
}

}  // namespace headrace

#endif
