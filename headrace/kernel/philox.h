// Philox4x32-10: a counter-based random number generator (Salmon, Moraes, Dror and Shaw, "Parallel
// Random Numbers: As Easy as 1, 2, 3", SC 2011). Block `counter` under `key` is four independent
// words; no state, so any number can be drawn again, alone and in any order.
//
// Training uses blocks as follows (train_rows_inl.h has the same over Lanes): the 64 values from
// 64 b on of a row take the blocks of counters {16 b + l, row, stream, purpose}, l < 16: word w of
// one belongs to value 64 b + 16 w + l. So 16 adjacent values are one word of 16 blocks, and vectors
// need no shuffle.
#pragma once

#include <array>
#include <cstdint>

namespace headrace {

namespace philox {
constexpr int kRounds = 10;
constexpr uint32_t kMultiply0 = 0xD2511F53u, kMultiply1 = 0xCD9E8D57u;
constexpr uint32_t kWeyl0 = 0x9E3779B9u, kWeyl1 = 0xBB67AE85u;
// What numbers are for: the last word of the counter.
constexpr uint32_t kDropout = 0, kRounding = 1;
}  // namespace philox

inline std::array<uint32_t, 4> philox4x32(std::array<uint32_t, 4> counter, uint64_t seed) {
  auto key0 = static_cast<uint32_t>(seed), key1 = static_cast<uint32_t>(seed >> 32);
  for (int round = 0; round < philox::kRounds; ++round) {
    const uint64_t a = static_cast<uint64_t>(counter[0]) * philox::kMultiply0;
    const uint64_t b = static_cast<uint64_t>(counter[2]) * philox::kMultiply1;
    counter = {static_cast<uint32_t>(b >> 32) ^ counter[1] ^ key0, static_cast<uint32_t>(b),
               static_cast<uint32_t>(a >> 32) ^ counter[3] ^ key1, static_cast<uint32_t>(a)};
    key0 += philox::kWeyl0;
    key1 += philox::kWeyl1;
  }
  return counter;
}

}  // namespace headrace
