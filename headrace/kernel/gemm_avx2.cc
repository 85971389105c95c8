#include "headrace/kernel/gemm.h"
#include "headrace/kernel/lanes_avx2.h"

namespace headrace {
namespace {

constexpr int kMr = 6, kNv = 1;  // 12 registers of sums, 2 of columns, 1 of a row

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
