// Values of parameters from one element type to another: f32, bf16 and f16.
#pragma once

#include <span>

#include "headrace/ir/dtype.h"

namespace headrace {

// Rounds `from` to elements of `dtype` at `to`.
void convert(std::span<const float> from, DType dtype, std::byte* to);
// Elements of `dtype` at `from` as f32, exactly.
void convert(DType dtype, const std::byte* from, std::span<float> to);

}  // namespace headrace
