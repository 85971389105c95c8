// Lanes: 16 f32 lanes as a plain array, for processors without vector instructions and as the
// reference of lanes_avx2.h and lanes_avx512.h: the same interface, one lane after another.
//
// What is written once over Lanes and compiled for each instruction set gives the same bits in
// all of them, because every function here is one IEEE operation a lane.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "headrace/kernel/half.h"

namespace headrace {
namespace {

// How many elements of a group of 16 exist.
struct Full {};
struct Part {
  int64_t count;
};
constexpr int64_t count_of(Full) { return 16; }
constexpr int64_t count_of(Part part) { return part.count; }

struct Lanes {
  float v[16];

  template <typename F>
  static Lanes each(F f) {
    Lanes x;
    for (int i = 0; i < 16; ++i) x.v[i] = f(i);
    return x;
  }
  static Lanes splat(float x) {
    return each([&](int) { return x; });
  }
  static Lanes zero() { return splat(0); }
  static Lanes load(const float* p) { return load(p, Full{}); }
  // Absent lanes are 0. `p` may have any address.
  template <typename Size>
  static Lanes load(const float* p, Size size) {
    Lanes x = zero();
    std::memcpy(x.v, p, static_cast<size_t>(count_of(size)) * 4);
    return x;
  }
  template <typename Size>
  static Lanes load_bf16(const void* p, Size size) {
    uint16_t bits[16] = {};
    std::memcpy(bits, p, static_cast<size_t>(count_of(size)) * 2);
    return each([&](int i) { return bf16_to_f32(bits[i]); });
  }
  template <typename Size>
  static Lanes load_f16(const void* p, Size size) {
    uint16_t bits[16] = {};
    std::memcpy(bits, p, static_cast<size_t>(count_of(size)) * 2);
    return each([&](int i) { return f16_to_f32(bits[i]); });
  }
  // 0, 1, .. 15.
  static Lanes index() {
    return each([](int i) { return static_cast<float>(i); });
  }

  void store(float* p) const { store(p, Full{}); }
  template <typename Size>
  void store(float* p, Size size) const {
    std::memcpy(p, v, static_cast<size_t>(count_of(size)) * 4);
  }
  // To nearest even.
  template <typename Size>
  void store_f16(void* p, Size size) const {
    uint16_t bits[16];
    for (int i = 0; i < 16; ++i) bits[i] = f32_to_f16(v[i]);
    std::memcpy(p, bits, static_cast<size_t>(count_of(size)) * 2);
  }
  template <typename Size>
  void store_bf16(void* p, Size size) const {
    uint16_t bits[16];
    for (int i = 0; i < 16; ++i) bits[i] = f32_to_bf16(v[i]);
    std::memcpy(p, bits, static_cast<size_t>(count_of(size)) * 2);
  }
  // Up with the probability that is the part cut off: the low 16 bits of `random` are added.
  template <typename Words, typename Size>
  void store_bf16_random(void* p, const Words& random, Size size) const {
    uint16_t bits[16];
    for (int i = 0; i < 16; ++i) {
      const uint32_t sum = std::bit_cast<uint32_t>(v[i]) + (random.v[i] & 0xffffu);
      bits[i] = std::isnan(v[i]) ? f32_to_bf16(v[i]) : static_cast<uint16_t>(sum >> 16);
    }
    std::memcpy(p, bits, static_cast<size_t>(count_of(size)) * 2);
  }

