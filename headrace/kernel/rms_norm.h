// RMS norm of one row, shared by kRmsNorm and the per-head norms of kRopeKv.
#pragma once

#include <cstddef>
#include <cstdint>

#include "headrace/ir/graph.h"
#include "headrace/kernel/row_ops.h"

namespace headrace {

// 1 / sqrt(mean(x[i]^2) + eps), i < n: computed in double, rounded once.
float rms_scale(const RowOps& ops, const float* x, int64_t n, double eps);

// out [cols] = the weight row [1, cols] (f32, f16 or bf16, any alignment) as f32, plus
// one where add_one says that the file holds w - 1.
void load_norm_weight(const Tensor& weight, const std::byte* bytes, bool add_one,
                      float* out);

}  // namespace headrace
