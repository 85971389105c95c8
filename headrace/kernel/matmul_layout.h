// Sizes that the fast matmuls and their callers agree on. Plain integers, no inline code that an
// instruction set's file could emit for others.
#pragma once

#include <cstdint>

#include "headrace/ir/dtype.h"

namespace headrace {

constexpr int kGroupElements = 256;
// Weight rows unpacked at a time when many activation rows will use them: 16 rows of 1536
// elements are 28 KB (half the level-1 cache), of 8960 they are 165 KB (a sixth of level 2).
constexpr int kUnpackedRows = 16;
// From so many activation rows on weights are unpacked first.
constexpr int64_t kWideRows = 9;

// How far ahead few-row products fetch their weights: 8 KB is 250 ns of a 33 GB/s memory.
constexpr int64_t kFetchAhead = 8192;

// Bytes of one row of a quantised or dense weight (row_bytes()), and of one unpacked row.
Bytes packed_row_bytes(DType type, int64_t k);
Bytes unpacked_row_bytes(DType type, int64_t k);

}  // namespace headrace
