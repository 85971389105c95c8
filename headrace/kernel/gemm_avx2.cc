#include "headrace/kernel/gemm.h"
#include "headrace/kernel/lanes_avx2.h"

namespace headrace {
namespace {

constexpr int kMr = 6, kNv = 1;  // 12 registers of sums, 2 of columns, 1 of a row

inline Lanes widen_bf16(const uint16_t* p) {
  const auto eight = [](const uint16_t* q) {
    const __m128i half = _mm_loadu_si128(reinterpret_cast<const __m128i*>(q));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
  };
  return {eight(p), eight(p + 8)};
}

inline Lanes load_bf16(const void* p, Full) { return widen_bf16(static_cast<const uint16_t*>(p)); }
inline Lanes load_bf16(const void* p, Part part) {
  uint16_t all[16] = {};
  __builtin_memcpy(all, p, static_cast<size_t>(part.count) * 2);
  return widen_bf16(all);
}

template <typename Size>
void store_bf16(void* p, Lanes x, Size size) {
  float all[16];
  uint16_t half[16];
  x.store(all);
  for (int i = 0; i < 16; ++i) half[i] = gemm_to_bf16(all[i]);
  int64_t count = 16;
  if constexpr (!std::is_same_v<Size, Full>) count = size.count;
  __builtin_memcpy(p, half, static_cast<size_t>(count) * 2);
}

inline Lanes high_half(Lanes x) {
  const __m256 mask = _mm256_castsi256_ps(_mm256_set1_epi32(-65536));
  return {_mm256_and_ps(x.lo, mask), _mm256_and_ps(x.hi, mask)};
}
inline Lanes low_half(Lanes x) {
  const auto low = [](__m256 v) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(v), 16));
  };
  return {low(x.lo), low(x.hi)};
}

}  // namespace
}  // namespace headrace

#include "headrace/kernel/gemm_inl.h"

namespace headrace {

void gemm_part_avx2(const GemmArgs& g, const GemmPart& part, std::byte* scratch) {
  run_part(g, part, scratch);
}

}  // namespace headrace
