#include "headrace/ir/dtype.h"

#include <array>
#include <string>

namespace headrace {
namespace {

constexpr std::array<DTypeInfo, kDTypeCount> kTypes = {{
    {"f32", 1, 4, false},
    {"f16", 1, 2, false},
    {"bf16", 1, 2, false},
    {"i8", 1, 1, false},
    {"i32", 1, 4, false},
    {"q4_0", 32, 18, true},
    {"q4_1", 32, 20, true},
    {"q5_0", 32, 22, true},
    {"q5_1", 32, 24, true},
    {"q8_0", 32, 34, true},
    {"q2_k", 256, 84, true},
    {"q3_k", 256, 110, true},
    {"q4_k", 256, 144, true},
    {"q5_k", 256, 176, true},
    {"q6_k", 256, 210, true},
    {"act_q8", 32, 0, false},
}};

}  // namespace

const DTypeInfo& info(DType type) { return kTypes[static_cast<size_t>(type)]; }

Result<DType> dtype_from_name(std::string_view name) {
  for (int i = 0; i < kDTypeCount; ++i) {
    if (name == kTypes[static_cast<size_t>(i)].name) return static_cast<DType>(i);
  }
  return error(Code::kUnsupported, "no element type is called '%s'", std::string(name).c_str());
}

Bytes row_bytes(DType type, int64_t cols) {
  if (type == DType::kActQ8) {
    // Planes of one row: int8 values, f32 scales of each 32, f32 scaled sums of each 32 and each
    // 16 (the sums padded to whole groups of 256 elements).
    const int64_t padded = round_up(cols, 64);
    const int64_t sums = round_up(cols, 256) / 32 * 3;
    return round_up(padded + padded / 32 * 4 + sums * 4, kLine);
  }
  const DTypeInfo& t = info(type);
  HR_CHECK(cols % t.block_elements == 0, "a row holds whole blocks");
  return cols / t.block_elements * t.block_bytes;
}

}  // namespace headrace
