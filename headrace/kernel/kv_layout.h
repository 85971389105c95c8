// KvLayout: how K and V of one KV slot (layer, sequence, segment) lie in its bytes.
//
// Vocabulary
//   tile     64 consecutive positions that start at a multiple of 64: the unit of
//            attention.
//   padded   head_dim rounded up to 16 elements; the padding holds zeros.
//
//   slot = [segment_tokens / 64 tiles][kv_heads][K, V][64 positions][padded]  of f16
//
// Promises
//   1. One (tile, kv head) is one contiguous run, K before V: decode streams it front to
//      back.
//   2. All kv heads of a tile are adjacent, so positions fill a slot from its front and
//      the bytes of a tile that no position has reached stay untouched.
//   3. Every tile starts at a multiple of kLine from the start of the slot.
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
  int64_t segment_tokens = 0;  // a multiple of kKvTile

  // Elements (f16) of K or of V of one (tile, kv head).
  constexpr int64_t tile_elements() const { return kKvTile * padded_head_dim(head_dim); }
  // Element offset of K of (kv_head, position in the segment); its padded row follows.
  constexpr int64_t k_offset(int64_t kv_head, int64_t position) const {
    const int64_t tile = position / kKvTile, row = position % kKvTile;
    return (tile * kv_heads + kv_head) * 2 * tile_elements() +
           row * padded_head_dim(head_dim);
  }
  // Element offset of V of (kv_head, position in the segment).
  constexpr int64_t v_offset(int64_t kv_head, int64_t position) const {
    return k_offset(kv_head, position) + tile_elements();
  }
  // Bytes of a slot.
  constexpr Bytes bytes() const {
    return segment_tokens * kv_heads * 2 * padded_head_dim(head_dim) * 2;
  }
};

// Bytes of the slot tensor of one (layer, sequence, segment).
constexpr Bytes kv_slot_bytes(int64_t kv_heads, int64_t head_dim,
                              int64_t segment_tokens) {
  return KvLayout{kv_heads, head_dim, segment_tokens}.bytes();
}

}  // namespace headrace
