// What the tier tests share: temporary folders and files, patterns, scripted backends.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "headrace/base/status.h"
#include "headrace/base/types.h"

namespace headrace::testing_tier {

// A folder that is removed with all it holds. On the disk of the build folder by default.
class TempFolder {
 public:
  explicit TempFolder(const std::string& under = HEADRACE_BINARY_DIR) {
    std::string name = under + "/tier_test_XXXXXX";
    const char* made = mkdtemp(name.data());
    EXPECT_NE(made, nullptr) << name;
    path_ = name;
  }
  ~TempFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;
  std::string file(const std::string& name) const { return path_ + "/" + name; }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// Byte `at` of pattern `seed`: differs between neighbours, pages and seeds.
inline std::byte pattern(uint64_t seed, Bytes at) {
  uint64_t x = (static_cast<uint64_t>(at) >> 3) + seed * 0x9e3779b97f4a7c15ull;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x ^= x >> 27;
  return static_cast<std::byte>(x >> ((at & 7) * 8));
}

inline void fill(std::span<std::byte> to, uint64_t seed, Bytes from = 0) {
  for (size_t i = 0; i < to.size(); ++i)
    to[i] = pattern(seed, from + static_cast<Bytes>(i));
}

// The index of the first byte that is not the pattern's, or -1.
inline Bytes first_difference(std::span<const std::byte> got, uint64_t seed,
                              Bytes from = 0) {
  for (size_t i = 0; i < got.size(); ++i)
    if (got[i] != pattern(seed, from + static_cast<Bytes>(i)))
      return static_cast<Bytes>(i);
  return -1;
}

// Writes a file of `bytes` pattern bytes and drops it from the page cache.
inline void write_pattern_file(const std::string& path, Bytes bytes, uint64_t seed) {
  std::vector<std::byte> data(static_cast<size_t>(bytes));
  fill(data, seed);
  std::FILE* file = std::fopen(path.c_str(), "wb");
  ASSERT_NE(file, nullptr) << path;
  ASSERT_EQ(std::fwrite(data.data(), 1, data.size(), file), data.size());
  ASSERT_EQ(std::fflush(file), 0);
  fsync(fileno(file));
  std::fclose(file);
}

}  // namespace headrace::testing_tier
