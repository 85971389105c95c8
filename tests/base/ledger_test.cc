#include "headrace/base/ledger.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace headrace {
namespace {

TEST(BudgetLedger, ItemsAndWhatIsLeftMakeUpTheTotal) {
  BudgetLedger ledger(100 * kMiB);
  ASSERT_TRUE(ledger.reserve("code", 20 * kMiB).ok());
  ASSERT_TRUE(ledger.reserve("nothing", 0).ok());
  ASSERT_TRUE(ledger.reserve("arena", 79 * kMiB).ok());
  ASSERT_EQ(ledger.items().size(), 3u);
  EXPECT_EQ(ledger.items()[0].name, "code");
  EXPECT_EQ(ledger.items()[2].name, "arena");
  EXPECT_EQ(ledger.reserved() + ledger.available(), ledger.total());
  EXPECT_EQ(ledger.available(), kMiB);
}

TEST(BudgetLedger, TheLastByteCanBeReservedAndOneMoreCannot) {
  BudgetLedger ledger(4096);
  EXPECT_FALSE(ledger.reserve("all and one", 4097).ok());
  EXPECT_TRUE(ledger.reserve("all", 4096).ok());
  EXPECT_FALSE(ledger.reserve("one", 1).ok());
}

TEST(BudgetLedger, ARefusalChangesNothingAndNamesWhoHoldsWhat) {
  BudgetLedger ledger(10 * kMiB);
  ASSERT_TRUE(ledger.reserve("code", 6 * kMiB).ok());
  ASSERT_TRUE(ledger.reserve("stacks", 1 * kMiB).ok());
  const Status s = ledger.reserve("arena", 4 * kMiB);
  EXPECT_EQ(s.code(), Code::kDoesNotFit);
  for (const char* part :
       {"arena", "4.00 MiB", "10.0 MiB", "3.00 MiB", "code 6.00 MiB", "stacks"}) {
    EXPECT_THAT(s.message(), ::testing::HasSubstr(part));
  }
  EXPECT_EQ(ledger.items().size(), 2u);
  EXPECT_TRUE(ledger.reserve("arena", 3 * kMiB).ok());
}

TEST(BudgetLedger, ARequestNearTheTypesEndDoesNotWrap) {
  BudgetLedger ledger(10);
  ASSERT_TRUE(ledger.reserve("some", 9).ok());
  EXPECT_FALSE(ledger.reserve("absurd", INT64_MAX).ok());
}

TEST(BudgetLedgerDeathTest, ANegativeReservationIsAMistakeOfOurs) {
  BudgetLedger ledger(10);
  EXPECT_DEATH((void)ledger.reserve("x", -1), "not negative");
}

}  // namespace
}  // namespace headrace
