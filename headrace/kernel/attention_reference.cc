// The scalar reference of attention: docs/decisions/0002-attention-tile.md, line by line.
#include <algorithm>
#include <cmath>
#include <limits>

#include "headrace/base/status.h"
#include "headrace/kernel/attention_block.h"
#include "headrace/kernel/float_math.h"
#include "headrace/kernel/half.h"
#include "headrace/kernel/kv_codec.h"

namespace headrace {
namespace {

float tree_sum(float* lane) {
  for (int width = 8; width > 0; width /= 2) {
    for (int l = 0; l < width; ++l) lane[l] += lane[l + width];
  }
  return lane[0];
}

// q . k in 16 lanes; lane l takes elements l mod 16 in ascending order.
float dot(const float* q, const float* k, int64_t n) {
  float lane[16] = {};
  for (int64_t i = 0; i < n; ++i) lane[i % 16] = std::fmaf(q[i], k[i], lane[i % 16]);
  return tree_sum(lane);
}

struct QueryState {
  float max = -std::numeric_limits<float>::infinity();
  float sum = 0;
  float acc[kMaxHeadDim] = {};
};

// k, v: f32 [64][padded], of which rows seen.lo .. seen.hi - 1 are looked at.
void add_tile(const AttentionShape& shape, const float* q, const float* k, const float* v,
              TileRange seen, QueryState& state) {
  const int64_t d = shape.kv.head_dim, stride = padded_head_dim(d);
  float p[kKvTile];  // scores, then their exponentials
  float max = state.max;
  for (int64_t j = seen.lo; j < seen.hi; ++j) {
    p[j] = dot(q, k + j * stride, d) * shape.scale;
    if (shape.softcap > 0) p[j] = softcap_f32(p[j], shape.softcap);
    max = max < p[j] ? p[j] : max;
  }
  const float rescale = exp_f32(state.max - max);
  float lane[16] = {};
  for (int64_t j = seen.lo; j < seen.hi; ++j) {
    p[j] = exp_f32(p[j] - max);
    lane[j % 16] += p[j];
  }
  state.max = max;
  state.sum = std::fmaf(state.sum, rescale, tree_sum(lane));
  for (int64_t i = 0; i < d; ++i) {
    float acc = state.acc[i] * rescale;
    for (int64_t j = seen.lo; j < seen.hi; ++j) acc = std::fmaf(p[j], v[j * stride + i], acc);
    state.acc[i] = acc;
  }
}

// One query of a block: its state from before, the sealed tiles, its own tile.
void add_query(const AttentionShape& shape, const AttentionBlock& block, int64_t position,
               const float* q_plain, QueryState& state) {
  const int64_t d = shape.kv.head_dim, padded = padded_head_dim(d);
  float* const k = block.scratch;  // [64][padded]
  float* const v = k + kKvTile * padded;
  float q[kMaxHeadDim];
  std::copy_n(q_plain, d, q);
  if (kv_rotates(shape.format)) hadamard_rotate(q, d, padded);
  for (int64_t tile = block.tile_begin; tile < block.tile_end; ++tile) {
    const TileRange seen = visible_in_tile(shape, position, tile);
    if (seen.lo >= seen.hi) continue;
    const std::byte* part = block.sealed_k(shape, tile);
    kv_decode_rows(shape.format, part, d, seen.lo, seen.hi, k);
    kv_decode_rows(shape.format, part + shape.part_bytes, d, seen.lo, seen.hi, v);
    add_tile(shape, q, k, v, seen, state);
  }
  if (block.own == nullptr) return;
  const TileRange seen = visible_in_tile(shape, position, block.own_tile());
  const bool bf16 = shape.format == KvFormat::kBF16;
  for (int64_t i = seen.lo * padded; i < seen.hi * padded; ++i) {
    const uint16_t k16 = block.own[i], v16 = block.own[i + kKvTile * padded];
    k[i] = bf16 ? bf16_to_f32(k16) : f16_to_f32(k16);
    v[i] = bf16 ? bf16_to_f32(v16) : f16_to_f32(v16);
  }
  if (kv_rotates(shape.format)) hadamard_rotate(state.acc, d, padded);
  add_tile(shape, q_plain, k, v, seen, state);
}

}  // namespace

void attention_block_reference(const AttentionShape& shape, const AttentionBlock& block) {
  const int64_t d = shape.kv.head_dim;
  for (int64_t row = 0; row < block.rows; ++row) {
    for (int64_t h = 0; h < block.heads; ++h) {
      const int64_t at = row * block.row_stride + h * d;
      QueryState state;
      if (!shape.first) {
        const SoftmaxState from = state_of(shape, block, row, h);
        state.max = *from.max;
        state.sum = *from.sum;
        std::copy_n(from.acc, d, state.acc);
      }
      add_query(shape, block, block.position + row, block.q + at, state);
      if (!shape.last) {
        const SoftmaxState to = state_of(shape, block, row, h);
        *to.max = state.max;
        *to.sum = state.sum;
        std::copy_n(state.acc, d, to.acc);
        std::fill(to.acc + d, to.acc + padded_head_dim(d), 0.0f);
        continue;
      }
      if (block.state != nullptr) *state_of(shape, block, row, h).max = state.max;
      if (block.state != nullptr) *state_of(shape, block, row, h).sum = state.sum;
      const float inverse = 1.0f / state.sum;
      for (int64_t i = 0; i < d; ++i) block.out[at + i] = state.acc[i] * inverse;
    }
  }
}

}  // namespace headrace
