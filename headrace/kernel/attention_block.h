// AttentionBlock: causal attention of some query heads, all of one kv head, over one
// sequence.
//
// The arithmetic is frozen in docs/decisions/0002-attention-tile.md. In brief, for each
// query: tiles of 64 positions aligned to position 0, ascending; in each the scores (dot
// products in 16 lanes), their maximum, exponentials against the running maximum, and the
// running sum and accumulator rescaled. A masked position takes no part at all.
//
// Promises
//   1. A query's result depends on nothing but its q, its position and the K and V it may
//      see: not on the other queries of the block.
//   2. Every instruction set gives bit for bit what the reference gives.
//   3. K and V of masked positions may hold anything, NaN patterns included.
#pragma once

#include <cstddef>
#include <cstdint>

#include "headrace/base/types.h"
#include "headrace/kernel/kv_layout.h"

namespace headrace {

struct AttentionShape {
  KvLayout kv;
  float scale = 1;
  float softcap = 0;   // 0: none
  int64_t window = 0;  // positions; 0: all

  // First position that a query at `position` sees.
  int64_t first_visible(int64_t position) const {
    return window > 0 && position >= window ? position - window + 1 : 0;
  }
};

// The positions of tile `tile` that a query sees: [lo, hi) within the tile; lo >= hi:
// none.
struct TileRange {
  int64_t lo, hi;
};
inline TileRange visible_in_tile(const AttentionShape& shape, int64_t position,
                                 int64_t tile) {
  const int64_t lo = shape.first_visible(position) - tile * kKvTile;
  const int64_t hi = position + 1 - tile * kKvTile;
  return {lo > 0 ? lo : 0, hi < kKvTile ? hi : kKvTile};
}

struct AttentionBlock {
  int64_t rows = 0;          // consecutive rows of the step, at consecutive positions
  int64_t position = 0;      // of the first row
  int64_t heads = 0;         // query heads of a row, adjacent
  int64_t kv_head = 0;       // the one they share
  const float* q = nullptr;  // [rows][heads][head_dim], a row every row_stride elements
  float* out = nullptr;      // the same shape and stride
  int64_t row_stride = 0;
  const std::byte* const* segments = nullptr;  // KV slots of the sequence, by segment
  float* scratch =
      nullptr;  // attention_scratch_bytes(head_dim, rows * heads), kLine-aligned
};

// K of (tile of the sequence, kv head): f16 [64][padded]; V follows tile_elements()
// later.
inline const uint16_t* kv_tile(const AttentionShape& shape, const AttentionBlock& block,
                               int64_t tile) {
  const int64_t tiles = shape.kv.segment_tokens / kKvTile;
  const std::byte* slot = block.segments[tile / tiles];
  return reinterpret_cast<const uint16_t*>(slot) +
         shape.kv.k_offset(block.kv_head, tile % tiles * kKvTile);
}

// Scratch of a block of `queries` = rows * heads: one tile of K and V as f32, and for
// each query its q, accumulator and scores, [padded] + [padded] + [64], maximum and sum.
inline Bytes attention_scratch_bytes(int64_t head_dim, int64_t queries) {
  const int64_t d = padded_head_dim(head_dim);
  return round_up((2 * kKvTile * d + queries * (2 * d + kKvTile + 2)) * 4, kLine);
}

void attention_block_reference(const AttentionShape& shape, const AttentionBlock& block);
// Only to be called where supported() says so.
void attention_block_avx2(const AttentionShape& shape, const AttentionBlock& block);
void attention_block_avx512(const AttentionShape& shape, const AttentionBlock& block);

}  // namespace headrace
