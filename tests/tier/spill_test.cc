// Buffers put aside in scratch files: exact bytes, room used again, refusals.
#include "headrace/tier/spill.h"

#include <gtest/gtest.h>

#include <map>
#include <random>

#include "tests/tier/tier_testing.h"

namespace headrace {
namespace {

using testing_tier::TempFolder;

std::vector<std::byte> pattern(Bytes bytes, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<std::byte> out(static_cast<size_t>(bytes));
  for (size_t i = 0; i < out.size(); i += 512) out[i] = static_cast<std::byte>(random());
  if (!out.empty()) out.back() = static_cast<std::byte>(seed);
  return out;
}

TEST(Spill, BuffersOfAnySizeComeBackInAnyOrder) {
  const TempFolder folder;
  auto spill = Spill::open(folder.path());
  ASSERT_TRUE(spill.ok()) << spill.status().message();
  std::mt19937_64 random(3);
  std::map<int64_t, std::vector<std::byte>> there;
  Bytes most = 0;
  for (int i = 0; i < 200; ++i) {
    if (there.empty() || random() % 5 < 3) {
      const Bytes bytes = 1 + static_cast<Bytes>(random() % (i % 10 == 0 ? 9 * kMiB : 100 * kKiB));
      std::vector<std::byte> buffer = pattern(bytes, random());
      const auto id = (*spill)->put(buffer);
      ASSERT_TRUE(id.ok()) << id.status().message();
      EXPECT_TRUE(there.emplace(*id, std::move(buffer)).second) << "numbers are given out once";
    } else {
      const auto at = std::next(there.begin(), static_cast<long>(random() % there.size()));
      std::vector<std::byte> got(at->second.size());
      ASSERT_TRUE((*spill)->get(at->first, got).ok());
      EXPECT_TRUE(got == at->second);
      ASSERT_TRUE((*spill)->drop(at->first).ok());
      there.erase(at);
    }
    most = std::max(most, (*spill)->held_bytes());
  }
  for (const auto& [id, want] : there) {
    std::vector<std::byte> part(want.size() / 2);
    ASSERT_TRUE((*spill)->get(id, part).ok());
    EXPECT_TRUE(std::equal(part.begin(), part.end(), want.begin()));
    ASSERT_TRUE((*spill)->drop(id).ok());
  }
  EXPECT_EQ((*spill)->held_bytes(), 0);
  EXPECT_GE((*spill)->bytes_on_disk(), most);
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

TEST(Spill, RoomThatWasDroppedIsUsedAgain) {
  const TempFolder folder;
  auto spill = Spill::open(folder.path());
  ASSERT_TRUE(spill.ok());
  const std::vector<std::byte> buffer = pattern(3 * kMiB + 1, 7);
  Bytes on_disk = 0;
  for (int round = 0; round < 200; ++round) {  // 600 MiB in all
    const auto id = (*spill)->put(buffer);
    ASSERT_TRUE(id.ok());
    ASSERT_TRUE((*spill)->drop(*id).ok());
    if (round == 0) on_disk = (*spill)->bytes_on_disk();
  }
  EXPECT_EQ((*spill)->bytes_on_disk(), on_disk);
}

TEST(Spill, NeighboursThatAreDroppedBecomeOneRoom) {
  const TempFolder folder;
  auto spill = Spill::open(folder.path());
  ASSERT_TRUE(spill.ok());
  const std::vector<std::byte> small = pattern(64 * kMiB, 1);
  std::vector<int64_t> ids;
  for (int i = 0; i < 4; ++i) ids.push_back((*spill)->put(small).value());
  const Bytes on_disk = (*spill)->bytes_on_disk();
  for (const int i : {1, 3, 2, 0}) ASSERT_TRUE((*spill)->drop(ids[static_cast<size_t>(i)]).ok());
  ASSERT_TRUE((*spill)->put(pattern(4 * 64 * kMiB, 2)).ok());
  EXPECT_EQ((*spill)->bytes_on_disk(), on_disk);
}

TEST(Spill, WhatCannotBeIsRefusedByName) {
  const TempFolder folder;
  EXPECT_EQ(Spill::open(folder.path() + "/nowhere").status().code(), Code::kIo);
  auto spill = Spill::open(folder.path());
  ASSERT_TRUE(spill.ok());
  EXPECT_EQ((*spill)->put({}).status().code(), Code::kUsage);
  const std::vector<std::byte> buffer = pattern(100, 1);
  const auto id = (*spill)->put(buffer);
  ASSERT_TRUE(id.ok());
  std::vector<std::byte> more(101);
  EXPECT_EQ((*spill)->get(*id, more).code(), Code::kUsage);
  ASSERT_TRUE((*spill)->drop(*id).ok());
  EXPECT_EQ((*spill)->drop(*id).code(), Code::kUsage);
  EXPECT_EQ((*spill)->get(*id, more).code(), Code::kUsage);
}

}  // namespace
}  // namespace headrace
