// Checks of weights that both file formats share. Used by their readers only.
#pragma once

#include <vector>

#include "headrace/model/model_file.h"

namespace headrace {

// No weight has more elements, rows or columns: 2^48 keeps every product of ours in 63
// bits.
constexpr int64_t kMaxElements = int64_t{1} << 48;

// Sets source.bytes from shape and type. kBadFile when the columns are not whole blocks
// or the number of elements exceeds kMaxElements.
Status set_bytes(WeightInfo* weight);
// kBadFile when two extents of the same file overlap, with both names and extents.
Status check_overlaps(const std::vector<WeightInfo>& weights);
// Orders by name; kBadFile when a name is there twice.
Status sort_by_name(std::vector<WeightInfo>* weights);

}  // namespace headrace
