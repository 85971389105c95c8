#include "headrace/tier/fault_tier.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "headrace/tier/host_tier.h"
#include "tests/tier/tier_testing.h"

namespace headrace {
namespace {

using testing::HasSubstr;
using testing_tier::fill;
using testing_tier::first_difference;

// A host tier of one object with pattern 1, behind a fault plan.
class FaultTierTest : public testing::Test {
 protected:
  void open(const FaultPlan& plan) {
    auto host = open_host_tier({64 * kKiB}, {256, false});
    ASSERT_TRUE(host.ok());
    host_ = host->get();
    auto all = host_->direct({0, 0, 64 * kKiB});
    ASSERT_TRUE(all.ok());
    fill(*all, 1);
    tier_ = make_fault_tier(std::move(*host), plan);
  }
  Result<Ticket> load(Bytes at) {
    return tier_->load({0, at, kPage}, std::span(memory_).subspan(static_cast<size_t>(at),
                                                                  size_t{kPage}));
  }
  std::span<const std::byte> loaded(Bytes at) const {
    return std::span(memory_).subspan(static_cast<size_t>(at), size_t{kPage});
  }

  MappedTier* host_ = nullptr;
  std::vector<std::byte> memory_ = std::vector<std::byte>(64 * kKiB);
  std::unique_ptr<Tier> tier_;  // last: its transfers end before the memory goes
};

TEST_F(FaultTierTest, ALoadIsPoisonUntilItIsWaitedFor) {
  open({});
  auto t = load(0);
  ASSERT_TRUE(t.ok());
  for (std::byte b : loaded(0)) ASSERT_EQ(b, std::byte{0xff});
  ASSERT_TRUE(tier_->wait(*t).ok());
  EXPECT_EQ(first_difference(loaded(0), 1), -1);
}

TEST_F(FaultTierTest, AStoreTakesWhatItsSourceHoldsWhenWaitedFor) {
  open({});
  fill(memory_, 2);
  auto t = tier_->store(std::span(memory_).first(kPage), {0, 0, kPage});
  ASSERT_TRUE(t.ok());
  fill(memory_, 3);  // the mistake that this tier is made to show
  ASSERT_TRUE(tier_->wait(*t).ok());
  auto stored = host_->direct({0, 0, kPage});
  ASSERT_TRUE(stored.ok());
  EXPECT_EQ(first_difference(*stored, 3), -1);
}

TEST_F(FaultTierTest, OnlyTheKthTransferFailsAndItsBytesStayPoison) {
  for (int64_t k = 1; k <= 4; ++k) {
    FaultPlan plan;
    plan.fail_at = k;
    open(plan);
    for (int64_t i = 1; i <= 4; ++i) {
      auto t = load((i - 1) * kPage);
      ASSERT_TRUE(t.ok());
      const Status status = tier_->wait(*t);
      EXPECT_EQ(status.ok(), i != k);
      if (i != k) continue;
      EXPECT_EQ(status.code(), Code::kIo);
      EXPECT_THAT(status.message(), HasSubstr("Input/output error (errno 5)"));
      EXPECT_THAT(status.message(), HasSubstr(std::to_string((i - 1) * kPage)));
      EXPECT_EQ(loaded((i - 1) * kPage)[0], std::byte{0xff});
    }
  }
}

TEST_F(FaultTierTest, ADiskThatIsGoneFailsForEver) {
  FaultPlan plan;
  plan.fail_at = 2;
  plan.fail_for_ever = true;
  plan.error_number = ENODEV;
  open(plan);
  for (int i = 1; i <= 5; ++i) {
    auto t = load(0);
    ASSERT_TRUE(t.ok());
    EXPECT_EQ(tier_->wait(*t).ok(), i == 1);
  }
}

TEST_F(FaultTierTest, SubmissionItselfMayFail) {
  FaultPlan plan;
  plan.fail_at = 2;
  plan.fail_at_submit = true;
  open(plan);
  EXPECT_TRUE(load(0).ok());
  EXPECT_EQ(load(0).status().code(), Code::kIo);
  EXPECT_TRUE(load(0).ok());
}

TEST_F(FaultTierTest, IsDoneOnlyAfterTheDelay) {
  FaultPlan plan;
  plan.delay_polls = 3;
  open(plan);
  auto t = load(0);
  ASSERT_TRUE(t.ok());
  for (int i = 0; i < 3; ++i) {
    EXPECT_FALSE(tier_->done(*t));
    EXPECT_EQ(memory_[0], std::byte{0xff});
  }
  while (!tier_->done(*t)) {
  }
  EXPECT_EQ(first_difference(loaded(0), 1), -1);
}

TEST_F(FaultTierTest, ReorderedTransfersEndInAnotherOrderTheSameForTheSameSeed) {
  const auto order_of = [&](uint64_t seed) {
    FaultPlan plan;
    plan.reorder_polls = 10;
    plan.seed = seed;
    open(plan);
    std::vector<Ticket> tickets;
    for (int i = 0; i < 8; ++i) tickets.push_back(*load(i * kPage));
    std::vector<int> order;
    while (order.size() < 8) {
      tier_->poll();
      for (int i = 0; i < 8; ++i) {
        const bool arrived =
            memory_[static_cast<size_t>(i * kPage)] != std::byte{0xff} ||
            memory_[static_cast<size_t>(i * kPage + 1)] != std::byte{0xff};
        if (arrived && std::find(order.begin(), order.end(), i) == order.end())
          order.push_back(i);
      }
    }
    return order;
  };
  const std::vector<int> first = order_of(1);
  EXPECT_EQ(first, order_of(1));
  EXPECT_NE(first, order_of(2));
  EXPECT_FALSE(std::is_sorted(first.begin(), first.end()));
}

}  // namespace
}  // namespace headrace
