// Rows of quantised values: f32 to act_q8, and any weight type to f32.
//
// Vocabulary
//   act_q8 row  int8 activations with one f32 scale per block of 32, and the scaled sums
//               that weights with an offset need; docs/decisions/0001-arithmetic.md
//   chunk       64 elements, two blocks; block 2i and block 2i + 1 are interleaved by 4
//               bytes, so that 4-byte lane 2j + b of a chunk is elements 4j .. 4j + 3 of
//               its block b
//   group       256 elements, four chunks.
//
// Promises: bit for bit the same on every instruction set; no allocation; any thread.
#pragma once

#include <cstddef>
#include <cstdint>

#include "headrace/ir/dtype.h"

namespace headrace {

// Quantises `n` floats to one act_q8 row of row_bytes(kActQ8, n) bytes, kLine-aligned,
// padding included (it is zero). A block with an infinity or a NaN gets the scale NaN,
// and so a result that says so; one whose largest magnitude is below 2^-100 becomes zero.
void quantize_row(const float* x, int64_t n, std::byte* row);

// Dequantises one row of `n` elements (whole blocks) of a weight type, or of act_q8, to
// f32. `src` has no alignment but for act_q8 (kLine). The values are those of the GGUF
// reference (gguf-py's quants.py), bit for bit.
void dequantize_row(DType type, const std::byte* src, int64_t n, float* out);

// The planes of an act_q8 row of n elements.
struct ActQ8Row {
  const int8_t* q;   // [round_up(n, 64)], interleaved by chunk
  const float* d;    // [round_up(n, 64) / 32] scale of each block
  const float* s32;  // [round_up(n, 256) / 32] d * (sum of q), of each block
  const float* s16;  // [round_up(n, 256) / 16] the same of each half block
};
ActQ8Row act_q8_planes(const std::byte* row, int64_t n);

}  // namespace headrace
