// Prefix stores of small made-up entries, whose bytes follow from hash and layer. For tests.
#pragma once

#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "headrace/base/split_mix.h"
#include "headrace/kv/prefix_store.h"

namespace headrace::testing {

inline PrefixOptions small_options() {
  PrefixOptions options;
  options.layout.model = 0x1234;
  options.layout.format = KvFormat::kQ8;
  options.layout.tile_bytes = {1024, 0, 3008, 64};  // on pages, nothing, and off pages
  options.layout.label = "tiny";
  options.staging_bytes = 8 * kMiB;
  return options;
}

inline std::vector<int32_t> tokens_of(uint64_t seed, int64_t count) {
  SplitMix random(seed);
  std::vector<int32_t> tokens(static_cast<size_t>(count));
  for (int32_t& token : tokens) token = random.below(50000);
  return tokens;
}

// What an entry holds of a layer.
inline std::vector<std::byte> bytes_of(ChainHash hash, size_t layer, size_t count) {
  SplitMix random(hash.lo ^ (hash.hi * 31) ^ layer);
  std::vector<std::byte> bytes(count);
  for (std::byte& b : bytes) b = static_cast<std::byte>(random.next() >> 56);
  return bytes;
}

// Puts all whole tiles of `tokens`, entry by entry; the answer to the last.
inline PrefixPut put_all(PrefixStore& store, std::span<const int32_t> tokens,
                         double seconds = 0.5) {
  ChainHash parent = store.root();
  PrefixPut last = PrefixPut::kDropped;
  for (size_t at = 0; at + kKvTile <= tokens.size();) {
    const size_t n = std::min<size_t>(kChainTokens, (tokens.size() - at) / kKvTile * kKvTile);
    const auto part = tokens.subspan(at, n);
    const ChainHash hash = chain_next(parent, part);
    const auto put = store.put(parent, static_cast<int64_t>(at), part, seconds,
                               [&](size_t layer, std::span<std::byte> out) -> Status {
                                 const auto bytes = bytes_of(hash, layer, out.size());
                                 if (!bytes.empty()) {
                                   std::memcpy(out.data(), bytes.data(), bytes.size());
                                 }
                                 return {};
                               });
    HR_CHECK(put.ok(), "fill does not fail");
    last = *put;
    parent = hash;
    at += n;
  }
  return last;
}

enum class Read { kRight, kWrong, kMiss };
// Reads an entry whole and compares it with what was put.
inline Read read_back(PrefixStore& store, const PrefixEntry& entry) {
  bool right = true;
  size_t layers = 0;
  const Status status =
      store.read(entry, [&](size_t layer, std::span<const std::byte> bytes) -> Status {
        const auto want = bytes_of(entry.hash, layer, bytes.size());
        right = right && std::equal(want.begin(), want.end(), bytes.begin(), bytes.end());
        layers += layer == layers;
        return {};
      });
  if (!right) return Read::kWrong;
  return status.ok() && layers == 4 ? Read::kRight : Read::kMiss;
}

// How many of the tokens are found and read back; -1 when something wrong was.
inline int64_t restored(PrefixStore& store, std::span<const int32_t> tokens) {
  int64_t count = 0;
  for (const PrefixEntry& entry : store.lookup(tokens).entries) {
    const Read read = read_back(store, entry);
    if (read == Read::kWrong) return -1;
    if (read == Read::kMiss) break;
    count += entry.tokens;
  }
  return count;
}

inline std::string file_text(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(in), {});
}

inline void write_text(const std::string& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

// Names in the folder that are not the lock's, ascending.
inline std::vector<std::string> names_in(const std::string& folder) {
  auto names = prefix_files(folder);
  HR_CHECK(names.ok(), "the folder is read");
  std::erase(*names, "store.lock");
  return *names;
}

}  // namespace headrace::testing
