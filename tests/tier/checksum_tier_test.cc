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
