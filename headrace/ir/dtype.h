// Element types: what a weight file may hold, what activations and KV are held in.
//
// Vocabulary: a block is the smallest run of elements along a row that stands alone (1 for plain
// types, 32 or 256 for quantised ones); a row is the innermost dimension and holds whole blocks.
// Block layouts are those of the GGUF specification (ggml's docs/gguf.md and its quantisation
// tables); act_q8 is ours and is defined in docs/decisions/0001-arithmetic.md.
#pragma once

#include <cstdint>
#include <string_view>

#include "headrace/base/status.h"
#include "headrace/base/types.h"

namespace headrace {

enum class DType : uint8_t {
  kF32,
  kF16,
  kBF16,
  kI8,
  kI32,
  kQ4_0,
  kQ4_1,
  kQ5_0,
  kQ5_1,
  kQ8_0,
  kQ2_K,
  kQ3_K,
  kQ4_K,
  kQ5_K,
  kQ6_K,
  kActQ8,  // int8 activations with one f32 scale per 32, see act_q8 in kernel/
};
constexpr int kDTypeCount = 16;

struct DTypeInfo {
  const char* name;     // lower case, as in text forms: "q4_k"
  int block_elements;   // elements a block
  int block_bytes;      // bytes a block; 0 for act_q8, whose rows are laid out in planes
  bool quantised;       // a weight type whose dot product takes act_q8 activations
};

const DTypeInfo& info(DType type);  // lives as long as the program
inline const char* name_of(DType type) { return info(type).name; }
Result<DType> dtype_from_name(std::string_view name);

// Bytes of one row of `cols` elements. Precondition: cols is a whole number of blocks
// (for act_q8: any cols; a row is padded to 64 elements and to kLine bytes).
Bytes row_bytes(DType type, int64_t cols);

}  // namespace headrace
