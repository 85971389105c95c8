#include "headrace/train/convert.h"

#include <cstring>

#include "headrace/kernel/half.h"

namespace headrace {
namespace {

bool is_f16(DType dtype) {
  HR_CHECK(dtype == DType::kF16 || dtype == DType::kBF16, "parameters are f32, bf16 or f16");
  return dtype == DType::kF16;
}

}  // namespace

void convert(std::span<const float> from, DType dtype, std::byte* to) {
  if (dtype == DType::kF32) {
    std::memcpy(to, from.data(), from.size_bytes());
    return;
  }
  const bool f16 = is_f16(dtype);
  for (size_t i = 0; i < from.size(); ++i) {
    const uint16_t bits = f16 ? f32_to_f16(from[i]) : f32_to_bf16(from[i]);
    std::memcpy(to + 2 * i, &bits, 2);
  }
}

void convert(DType dtype, const std::byte* from, std::span<float> to) {
  if (dtype == DType::kF32) {
    std::memcpy(to.data(), from, to.size_bytes());
    return;
  }
  const bool f16 = is_f16(dtype);
  for (size_t i = 0; i < to.size(); ++i) {
    uint16_t bits;
    std::memcpy(&bits, from + 2 * i, 2);
    to[i] = f16 ? f16_to_f32(bits) : bf16_to_f32(bits);
  }
}

}  // namespace headrace
