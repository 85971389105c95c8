// Sizes that the fast matmuls and their callers agree on. Plain integers, no inline code
// that an instruction set's file could emit for others.
#pragma once

#include <cstdint>

#include "headrace/ir/dtype.h"

namespace headrace {

constexpr int kGroupElements = 256;
// Weight rows unpacked at a time when many activation rows will use them. 4 to 32 are
// within 3 % of each other; 8 rows of 8960 elements are 84 KB, a twelfth of a level-2
// cache.
constexpr int kUnpackedRows = 8;
// From so many activation rows on weights are unpacked first (measured: 5 rows gain 20
// %).
constexpr int64_t kWideRows = 5;

// How far ahead few-row products fetch their weights: 8 KB is 250 ns of a 33 GB/s memory.
constexpr int64_t kFetchAhead = 8192;

// Bytes of one unpacked row of a quantised weight.
Bytes unpacked_row_bytes(DType type, int64_t k);

}  // namespace headrace
