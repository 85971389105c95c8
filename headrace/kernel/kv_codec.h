// KvCodec: sealed KV tiles in their format (ir/kv.h), a part at a time.
//
// Vocabulary
//   part     K or V of one (tile, kv head): 64 rows of head_dim elements, in
//            kv_tile_bytes(format, 1, head_dim) / 2 bytes. A tile is [kv_heads][K, V] of parts.
//   padded   head_dim rounded up to 16 elements.
//   group    32 adjacent elements of a row (its last group may be shorter), which share a scale.
//
//   f16, bf16   [64][padded] of 16 bits
//   q8          int8 q[64][padded], f16 scale[64][groups]; value = scale q
//   q4          u4 q[64][padded], f16 scale[64][groups], f16 least[64][groups], of the row
//               multiplied by a Hadamard matrix; value = least + scale q. Each 16 elements are
//               8 bytes: element i in the low half of byte i, element i + 8 in the high half.
//
// Promises
//   1. The same bytes and the same floats on every instruction set, whatever the input.
//   2. A row's bytes depend on that row alone. What lies in the padding of the input is not read.
//   3. A group with an infinity or a NaN decodes to NaN throughout; padding decodes to +0.
//   4. No allocation; any thread.
// Decision, error bounds and measurements: docs/decisions/0008-kv-formats.md.
#pragma once

#include <cstddef>
#include <cstdint>

#include "headrace/ir/kv.h"

namespace headrace {

// Whether kv_decode_rows gives rows multiplied by the Hadamard matrix of hadamard_rotate: scores
// against such K take a rotated q, and a sum of such V is rotated back once at its end.
constexpr bool kv_rotates(KvFormat format) { return format == KvFormat::kQ4; }

// Encodes 64 rows [64][padded] of 16-bit elements (f16; bf16 when the format is bf16) to one part.
// `out`: kv_tile_bytes(format, 1, head_dim) / 2 bytes, kLine-aligned; all of them are written.
// head_dim: 1 .. 512.
void kv_encode_part(KvFormat format, const uint16_t* rows16, int64_t head_dim, std::byte* out);

// Decodes rows [lo, hi) of a part to out[64][padded], rows lo .. hi - 1 of it, padding included;
// see kv_rotates. `part` is kLine-aligned, `out` has the alignment of a float.
void kv_decode_rows(KvFormat format, const std::byte* part, int64_t head_dim, int64_t lo,
                    int64_t hi, float* out);

// Multiplies row[0, head_dim) by an orthonormal symmetric matrix, in place: a Hadamard matrix of
// the largest power of two that divides head_dim (Sylvester's, divided by the root of its size)
// for each block of that many elements. So it is its own inverse, up to rounding. row[head_dim,
// padded) is not touched. A NaN result is NaN on every instruction set; its payload may differ.
void hadamard_rotate(float* row, int64_t head_dim, int64_t padded);

}  // namespace headrace
