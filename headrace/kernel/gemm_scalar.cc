// The reference of gemm.h: one element after another, nothing packed.
#include <bit>
#include <cmath>
#include <limits>

#include "headrace/kernel/gemm.h"
#include "headrace/kernel/gemm_layout.h"
#include "headrace/kernel/half.h"

namespace headrace {
namespace {

float load(DType type, const std::byte* p) {
  if (type != DType::kF32) {
    uint16_t half;
    std::memcpy(&half, p, 2);
    return type == DType::kBF16 ? bf16_to_f32(half) : f16_to_f32(half);
  }
  float value;
  std::memcpy(&value, p, 4);
  return value;
}

constexpr float kSmallest = std::numeric_limits<float>::min();  // 2^-126

float without_subnormal(float x) {
  return std::fabs(x) < kSmallest ? std::copysign(0.0f, x) : x;
}

// A fused multiply-add as with DAZ and FTZ set: tiny is decided after rounding to 24 bits as if
// the exponent had no bound, so a result that only the subnormal grid rounds up to 2^-126 is 0.
float fma_flushed(float a, float b, float c) {
  a = without_subnormal(a);
  b = without_subnormal(b);
  c = without_subnormal(c);
  const float r = std::fma(a, b, c);
  if (std::fabs(r) != kSmallest) return without_subnormal(r);
  (std::fabs(a) < std::fabs(b) ? a : b) *= 0x1p64f;
  return std::fabs(std::fma(a, b, c * 0x1p64f)) < kSmallest * 0x1p64f ? std::copysign(0.0f, r) : r;
}

struct Element {
  const GemmArgs& g;
  int64_t i, j;
  gemm_layout::RowCursor rows;

  float a(int64_t p) const {
    const int64_t at = g.layout == GemmLayout::kDw ? p * g.a_stride + i : i * g.a_stride + p;
    return load(g.type, g.a + at * gemm_layout::RowCursor::element(g.type));
  }
  float b(int64_t p) {
    const bool by_column = g.layout == GemmLayout::kLinear;
    const int64_t at = by_column ? p : j;
    return load(g.type, rows.at(by_column ? j : p) + at * gemm_layout::RowCursor::element(g.type));
  }
  float block(int64_t begin, int64_t end) {
    float sum = 0;
    if (g.type != DType::kBF16) {
      for (int64_t p = begin; p < end; ++p) sum = std::fma(a(p), b(p), sum);
      return sum;
    }
    for (int64_t p = begin; p < end; p += 2) {
      const float b0 = b(p);
      const bool pair = p + 1 < end;
      sum = fma_flushed(pair ? a(p + 1) : 0.0f, pair ? b(p + 1) : 0.0f, sum);
      sum = fma_flushed(a(p), b0, sum);
    }
    return sum;
  }
};

}  // namespace

void gemm_part_scalar(const GemmArgs& g, const GemmPart& part, std::byte*) {
  const int64_t size = gemm_layout::RowCursor::element(g.out_type);
  for (int64_t i = part.row_begin; i < part.row_end; ++i) {
    gemm_layout::RowCursor biases(g);
    for (int64_t j = part.col_begin; j < part.col_end; ++j) {
      float v = 0;
      for (int64_t p = 0; p < g.k; p += kGemmBlock) {
        Element element{g, i, j, gemm_layout::RowCursor(g)};
        const float sum = element.block(p, std::min(p + kGemmBlock, g.k));
        v = p == 0 ? sum : v + sum;
      }
      v = v * g.scale;
      const bool bias = g.layout == GemmLayout::kLinear && g.b[0].bias != nullptr;
      if (bias) v = v + biases.bias(j);
      const int64_t at = (i * g.c_stride + j) * size;
      if (g.residual != nullptr) v = v + load(g.out_type, g.residual + at);
      if (g.add) v = load(g.out_type, g.c + at) + v;
      if (g.out_type != DType::kF32) {
        const uint16_t half = g.out_type == DType::kBF16 ? f32_to_bf16(v) : f32_to_f16(v);
        std::memcpy(g.c + at, &half, 2);
      } else {
        std::memcpy(g.c + at, &v, 4);
      }
    }
  }
}

}  // namespace headrace
