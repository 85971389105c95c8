// The scalar reference of attention: docs/decisions/0002-attention-tile.md, line by line.
#include <cmath>
#include <limits>

#include "headrace/base/status.h"
#include "headrace/kernel/attention_block.h"
#include "headrace/kernel/float_math.h"
#include "headrace/kernel/half.h"

namespace headrace {
namespace {

float tree_sum(float* lane) {
  for (int width = 8; width > 0; width /= 2) {
    for (int l = 0; l < width; ++l) lane[l] += lane[l + width];
  }
  return lane[0];
}

// q . k in 16 lanes; lane l takes elements l mod 16 in ascending order.
float dot(const float* q, const uint16_t* k, int64_t n) {
  float lane[16] = {};
  for (int64_t i = 0; i < n; ++i) {
    lane[i % 16] = std::fmaf(q[i], f16_to_f32(k[i]), lane[i % 16]);
  }
  return tree_sum(lane);
}

struct QueryState {
  float max = -std::numeric_limits<float>::infinity();
  float sum = 0;
  float acc[kMaxHeadDim] = {};
};

void add_tile(const AttentionShape& shape, const float* q, const uint16_t* k_tile,
              TileRange seen, QueryState& state) {
  const int64_t d = shape.kv.head_dim, stride = padded_head_dim(d);
  const uint16_t* v_tile = k_tile + shape.kv.tile_elements();
  float p[kKvTile];  // scores, then their exponentials
  float max = state.max;
  for (int64_t j = seen.lo; j < seen.hi; ++j) {
    p[j] = dot(q, k_tile + j * stride, d) * shape.scale;
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
    for (int64_t j = seen.lo; j < seen.hi; ++j) {
      acc = std::fmaf(p[j], f16_to_f32(v_tile[j * stride + i]), acc);
    }
    state.acc[i] = acc;
  }
}

}  // namespace

void attention_block_reference(const AttentionShape& shape, const AttentionBlock& block) {
  const int64_t d = shape.kv.head_dim;
  for (int64_t row = 0; row < block.rows; ++row) {
    const int64_t position = block.position + row;
    for (int64_t h = 0; h < block.heads; ++h) {
      const int64_t at = row * block.row_stride + h * d;
      QueryState state;
      const int64_t first_tile = shape.first_visible(position) / kKvTile;
      for (int64_t tile = first_tile; tile <= position / kKvTile; ++tile) {
        add_tile(shape, block.q + at, kv_tile(shape, block, tile),
                 visible_in_tile(shape, position, tile), state);
      }
      const float inverse = 1.0f / state.sum;
      for (int64_t i = 0; i < d; ++i) block.out[at + i] = state.acc[i] * inverse;
    }
  }
}

}  // namespace headrace
