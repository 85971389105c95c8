// AttentionBlock: causal attention of some query heads, all of one kv head, over one sequence.
//
// The arithmetic is frozen in docs/decisions/0002-attention-tile.md. In brief, for each query:
// tiles of 64 positions aligned to position 0, ascending; in each the scores (dot products in 16
// lanes), their maximum, exponentials against the running maximum, and the running sum and
// accumulator rescaled. A masked position takes no part at all. The query's own tile, always its
// last, is read in 16 bits, the tiles before it as they were sealed.
//
// Promises
//   1. A query's result depends on nothing but its q, its position and the K and V it may see: not
//      on the other queries of the block, nor on where one part ends and the next begins.
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
  KvFormat format = KvFormat::kF16;
  Bytes part_bytes = 0;  // of K or of V of one (sealed tile, kv head)
  float scale = 1;
  float softcap = 0;   // 0: none
  int64_t window = 0;  // positions; 0: all
  int64_t heads = 0;   // query heads of a row: what a row of state is of
  bool first = true, last = true;  // the op starts, ends the rows' softmax
  bool selects = false;  // its state says besides how much of the sum selected segments have

  // First position that a query at `position` sees.
  int64_t first_visible(int64_t position) const {
    return window > 0 && position >= window ? position - window + 1 : 0;
  }
};

// The positions of tile `tile` that a query sees: [lo, hi) within the tile; lo >= hi: none.
struct TileRange {
  int64_t lo, hi;
};
inline TileRange visible_in_tile(const AttentionShape& shape, int64_t position, int64_t tile) {
  const int64_t lo = shape.first_visible(position) - tile * kKvTile;
  const int64_t hi = position + 1 - tile * kKvTile;
  return {lo > 0 ? lo : 0, hi < kKvTile ? hi : kKvTile};
}

// Where the sealed tiles of one sequence are, as one op has them.
struct SealedTiles {
  std::byte* const* slots = nullptr;  // segments [segment_begin, + segments) of the sequence
  std::byte* pool = nullptr;          // or blocks of it, by number:
  const int32_t* blocks = nullptr;    // of each segment
  int64_t segment_begin = 0, segments = 1;
  int64_t tiles = 1;  // a segment
  Bytes tile_bytes = 0;

  std::byte* at(int64_t tile) const {
    const int64_t segment = (tile / tiles - segment_begin) % segments;
    std::byte* slot = slots != nullptr ? slots[segment] : block(segment);
    return slot + tile % tiles * tile_bytes;
  }

 private:
  std::byte* block(int64_t segment) const {
    const int32_t number = blocks[segment_begin + segment];
    HR_CHECK(number >= 0, "a sealed tile lies in a block");
    return pool + number * tiles * tile_bytes;
  }
};

struct AttentionBlock {
  int64_t rows = 0;      // consecutive rows of the step, at consecutive positions of one tile
  int64_t position = 0;  // of the first row
  int64_t heads = 0;     // query heads of a row, adjacent
  int64_t head = 0;      // the first
  int64_t kv_head = 0;   // the one they share
  const float* q = nullptr;  // [rows][heads][head_dim], a row every row_stride elements
  float* out = nullptr;      // the same shape and stride; null when the op does not end the softmax
  int64_t row_stride = 0;
  float* state = nullptr;  // [rows][state_stride()]; null for an op of all segments
  SealedTiles sealed;
  int64_t tile_begin = 0, tile_end = 0;  // sealed tiles to be attended
  const uint16_t* own = nullptr;  // K of the rows' own tile and kv head, V follows; null: not here
  float* scratch = nullptr;  // attention_scratch_bytes(head_dim, rows * heads), kLine-aligned

  const std::byte* sealed_k(const AttentionShape& shape, int64_t tile) const {
    return sealed.at(tile) + 2 * kv_head * shape.part_bytes;
  }
  int64_t own_tile() const { return position / kKvTile; }
};

// A row of the softmax's state: accumulators [heads][padded], maxima [heads], sums [heads]; where
// segments are selected also the share of each sum that is theirs [heads].
struct SoftmaxState {
  float* acc;
  float* max;
  float* sum;
  float* selected;
};
inline int64_t state_stride(const AttentionShape& shape) {
  return shape.heads * (padded_head_dim(shape.kv.head_dim) + 2 + (shape.selects ? 1 : 0));
}
inline SoftmaxState state_of(const AttentionShape& shape, const AttentionBlock& block, int64_t row,
                             int64_t head) {
  const int64_t d = padded_head_dim(shape.kv.head_dim), h = block.head + head;
  float* at = block.state + row * state_stride(shape);
  return {at + h * d, at + shape.heads * d + h, at + shape.heads * (d + 1) + h,
          at + shape.heads * (d + 2) + h};
}

// Scratch of a block of `queries` = rows * heads: one tile of K and V as f32, and for each query
// its q, accumulator and scores, [padded] + [padded] + [64], maximum and sum.
inline Bytes attention_scratch_bytes(int64_t head_dim, int64_t queries) {
  const int64_t d = padded_head_dim(head_dim);
  return round_up((2 * kKvTile * d + queries * (2 * d + kKvTile + 2)) * 4, kLine);
}

void attention_block_reference(const AttentionShape& shape, const AttentionBlock& block);
// Only to be called where supported() says so.
void attention_block_avx2(const AttentionShape& shape, const AttentionBlock& block);
void attention_block_avx512(const AttentionShape& shape, const AttentionBlock& block);

}  // namespace headrace
