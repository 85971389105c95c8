// Random rows of every weight type for the tests of matmul and quantisation.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "headrace/ir/dtype.h"
#include "headrace/kernel/half.h"

namespace headrace {

constexpr std::array<DType, 13> kWeightTypes = {
    DType::kF32,  DType::kF16,  DType::kBF16, DType::kQ4_0, DType::kQ4_1,
    DType::kQ5_0, DType::kQ5_1, DType::kQ8_0, DType::kQ2_K, DType::kQ3_K,
    DType::kQ4_K, DType::kQ5_K, DType::kQ6_K};

// kLine-aligned bytes.
class AlignedBytes {
 public:
  explicit AlignedBytes(size_t bytes)
      : data_(static_cast<std::byte*>(std::aligned_alloc(64, (bytes + 64) / 64 * 64)),
              std::free) {
    std::memset(data_.get(), 0, (bytes + 64) / 64 * 64);
  }
  std::byte* data() { return data_.get(); }
  float* floats() { return reinterpret_cast<float*>(data_.get()); }

 private:
  std::unique_ptr<std::byte, void (*)(void*)> data_;
};

class Random {
 public:
  explicit Random(uint32_t seed) : engine_(seed) {}

  std::vector<float> normals(size_t n) {
    std::normal_distribution<float> normal;
    std::vector<float> out(n);
    for (float& f : out) f = normal(engine_);
    return out;
  }

  // `rows` rows of `k` elements at `out` (any address): random bytes with sensible
  // scales.
  void weights(DType type, int64_t rows, int64_t k, std::byte* out) {
    const DTypeInfo& t = info(type);
    const int64_t blocks = rows * k / t.block_elements;
    if (!t.quantised) return dense(type, blocks, out);
    for (int64_t i = 0; i < blocks * t.block_bytes; ++i) {
      out[i] = static_cast<std::byte>(engine_() & 255);
    }
    for (int64_t b = 0; b < blocks; ++b) {
      for (int at : half_positions(type)) put_half(out + b * t.block_bytes + at);
    }
  }

 private:
  static std::vector<int> half_positions(DType type) {
    switch (type) {
      case DType::kQ4_1:
      case DType::kQ5_1:
      case DType::kQ4_K:
      case DType::kQ5_K: return {0, 2};
      case DType::kQ2_K: return {80, 82};
      case DType::kQ3_K: return {108};
      case DType::kQ6_K: return {208};
      default: return {0};
    }
  }

  void put_half(std::byte* p) {
    std::normal_distribution<float> normal(0.0f, 0.05f);
    const uint16_t h = f32_to_f16(normal(engine_));
    std::memcpy(p, &h, 2);
  }

  void dense(DType type, int64_t count, std::byte* out) {
    std::normal_distribution<float> normal(0.0f, 0.05f);
    for (int64_t i = 0; i < count; ++i) {
      const float f = normal(engine_);
      uint32_t bits;
      std::memcpy(&bits, &f, 4);
      const uint16_t half =
          type == DType::kF16 ? f32_to_f16(f) : static_cast<uint16_t>(bits >> 16);
      if (type == DType::kF32) {
        std::memcpy(out + 4 * i, &f, 4);
      } else {
        std::memcpy(out + 2 * i, &half, 2);
      }
    }
  }

  std::mt19937 engine_;
};

}  // namespace headrace
