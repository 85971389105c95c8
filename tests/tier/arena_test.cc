#include "headrace/tier/arena.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

namespace headrace {
namespace {

int resident_pages(const Arena& arena) {
  std::vector<unsigned char> pages(static_cast<size_t>(arena.bytes() / kPage));
  EXPECT_EQ(mincore(arena.base(), static_cast<size_t>(arena.bytes()), pages.data()), 0);
  int count = 0;
  for (unsigned char page : pages) count += page & 1;
  return count;
}

TEST(Arena, StartsOnAHugePageAndRoundsItsSizeUpToAPage) {
  auto arena = Arena::create(3 * kMiB + 1);
  ASSERT_TRUE(arena.ok());
  EXPECT_EQ(arena->bytes(), 3 * kMiB + kPage);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(arena->base()) % static_cast<uintptr_t>(2 * kMiB),
            0u);
}

TEST(Arena, IsZeroWhenFresh) {
  auto arena = Arena::create(64 * kKiB);
  ASSERT_TRUE(arena.ok());
  const auto all = arena->at(0, arena->bytes());
  EXPECT_TRUE(
      std::all_of(all.begin(), all.end(), [](std::byte b) { return b == std::byte{0}; }));
}

TEST(Arena, CommitsNothingUntilItIsTouched) {
  auto arena = Arena::create(8 * kMiB);
  ASSERT_TRUE(arena.ok());
  EXPECT_EQ(resident_pages(*arena), 0);
  arena->touch(4 * kMiB + 5, 1);
  const int one_touch = resident_pages(*arena);
  EXPECT_GE(one_touch, 1);
  EXPECT_LE(one_touch, 512) << "more than one huge page for one byte";
  arena->touch(0, arena->bytes());
  EXPECT_EQ(resident_pages(*arena), 2048);
}

TEST(Arena, TouchKeepsTheBytes) {
  auto arena = Arena::create(1 * kMiB);
  ASSERT_TRUE(arena.ok());
  for (std::byte& b : arena->at(0, arena->bytes())) b = std::byte{0x5a};
  arena->touch(0, arena->bytes());
  for (std::byte b : arena->at(0, arena->bytes())) ASSERT_EQ(b, std::byte{0x5a});
}

TEST(Arena, MovesLeaveTheSourceEmpty) {
  auto made = Arena::create(64 * kKiB);
  ASSERT_TRUE(made.ok());
  Arena first = std::move(made).value();
  first.at(100, 1)[0] = std::byte{7};
  Arena second = std::move(first);
  EXPECT_EQ(first.base(), nullptr);
  EXPECT_EQ(second.at(100, 1)[0], std::byte{7});
  auto other = Arena::create(4 * kKiB);
  ASSERT_TRUE(other.ok());
  second = std::move(*other);
  EXPECT_EQ(second.bytes(), 4 * kKiB);
}

TEST(Arena, RefusesSizesThatMeanNothingOrCannotBeMapped) {
  EXPECT_EQ(Arena::create(0).status().code(), Code::kUsage);
  EXPECT_EQ(Arena::create(-5).status().code(), Code::kUsage);
  EXPECT_EQ(Arena::create(int64_t{1} << 50).status().code(), Code::kDoesNotFit);
}

TEST(ArenaDeathTest, AbortsForARangeOutsideIt) {
  auto arena = Arena::create(64 * kKiB);
  ASSERT_TRUE(arena.ok());
  EXPECT_DEATH(arena->at(0, 64 * kKiB + 1), "outside the arena");
  EXPECT_DEATH(arena->at(-1, 1), "outside the arena");
  EXPECT_DEATH(arena->at(INT64_MAX, INT64_MAX), "outside the arena");
  EXPECT_DEATH(arena->touch(64 * kKiB, 1), "outside the arena");
}

}  // namespace
}  // namespace headrace
