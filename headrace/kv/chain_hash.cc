#include "headrace/kv/chain_hash.h"

#define XXH_INLINE_ALL  // no library to map: what is mapped counts against small budgets
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <bit>

namespace headrace {
namespace {

static_assert(std::endian::native == std::endian::little, "hashes are of little-endian bytes");

// Goes up whenever the bytes of a tile change their meaning.
constexpr uint64_t kVersion = 1;

ChainHash result(XXH128_hash_t h) {
  // {0, 0} stands for none.
  return h.high64 == 0 && h.low64 == 0 ? ChainHash{0, 1} : ChainHash{h.high64, h.low64};
}

}  // namespace

ChainHash chain_start(uint64_t model_fingerprint, KvFormat format, uint64_t salt) {
  const std::array<uint64_t, 4> key = {kVersion, model_fingerprint, static_cast<uint64_t>(format),
                                       salt};
  return result(XXH3_128bits(key.data(), sizeof(key)));
}

ChainHash chain_next(ChainHash previous, std::span<const int32_t> tokens) {
  const std::array<uint64_t, 2> before = {previous.hi, previous.lo};
  XXH3_state_t state;
  XXH3_INITSTATE(&state);
  XXH3_128bits_reset(&state);
  XXH3_128bits_update(&state, before.data(), sizeof(before));
  XXH3_128bits_update(&state, tokens.data(), tokens.size_bytes());
  return result(XXH3_128bits_digest(&state));
}

ChainHash chain_over(ChainHash previous, std::span<const int32_t> tokens) {
  constexpr auto kEntry = static_cast<size_t>(kChainTokens);
  for (size_t i = 0; i < tokens.size(); i += kEntry) {
    previous = chain_next(previous, tokens.subspan(i, std::min(kEntry, tokens.size() - i)));
  }
  return previous;
}

std::string to_text(ChainHash hash) {
  return text_of("%016llx%016llx", static_cast<unsigned long long>(hash.hi),
                 static_cast<unsigned long long>(hash.lo));
}

}  // namespace headrace
