// KvLayout: how K and V lie in 16-bit tiles: tails and open tiles (ir/kv.h).
//
// Vocabulary
//   padded   head_dim rounded up to 16 elements; the padding holds zeros.
//
//   tiles = [tiles][kv_heads][K, V][64 positions][padded]  of f16, or of bf16 bits
//
// Sealed tiles have the same order, [kv_heads][K, V] of parts, each in its format (kv_codec.h); of
// f16 and bf16 they are the same bytes.
//
// Promises
//   1. One (tile, kv head) is one contiguous run, K before V: decode streams it front to back.
//   2. All kv heads of a tile are adjacent, so tiles fill a slot from its front and the bytes of a
//      tile that no position has reached stay untouched.
//   3. Every tile and every part starts at a multiple of kLine.
// Decision and reasons: docs/decisions/0002-attention-tile.md.
#pragma once

#include <cstdint>

#include "headrace/base/types.h"
#include "headrace/ir/kv.h"

namespace headrace {

constexpr int64_t kKvLanes = 16;      // elements that a row of K or V is padded to
constexpr int64_t kMaxHeadDim = 512;  // elements; kernels keep a head on the stack

constexpr int64_t padded_head_dim(int64_t head_dim) {
  return round_up(head_dim, kKvLanes);
}

struct KvLayout {
  int64_t kv_heads = 1;
  int64_t head_dim = 0;

  // Elements (16 bits) of K or of V of one (tile, kv head).
  constexpr int64_t part_elements() const { return kKvTile * padded_head_dim(head_dim); }
  // Of a tile.
  constexpr int64_t tile_elements() const { return kv_heads * 2 * part_elements(); }
  // Element offset of K of (kv_head, row of the tile); its padded row follows.
  constexpr int64_t k_offset(int64_t kv_head, int64_t row) const {
    return kv_head * 2 * part_elements() + row * padded_head_dim(head_dim);
  }
  // Element offset of V of (kv_head, row of the tile).
  constexpr int64_t v_offset(int64_t kv_head, int64_t row) const {
    return k_offset(kv_head, row) + part_elements();
  }
};

}  // namespace headrace
