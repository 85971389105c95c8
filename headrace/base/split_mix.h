// SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014):
// 64 bits of a counter, so that what is drawn depends on the key alone. No secrets may hang on it.
#pragma once

#include <cstdint>

namespace headrace {

// The odd number that the counter goes up by.
constexpr uint64_t kSplitMixStep = 0x9e3779b97f4a7c15u;

// Its finalizer: every bit of x reaches every bit of the result.
constexpr uint64_t mixed(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

// In [0, 1), from the upper 53 bits.
constexpr double unit_of(uint64_t bits) { return static_cast<double>(bits >> 11) * 0x1p-53; }

// A sequence of such numbers.
class SplitMix {
 public:
  constexpr explicit SplitMix(uint64_t seed) : at_(seed) {}

  constexpr uint64_t next() { return mixed(at_ += kSplitMixStep); }
  // In [0, n); 0 when n is 0.
  constexpr int32_t below(uint64_t n) { return static_cast<int32_t>(next() % (n == 0 ? 1 : n)); }
  constexpr double unit() { return unit_of(next()); }

 private:
  uint64_t at_;
};

}  // namespace headrace
