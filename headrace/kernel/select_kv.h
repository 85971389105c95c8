// Bounds of the keys of a KV segment, and what they say of a query (kSelectKv, kAttention).
//
// A row of the tensor `keys` is of one segment: for each kv head the least, then the largest value
// of each element of K over the segment's sealed tiles, [2][padded] floats, as those tiles decode,
// kQ4 rotated back: a key that stands out in one channel stands out in its bounds, whereas in
// rotated ones it drowns (needles at 32,257 positions: 4 of 4 found, against none of 4). A segment
// that was gone back into keeps the bounds of what is gone: they are looser, never wrong.
#pragma once

#include <cstddef>
#include <cstdint>

#include "headrace/ir/kv.h"
#include "headrace/kernel/kv_layout.h"

namespace headrace {

// Floats of a row of keys.
inline int64_t key_bounds_cols(int64_t kv_heads, int64_t head_dim) {
  return 2 * kv_heads * padded_head_dim(head_dim);
}

// Puts the 64 keys of a sealed part (kv_codec.h) into `bounds` [2][padded]; `first`: it held
// nothing before. `scratch`: f32 [64][padded].
void add_key_bounds(KvFormat format, const std::byte* k_part, int64_t head_dim, bool first,
                    float* bounds, float* scratch);

// The most that q . k can be for keys within the bounds: the sum over elements of the larger of
// q min and q max, in 16 lanes. q: [padded], padding 0.
float most_score(const float* q, const float* bounds, int64_t padded);

// What of a context is attended at least: the first segment, the row's own and the one before it.
constexpr int64_t kLeastSegments = 3;

}  // namespace headrace
