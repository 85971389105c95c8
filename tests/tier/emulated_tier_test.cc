#include "headrace/tier/emulated_tier.h"

#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "headrace/tier/host_tier.h"

namespace headrace {
namespace {

constexpr Nanos kMs = 1'000'000;

// Tiers of one object of 1 MiB behind a link; all on one manual clock.
class EmulatedTierTest : public testing::Test {
 protected:
  std::unique_ptr<Tier> make(std::shared_ptr<EmulatedLink> link) {
    auto inner = open_host_tier({1 * kMiB}, {256, false});
    EXPECT_TRUE(inner.ok());
    auto tier = open_emulated_tier(std::move(*inner), std::move(link));
    EXPECT_TRUE(tier.ok()) << tier.status().message();
    return std::move(*tier);
  }
  std::unique_ptr<Tier> make(double bytes_per_s, Nanos latency, bool duplex) {
    const LinkModel model = {bytes_per_s, latency, duplex};
    return make(std::make_shared<EmulatedLink>(model, clock_));
  }
  Ticket load(Tier& tier, Bytes n) {
    auto t = tier.load({0, 0, n}, std::span(memory_).first(static_cast<size_t>(n)));
    EXPECT_TRUE(t.ok());
    return *t;
  }
  Ticket store(Tier& tier, Bytes n) {
    auto t = tier.store(std::span(memory_).first(static_cast<size_t>(n)), {0, 0, n});
    EXPECT_TRUE(t.ok());
    return *t;
  }
  // When wait(ticket) returns, by the clock.
  Nanos end_of(Tier& tier, Ticket ticket) {
    EXPECT_TRUE(tier.wait(ticket).ok());
    return clock_.now();
  }

  ManualClock clock_;
  std::vector<std::byte> memory_ = std::vector<std::byte>(1 * kMiB);
};

TEST_F(EmulatedTierTest, ATransferTakesItsBytesOverTheBandwidthPlusTheLatency) {
  auto tier = make(1e9, 5000, true);
  const Ticket t = load(*tier, 100'000);
  EXPECT_EQ(end_of(*tier, t), 100'000 + 5000);
}

TEST_F(EmulatedTierTest, TransfersQueueOnTheLinkAndTheirLatenciesOverlap) {
  auto tier = make(1e9, 1 * kMs, true);
  const Ticket a = load(*tier, 100'000);
  const Ticket b = load(*tier, 200'000);
  EXPECT_EQ(end_of(*tier, a), 100'000 + kMs);
  EXPECT_EQ(end_of(*tier, b), 300'000 + kMs);
}

TEST_F(EmulatedTierTest, AnIdleLinkStartsWhenTheTransferIsSubmitted) {
  auto tier = make(1e9, 0, true);
  EXPECT_EQ(end_of(*tier, load(*tier, 1000)), 1000);
  clock_.advance(kMs);
  EXPECT_EQ(end_of(*tier, load(*tier, 1000)), 1000 + kMs + 1000);
}

TEST_F(EmulatedTierTest, ADuplexLinkCarriesLoadsAndStoresAtOnceASharedOneDoesNot) {
  {
    auto tier = make(1e9, 0, true);
    const Ticket a = load(*tier, 100'000);
    const Ticket b = store(*tier, 100'000);
    (void)end_of(*tier, a);
    EXPECT_EQ(end_of(*tier, b), 100'000);
  }
  const Nanos begin = clock_.now();
  auto tier = make(1e9, 0, false);
  const Ticket a = load(*tier, 100'000);
  const Ticket b = store(*tier, 100'000);
  EXPECT_EQ(end_of(*tier, a), begin + 100'000);
  EXPECT_EQ(end_of(*tier, b), begin + 200'000);
}

TEST_F(EmulatedTierTest, StoresHaveARateOfTheirOwn) {
  for (const bool duplex : {true, false}) {
    auto tier =
        make(std::make_shared<EmulatedLink>(LinkModel{1e9, 0, duplex, 2.5e8}, clock_));
    const Nanos begin = clock_.now();
    const Ticket a = load(*tier, 100'000);
    const Ticket b = store(*tier, 100'000);
    EXPECT_EQ(end_of(*tier, a), begin + 100'000);
    EXPECT_EQ(end_of(*tier, b), begin + (duplex ? 400'000 : 500'000));
  }
}

TEST_F(EmulatedTierTest, TwoTiersMayShareOneLink) {
  auto link = std::make_shared<EmulatedLink>(LinkModel{1e9, 0, true}, clock_);
  auto first = make(link);
  auto second = make(link);
  const Ticket a = load(*first, 100'000);
  const Ticket b = load(*second, 100'000);
  EXPECT_EQ(end_of(*second, b), 200'000);
  EXPECT_EQ(end_of(*first, a), 200'000);
}

TEST_F(EmulatedTierTest, IsNotDoneBeforeTheClockHasPassedTheModelledEnd) {
  auto tier = make(1e9, 0, true);
  const Ticket t = load(*tier, 1000);
  for (int i = 0; i < 10; ++i) EXPECT_FALSE(tier->done(t));
  clock_.advance(999);
  EXPECT_FALSE(tier->done(t));
  clock_.advance(1);
  EXPECT_TRUE(tier->done(t));
}

TEST_F(EmulatedTierTest, TheRealClockIsNeverEarly) {
  auto inner = open_host_tier({1 * kMiB});
  ASSERT_TRUE(inner.ok());
  auto tier = open_emulated_tier(
      std::move(*inner), std::make_shared<EmulatedLink>(LinkModel{1e9, 3000, true}));
  ASSERT_TRUE(tier.ok());
  for (Bytes n : {Bytes{1000}, Bytes{1'000'000}}) {
    const Nanos begin = real_clock().now();
    auto t = (*tier)->load({0, 0, n}, std::span(memory_).first(static_cast<size_t>(n)));
    ASSERT_TRUE(t.ok() && (*tier)->wait(*t).ok());
    EXPECT_GE(real_clock().now() - begin, n + 3000);
  }
}

TEST_F(EmulatedTierTest, RefusesLinksWithoutBandwidth) {
  const auto code = [](LinkModel model, int tickets = 1) {
    auto inner = open_host_tier({kPage});
    EXPECT_TRUE(inner.ok());
    return open_emulated_tier(std::move(*inner), std::make_shared<EmulatedLink>(model),
                              tickets)
        .status()
        .code();
  };
  EXPECT_EQ(code({0, 0, true}), Code::kUsage);
  EXPECT_EQ(code({-1, 0, true}), Code::kUsage);
  EXPECT_EQ(code({1e300 * 1e300, 0, true}), Code::kUsage);
  EXPECT_EQ(code({1e9, 0, true, -1}), Code::kUsage);
  EXPECT_EQ(code({1e9, 0, true, 1e300 * 1e300}), Code::kUsage);
  EXPECT_EQ(code({1e9, -1, true}), Code::kUsage);
  EXPECT_EQ(code({1e9, 0, true}, 0), Code::kUsage);
  EXPECT_EQ(code({1e9, 0, true}), Code::kOk);
}

}  // namespace
}  // namespace headrace
