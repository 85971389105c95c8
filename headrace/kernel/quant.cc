#include "headrace/kernel/quant.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>

#include "headrace/kernel/half.h"
#include "headrace/kernel/quant_isa.h"
#include "headrace/kernel/weight_group.h"

namespace headrace {
namespace {

// To nearest even, for |x| < 2^22: the addition leaves no bits below the unit.
int round_to_int(float x) { return static_cast<int>((x + 0x1.8p23f) - 0x1.8p23f); }

// One block of up to 32 values (missing ones count as zero) to q[32] in row order, and
// its scale.
float quantize_block(const float* x, int count, int8_t* q) {
  std::memset(q, 0, 32);
  uint32_t largest = 0;  // of the magnitudes, as integers: NaN is above infinity
  for (int i = 0; i < count; ++i) {
    largest = std::max(largest, std::bit_cast<uint32_t>(x[i]) & 0x7fffffffu);
  }
  const float amax = std::bit_cast<float>(largest);
  if (largest >= 0x7f800000u) return std::numeric_limits<float>::quiet_NaN();
  if (amax < kTinyBlock) return 0.0f;
  const float inverse = 127.0f / amax;
  for (int i = 0; i < count; ++i)
    q[i] = static_cast<int8_t>(round_to_int(x[i] * inverse));
  return amax / 127.0f;
}

void dequantize_act_q8(const std::byte* src, int64_t n, float* out) {
  const ActQ8Row a = act_q8_planes(src, n);
  for (int64_t i = 0; i < n; ++i) {
    const int64_t block = i / 32;
    const int64_t at = i / 64 * 64 + i % 32 / 4 * 8 + block % 2 * 4 + i % 4;
    out[i] = a.d[block] * static_cast<float>(a.q[at]);
  }
}

void dequantize_dense(DType type, const std::byte* src, int64_t n, float* out) {
  if (type == DType::kF32) {
    std::memcpy(out, src, static_cast<size_t>(n) * 4);
    return;
  }
  for (int64_t i = 0; i < n; ++i) {
    uint16_t h;
    std::memcpy(&h, src + 2 * i, 2);
    out[i] = type == DType::kF16 ? f16_to_f32(h) : bf16_to_f32(h);
  }
}

// What a symmetric type adds to q to make u; 0 for the types with a minimum of their own.
int symmetric_offset(DType type) {
  switch (type) {
    case DType::kQ4_0: return 8;
    case DType::kQ5_0: return 16;
    case DType::kQ8_0: return 128;
    case DType::kQ3_K: return 4;
    case DType::kQ6_K: return 32;
    default: return 0;
  }
}

}  // namespace

ActQ8Row act_q8_planes(const std::byte* row, int64_t n) {
  const int64_t padded = round_up(n, 64), whole = round_up(n, kGroup);
  ActQ8Row planes;
  planes.q = reinterpret_cast<const int8_t*>(row);
  planes.d = reinterpret_cast<const float*>(row + padded);
  planes.s32 = planes.d + padded / 32;
  planes.s16 = planes.s32 + whole / 32;
  return planes;
}

void quantize_row_scalar(const float* x, int64_t n, std::byte* row) {
  std::memset(row, 0, static_cast<size_t>(row_bytes(DType::kActQ8, n)));
  const ActQ8Row planes = act_q8_planes(row, n);
  int8_t* const q = const_cast<int8_t*>(planes.q);
  float* const d = const_cast<float*>(planes.d);
  float* const s32 = const_cast<float*>(planes.s32);
  float* const s16 = const_cast<float*>(planes.s16);
  for (int64_t block = 0; block * 32 < n; ++block) {
    int8_t values[32];
    const int count = static_cast<int>(std::min<int64_t>(32, n - block * 32));
    const float scale = quantize_block(x + block * 32, count, values);
    int sum[2] = {0, 0};
    for (int i = 0; i < 32; ++i) sum[i / 16] += values[i];
    d[block] = scale;
    s32[block] = scale * static_cast<float>(sum[0] + sum[1]);
    s16[2 * block] = scale * static_cast<float>(sum[0]);
    s16[2 * block + 1] = scale * static_cast<float>(sum[1]);
    int8_t* chunk = q + block / 2 * 64 + block % 2 * 4;
    for (int j = 0; j < 8; ++j) std::memcpy(chunk + 8 * j, values + 4 * j, 4);
  }
}

void quantize_row(const float* x, int64_t n, std::byte* row) {
  quantize_row_fn(current_isa())(x, n, row);
}

void dequantize_row(DType type, const std::byte* src, int64_t n, float* out) {
  if (type == DType::kActQ8) return dequantize_act_q8(src, n, out);
  if (!info(type).quantised) {
    HR_CHECK(type == DType::kF32 || type == DType::kF16 || type == DType::kBF16,
             "an integer type is not a weight type");
    return dequantize_dense(type, src, n, out);
  }
  const int symmetric = symmetric_offset(type);
  const int per = offset_elements(type);
  WeightGroup w;
  for (int64_t g = 0; g * kGroup < n; ++g) {
    decode_group(type, src, n, g, w);
    const int count = static_cast<int>(std::min<int64_t>(kGroup, n - g * kGroup));
    for (int e = 0; e < count; ++e) {
      const float scale = w.scale[e / 16];
      // Symmetric types multiply q itself: scale * u + offset would round twice.
      out[g * kGroup + e] = symmetric
                                ? scale * static_cast<float>(w.u[e] - symmetric)
                                : scale * static_cast<float>(w.u[e]) + w.offset[e / per];
    }
  }
}

}  // namespace headrace
