// Elements of rows of type c (f32, bf16 or f16) as Lanes. Included after a lanes_*.h.
#pragma once

#include <cstddef>
#include <cstdint>

namespace headrace {
namespace {

// Element i of a row; the address may be any.
struct F32 {
  static constexpr int64_t kBytes = 4;
  template <typename Size>
  static Lanes load(const std::byte* row, int64_t i, Size size) {
    return Lanes::load(reinterpret_cast<const float*>(row + 4 * i), size);
  }
  template <typename Size>
  static void store(Lanes x, std::byte* row, int64_t i, Size size) {
    x.store(reinterpret_cast<float*>(row + 4 * i), size);
  }
};
struct Bf16 {
  static constexpr int64_t kBytes = 2;
  template <typename Size>
  static Lanes load(const std::byte* row, int64_t i, Size size) {
    return Lanes::load_bf16(row + 2 * i, size);
  }
  template <typename Size>
  static void store(Lanes x, std::byte* row, int64_t i, Size size) {
    x.store_bf16(row + 2 * i, size);
  }
};
struct F16 {
  static constexpr int64_t kBytes = 2;
  template <typename Size>
  static Lanes load(const std::byte* row, int64_t i, Size size) {
    return Lanes::load_f16(row + 2 * i, size);
  }
  template <typename Size>
  static void store(Lanes x, std::byte* row, int64_t i, Size size) {
    x.store_f16(row + 2 * i, size);
  }
};

}  // namespace
}  // namespace headrace
