// decode_group: the reference reading of every quantised weight type.
//
// Every type is seen as w = scale * u + offset with u an unsigned byte, one scale each 16
// elements, one offset each 16 or 32 (docs/decisions/0001-arithmetic.md). Block layouts
// are those of the GGUF specification (ggml-common.h; gguf-py's quants.py is the
// executable form).
#pragma once

#include <cstddef>
#include <cstdint>

#include "headrace/ir/dtype.h"

namespace headrace {

constexpr int kGroup = 256;  // elements

struct WeightGroup {
  uint8_t u[kGroup];  // in the order of the row
  float scale[16];    // of each 16 elements; exact products of an f16 and a small integer
  float offset[16];   // of each offset_elements(type); unused entries are 0
};

// 32, or 16 for the types whose offset changes every 16 elements.
int offset_elements(DType type);

// Decodes group number `group` of a row of `n` elements at `row` (any alignment). Blocks
// past the end of the row decode to zeros throughout. Precondition: info(type).quantised.
void decode_group(DType type, const std::byte* row, int64_t n, int64_t group,
                  WeightGroup& out);

}  // namespace headrace