  // Every two lanes exchanged.
  Lanes swap_pairs() const {
    return each([&](int i) { return v[i ^ 1]; });
  }
  float max_lane() const {
    Lanes x = *this;
    for (int width = 8; width > 0; width /= 2) {
      for (int l = 0; l < width; ++l) {
        x.v[l] = x.v[l] > x.v[l + width] ? x.v[l] : x.v[l + width];
      }
    }
    return x.v[0];
  }
  // l + l+8, then +4, +2, +1.
  float tree_sum() const {
    Lanes x = *this;
    for (int width = 8; width > 0; width /= 2) {
      for (int l = 0; l < width; ++l) x.v[l] += x.v[l + width];
    }
    return x.v[0];
  }
};

inline Lanes operator+(const Lanes& a, const Lanes& b) {
  return Lanes::each([&](int i) { return a.v[i] + b.v[i]; });
}
inline Lanes operator-(const Lanes& a, const Lanes& b) {
  return Lanes::each([&](int i) { return a.v[i] - b.v[i]; });
}
inline Lanes operator*(const Lanes& a, const Lanes& b) {
  return Lanes::each([&](int i) { return a.v[i] * b.v[i]; });
}
inline Lanes operator/(const Lanes& a, const Lanes& b) {
  return Lanes::each([&](int i) { return a.v[i] / b.v[i]; });
}
inline Lanes fma(const Lanes& a, const Lanes& b, const Lanes& c) {
  return Lanes::each([&](int i) { return std::fmaf(a.v[i], b.v[i], c.v[i]); });
}
// a < b ? a : b, and a > b ? a : b: b where either is NaN.
inline Lanes min(const Lanes& a, const Lanes& b) {
  return Lanes::each([&](int i) { return a.v[i] < b.v[i] ? a.v[i] : b.v[i]; });
}
inline Lanes max(const Lanes& a, const Lanes& b) {
  return Lanes::each([&](int i) { return a.v[i] > b.v[i] ? a.v[i] : b.v[i]; });
}
// a < b ? x : y.
inline Lanes where_less(const Lanes& a, const Lanes& b, const Lanes& x, const Lanes& y) {
  return Lanes::each([&](int i) { return a.v[i] < b.v[i] ? x.v[i] : y.v[i]; });
}
inline Lanes root(const Lanes& a) {
  return Lanes::each([&](int i) { return std::sqrt(a.v[i]); });
}
inline Lanes absolute(const Lanes& a) {
  return Lanes::each([&](int i) { return std::fabs(a.v[i]); });
}
inline Lanes negative(const Lanes& a) {
  return Lanes::each([&](int i) { return -a.v[i]; });
}
// The magnitude of a >= 0 with the sign of b.
inline Lanes with_sign(const Lanes& a, const Lanes& b) {
  return Lanes::each([&](int i) { return std::copysign(a.v[i], b.v[i]); });
}
// y * 2^n, where the low bits of t are n.
inline Lanes add_exponent(const Lanes& y, const Lanes& t) {
  return Lanes::each([&](int i) {
    return std::bit_cast<float>(std::bit_cast<uint32_t>(y.v[i]) +
                                (std::bit_cast<uint32_t>(t.v[i]) << 23));
  });
}

// 16 words of 32 bits.
struct Words {
  uint32_t v[16];

  static Words splat(uint32_t x) {
    Words w;
    for (uint32_t& word : w.v) word = x;
    return w;
  }
  // 0, 1, .. 15.
  static Words index() {
    Words w;
    for (uint32_t i = 0; i < 16; ++i) w.v[i] = i;
    return w;
  }
  // The high 24 bits as a number below 2^24.
  Lanes high24() const {
    return Lanes::each([&](int i) { return static_cast<float>(v[i] >> 8); });
  }
};
inline Words operator+(Words a, const Words& b) {
  for (int i = 0; i < 16; ++i) a.v[i] += b.v[i];
  return a;
}
inline Words operator^(Words a, const Words& b) {
  for (int i = 0; i < 16; ++i) a.v[i] ^= b.v[i];
  return a;
}
// Both halves of the 64-bit products of a with `b`, the same in every lane.
inline void multiply(const Words& a, uint32_t b, Words& high, Words& low) {
  for (int i = 0; i < 16; ++i) {
    const uint64_t product = static_cast<uint64_t>(a.v[i]) * b;
    low.v[i] = static_cast<uint32_t>(product);
    high.v[i] = static_cast<uint32_t>(product >> 32);
  }
}

// 16 lanes of double.
struct DoubleLanes {
  double v[16] = {};

  void add(const Lanes& x) {
    for (int i = 0; i < 16; ++i) v[i] += static_cast<double>(x.v[i]);
  }
  void add_square(const Lanes& x) { add_product(x, x); }
  void add_product(const Lanes& x, const Lanes& y) {
    for (int i = 0; i < 16; ++i) {
      v[i] = std::fma(static_cast<double>(x.v[i]), static_cast<double>(y.v[i]), v[i]);
    }
  }
  double tree_sum() const {
    DoubleLanes x = *this;
    for (int width = 8; width > 0; width /= 2) {
      for (int l = 0; l < width; ++l) x.v[l] += x.v[l + width];
    }
    return x.v[0];
  }
};

// See lanes_avx512.h.
constexpr int kTileLanes = 1;

// to[4][4] = from[4][4] transposed.
inline void transpose4(const float* from, int64_t from_stride, float* to,
                       int64_t to_stride) {
  for (int64_t i = 0; i < 4; ++i) {
    for (int64_t j = 0; j < 4; ++j) to[j * to_stride + i] = from[i * from_stride + j];
  }
}

}  // namespace
}  // namespace headrace
