// Chain hash: what KV holds, as 128 bits: the model, the format, and each token from position 0.
//
// KV of a position depends on all tokens before it, so a run of tokens is named by the hash of what
// came before it and of its own tokens (as vLLM's automatic prefix caching and Nix's store paths):
//   start = H(version, model fingerprint, format, salt)
//   next  = H(previous, tokens)
// Equal hashes mean equal positions too, since every chain begins at position 0.
//
// Entries are of kChainTokens tokens, whatever the size of a block, so that what one machine saved
// another finds. H is XXH3 (128 bits, github.com/Cyan4973/xxHash, doc/xxhash_spec.md) of
// little-endian bytes: fast and well spread, but no defence against somebody who makes collisions
// on purpose; whoever can compare the tokens themselves does so.
#pragma once

#include <compare>
#include <cstdint>
#include <span>
#include <string>

#include "headrace/ir/kv.h"

namespace headrace {

constexpr int64_t kChainTokens = 256;

struct ChainHash {
  uint64_t hi = 0, lo = 0;  // {0, 0}: none
  auto operator<=>(const ChainHash&) const = default;
  bool valid() const { return hi != 0 || lo != 0; }
};

// The hash of no tokens at all. `salt`: whatever else the bytes depend on (a changed rope scaling),
// or that keeps two users' KV apart.
ChainHash chain_start(uint64_t model_fingerprint, KvFormat format, uint64_t salt = 0);

// `previous`, continued by `tokens`: one entry, of any size (kChainTokens but for the last).
ChainHash chain_next(ChainHash previous, std::span<const int32_t> tokens);

// chain_next() of each whole kChainTokens of `tokens`, then of the rest if there is one. The same
// for a run and for its parts, as long as all but the last part are multiples of kChainTokens.
ChainHash chain_over(ChainHash previous, std::span<const int32_t> tokens);

// 32 hexadecimal digits, for file names.
std::string to_text(ChainHash hash);

}  // namespace headrace
