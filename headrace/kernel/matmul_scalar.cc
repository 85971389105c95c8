// The reference of every matmul: docs/decisions/0001-arithmetic.md, in plain loops.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "headrace/kernel/half.h"
#include "headrace/kernel/matmul.h"
#include "headrace/kernel/quant.h"
#include "headrace/kernel/weight_group.h"

namespace headrace {
namespace {

constexpr int kRowsAtOnce = 8;  // rows that share one decoding of a weight group

struct Lanes {
  float main[16] = {};
  float offset[8] = {};
};

// The 16 lanes to one number, always in this order.
float reduce(const Lanes& lanes) {
  float t[8];
  for (int l = 0; l < 8; ++l) {
    t[l] = (lanes.main[l] + lanes.main[l + 8]) + lanes.offset[l];
  }
  for (int l = 0; l < 4; ++l) t[l] = t[l] + t[l + 4];
  for (int l = 0; l < 2; ++l) t[l] = t[l] + t[l + 2];
  return t[0] + t[1];
}

// Adds chunk c (of the row) of one decoded group.
void add_chunk(const WeightGroup& w, const ActQ8Row& a, int64_t c, Lanes& lanes) {
  const int in_group = static_cast<int>(c % 4);
  for (int l = 0; l < 16; ++l) {
    const int block = l % 2, j = l / 2;  // elements 4j .. 4j + 3 of block 2c + block
    const int element = 64 * in_group + 32 * block + 4 * j;
    int32_t sum = 0;
    for (int i = 0; i < 4; ++i) {
      sum += int32_t{w.u[element + i]} * a.q[64 * c + 4 * l + i];
    }
    const float scale = w.scale[element / 16] * a.d[2 * c + block];
    lanes.main[l] = std::fma(static_cast<float>(sum), scale, lanes.main[l]);
  }
}

void add_offsets(const WeightGroup& w, const ActQ8Row& a, int64_t group, int per,
                 Lanes& lanes) {
  const int count = kGroup / per;
  const float* sums = (per == 16 ? a.s16 : a.s32) + group * count;
  for (int i = 0; i < count; ++i) {
    lanes.offset[i % 8] = std::fma(w.offset[i], sums[i], lanes.offset[i % 8]);
  }
}

void store(const MatmulArgs& args, int64_t row, int64_t j, float dot) {
  const int64_t at = row * args.y_stride + j;
  if (args.bias) dot = dot + args.bias[j];
  if (args.residual) dot = dot + args.residual[at];
  args.y[at] = dot;
}

void quantised(const MatmulArgs& args, int64_t j, int64_t row, int rows) {
  const std::byte* w = args.weight + j * row_bytes(args.type, args.k);
  const int per = offset_elements(args.type);
  const int64_t chunks = (args.k + 63) / 64;
  Lanes lanes[kRowsAtOnce];
  WeightGroup decoded;
  for (int64_t g = 0; g * kGroup < args.k; ++g) {
    decode_group(args.type, w, args.k, g, decoded);
    for (int r = 0; r < rows; ++r) {
      const ActQ8Row a = act_q8_planes(args.a + (row + r) * args.a_stride, args.k);
      for (int64_t c = 4 * g; c < std::min(4 * g + 4, chunks); ++c) {
        add_chunk(decoded, a, c, lanes[r]);
      }
      add_offsets(decoded, a, g, per, lanes[r]);
    }
  }
  for (int r = 0; r < rows; ++r) store(args, row + r, j, reduce(lanes[r]));
}

float dense_element(DType type, const std::byte* w, int64_t i) {
  if (type == DType::kF32) {
    float f;
    std::memcpy(&f, w + 4 * i, 4);
    return f;
  }
  uint16_t h;
  std::memcpy(&h, w + 2 * i, 2);
  return type == DType::kF16 ? f16_to_f32(h) : bf16_to_f32(h);
}

void dense(const MatmulArgs& args, int64_t j, int64_t row) {
  const std::byte* w = args.weight + j * row_bytes(args.type, args.k);
  const float* a = reinterpret_cast<const float*>(args.a + row * args.a_stride);
  Lanes lanes;
  for (int64_t i = 0; i < (args.k + 15) / 16 * 16; ++i) {
    // Past the end both factors are +0, so that a lane never keeps a -0 by length alone.
    const float wi = i < args.k ? dense_element(args.type, w, i) : 0.0f;
    const float ai = i < args.k ? a[i] : 0.0f;
    lanes.main[i % 16] = std::fma(wi, ai, lanes.main[i % 16]);
  }
  store(args, row, j, reduce(lanes));
}

}  // namespace

void matmul_span_scalar(const MatmulArgs& args, int64_t begin, int64_t end, std::byte*) {
  for (int64_t j = begin; j < end; ++j) {
    if (!info(args.type).quantised) {
      for (int64_t row = 0; row < args.m; ++row) dense(args, j, row);
      continue;
    }
    for (int64_t row = 0; row < args.m; row += kRowsAtOnce) {
      quantised(args, j, row,
                static_cast<int>(std::min<int64_t>(kRowsAtOnce, args.m - row)));
    }
  }
}

}  // namespace headrace
