#include "headrace/tier/checksum_tier.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <string>

#include "headrace/tier/arena.h"
#include "headrace/tier/host_tier.h"

namespace headrace {
namespace {

using testing::HasSubstr;

struct Rig {
  Rig() {
    auto host = open_host_tier({16 * kPage});
    HR_CHECK(host.ok(), "a host tier opens");
    inner = host->get();
    tier = make_checksum_tier(std::move(*host), {16 * kPage});
  }
  Status store(Bytes offset, Bytes bytes, int value) {
    std::memset(memory.at(0, bytes).data(), value, static_cast<size_t>(bytes));
    HR_ASSIGN(const Ticket t, tier->store(memory.at(0, bytes), {0, offset, bytes}));
    return tier->wait(t);
  }
  Status load(Bytes offset, Bytes bytes) {
    HR_ASSIGN(const Ticket t, tier->load({0, offset, bytes}, memory.at(0, bytes)));
    return tier->wait(t);
  }
  void flip(Bytes offset) {
    auto at = inner->direct({0, offset, 1});
    ASSERT_TRUE(at.ok());
    (*at)[0] ^= std::byte{1};
  }
  Arena memory = Arena::create(64 * kKiB).value();
  MappedTier* inner = nullptr;
  std::unique_ptr<Tier> tier;
};

TEST(ChecksumTier, WhatWasStoredComesBack) {
  Rig rig;
  ASSERT_TRUE(rig.store(kPage, 3 * kPage, 7).ok());
  EXPECT_TRUE(rig.load(kPage, 3 * kPage).ok());
  EXPECT_TRUE(rig.load(2 * kPage, kPage).ok());
}

TEST(ChecksumTier, AChangedByteIsFoundAndNamed) {
  Rig rig;
  ASSERT_TRUE(rig.store(kPage, 3 * kPage, 7).ok());
  rig.flip(2 * kPage + 100);
  EXPECT_TRUE(rig.load(kPage, kPage).ok());
  const Status bad = rig.load(kPage, 3 * kPage);
  EXPECT_EQ(bad.code(), Code::kIo);
  EXPECT_THAT(bad.message(), HasSubstr("object 0: 4096 bytes at 8192"));
  EXPECT_THAT(bad.message(), HasSubstr("checksum differs"));
}

TEST(ChecksumTier, ALaterStoreCounts) {
  Rig rig;
  ASSERT_TRUE(rig.store(0, 2 * kPage, 7).ok());
  ASSERT_TRUE(rig.store(kPage, kPage, 9).ok());
  EXPECT_TRUE(rig.load(0, 2 * kPage).ok());
}

TEST(ChecksumTier, PagesStoredInPartOrNeverAreNotChecked) {
  Rig rig;
  ASSERT_TRUE(rig.store(0, 2 * kPage, 7).ok());
  ASSERT_TRUE(rig.store(kPage + 8, 16, 9).ok());
  EXPECT_TRUE(rig.load(0, 2 * kPage).ok());
  EXPECT_TRUE(rig.load(0, kPage).ok());
  EXPECT_TRUE(rig.load(8 * kPage, 2 * kPage).ok());
  rig.flip(10);
  EXPECT_FALSE(rig.load(0, kPage).ok());
}

TEST(ChecksumTier, ALoadThatReachesPastWhatWasStoredChecksAllThatWas) {
  Rig rig;
  ASSERT_TRUE(rig.store(3 * kPage, kPage, 7).ok());
  ASSERT_TRUE(rig.store(5 * kPage, 2 * kPage, 8).ok());
  rig.flip(4 * kPage + 1);  // never stored: nobody knows what it should be
  EXPECT_TRUE(rig.load(0, 16 * kPage).ok());
  for (Bytes page : {3, 5, 6}) {
    rig.flip(page * kPage + 4095);
    const Status bad = rig.load(0, 16 * kPage);
    EXPECT_EQ(bad.code(), Code::kIo);
    EXPECT_THAT(bad.message(),
                HasSubstr("object 0: 4096 bytes at " + std::to_string(page * kPage) + " "));
    rig.flip(page * kPage + 4095);
  }
  EXPECT_TRUE(rig.load(0, 16 * kPage).ok());
}

TEST(ChecksumTier, ManyPagesAreLookedAtByAllWorkersAndTheFirstThatChangedIsNamed) {
  constexpr Bytes kPages = 301;  // an odd number for three workers
  ThreadPool pool(3, false);
  auto host = open_host_tier({kPages * kPage});
  ASSERT_TRUE(host.ok());
  MappedTier* inner = host->get();
  const auto tier = make_checksum_tier(std::move(*host), {kPages * kPage}, 8, &pool);
  Arena memory = Arena::create(kPages * kPage).value();
  const std::span<std::byte> bytes = memory.at(0, kPages * kPage);
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i * 31 + i / 4096);
  const auto whole = [&](bool store) -> Status {
    const TierExtent all{0, 0, kPages * kPage};
    HR_ASSIGN(const Ticket t, store ? tier->store(bytes, all) : tier->load(all, bytes));
    return tier->wait(t);
  };
  ASSERT_TRUE(whole(true).ok());
  EXPECT_TRUE(whole(false).ok());
  std::span<std::byte> there = inner->direct({0, 0, kPages * kPage}).value();
  // From the back, so that each is the first of those changed so far, in every worker's part.
  for (Bytes page : {kPages - 1, 2 * kPages / 3, Bytes{150}, Bytes{100}, Bytes{99}, Bytes{0}}) {
    there[static_cast<size_t>(page * kPage + 17)] ^= std::byte{4};
    const Status bad = whole(false);
    EXPECT_EQ(bad.code(), Code::kIo);
    EXPECT_THAT(bad.message(),
                HasSubstr("object 0: 4096 bytes at " + std::to_string(page * kPage) + " "));
  }
}

TEST(ChecksumTier, ItHoldsEightBytesAPage) {
  EXPECT_EQ(checksum_memory(16 * kPage), 128);
  EXPECT_EQ(checksum_memory(kPage + 1), 16);
}

TEST(ChecksumTier, ALoadUnderWayIsComparedWithWhatItBeganWith) {
  Rig rig;
  ASSERT_TRUE(rig.store(0, kPage, 7).ok());
  auto load = rig.tier->load({0, 0, kPage}, rig.memory.at(8 * kPage, kPage));
  ASSERT_TRUE(load.ok());
  while (!rig.tier->done(*load)) rig.tier->poll();
  ASSERT_TRUE(rig.store(0, kPage, 8).ok());
  EXPECT_TRUE(rig.tier->wait(*load).ok());
}

}  // namespace
}  // namespace headrace
