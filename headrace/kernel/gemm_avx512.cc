#include "headrace/kernel/lanes_avx512.h"

namespace headrace {
namespace {

constexpr int kMr = 14, kNv = 2;  // 28 sums, 2 columns, 2 spare registers

inline __mmask16 mask_of(Full) { return 0xffff; }
inline __mmask16 mask_of(Part part) { return static_cast<__mmask16>((1u << part.count) - 1u); }

template <typename Size>
Lanes load_bf16(const void* p, Size size) {
  const __m256i half = _mm256_maskz_loadu_epi16(mask_of(size), p);
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16))};
}

template <typename Size>
void store_bf16(void* p, Lanes x, Size size) {
  const __m512i bits = _mm512_castps_si512(x.v);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  __m512i up = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
  const __mmask16 nan = _mm512_cmp_ps_mask(x.v, x.v, _CMP_UNORD_Q);
  up = _mm512_mask_or_epi32(up, nan, bits, _mm512_set1_epi32(0x400000));
  _mm256_mask_storeu_epi16(p, mask_of(size), _mm512_cvtepi32_epi16(_mm512_srli_epi32(up, 16)));
}

inline Lanes high_half(Lanes x) {
  return {_mm512_castsi512_ps(
      _mm512_and_si512(_mm512_castps_si512(x.v), _mm512_set1_epi32(-65536)))};
}
inline Lanes low_half(Lanes x) {
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_castps_si512(x.v), 16))};
}

// An instruction of its own feature (avx512_bf16), which this file is not compiled for.
struct MultiplyDot {
  static Lanes add(Lanes a, Lanes b, Lanes c) {
    asm("vdpbf16ps %2, %1, %0" : "+v"(c.v) : "v"(b.v), "v"(a.v));
    return c;
  }
};

}  // namespace
}  // namespace headrace

#include "headrace/kernel/gemm_inl.h"

namespace headrace {
namespace {

constexpr Micros kDotMicros = micros_of<MultiplyDot>();

}  // namespace

void gemm_part_avx512(const GemmArgs& g, const GemmPart& part, std::byte* scratch) {
  if (g.type == DType::kBF16 && gemm_uses_bf16_dot()) {
    PartRun(g, part, scratch, kDotMicros, false).run();
  } else {
    run_part(g, part, scratch);
  }
}

}  // namespace headrace
