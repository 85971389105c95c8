// The forms of quantize_row, one an instruction set; see quant.h for what they do.
#pragma once

#include <cstddef>
#include <cstdint>

#include "headrace/kernel/kernel.h"

namespace headrace {

// Below this largest magnitude a block becomes zero: 127 / amax stays far from infinity.
constexpr float kTinyBlock = 0x1p-100f;

using QuantizeRowFn = void (*)(const float* x, int64_t n, std::byte* row);
QuantizeRowFn quantize_row_fn(Isa isa);

void quantize_row_scalar(const float* x, int64_t n, std::byte* row);
void quantize_row_avx2(const float* x, int64_t n, std::byte* row);

}  // namespace headrace
