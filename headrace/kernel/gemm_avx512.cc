#include "headrace/kernel/lanes_avx512.h"

namespace headrace {
namespace {

constexpr int kMr = 14, kNv = 2;  // 28 sums, 2 columns, 2 spare registers

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
