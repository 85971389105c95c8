#include "headrace/serve/draft.h"

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "tests/session/batch_models.h"

namespace headrace {
namespace {

using Tokens = std::vector<int32_t>;

Tokens looked_up(const Tokens& tokens, int64_t most) {
  PromptLookup lookup;
  DraftAsk ask{0, tokens, most, {}};
  lookup.propose({&ask, 1});
  return ask.draft;
}

TEST(PromptLookupDrafts, WhatFollowedTheSameTokensBefore) {
  EXPECT_EQ(looked_up({1, 2, 3, 4, 5, 9, 1, 2, 3}, 2), Tokens({4, 5}));
  EXPECT_EQ(looked_up({1, 2, 3, 4, 5, 9, 1, 2, 3}, 5), Tokens({4, 5, 9, 1, 2}));
}

TEST(PromptLookupDrafts, TheLongestSuffixWinsAndOfEqualsTheLatest) {
  EXPECT_EQ(looked_up({1, 2, 3, 7, 9, 2, 3, 8, 1, 2, 3}, 1), Tokens({7}));
  EXPECT_EQ(looked_up({2, 3, 7, 9, 2, 3, 8, 1, 2, 3}, 1), Tokens({8}));
}

TEST(PromptLookupDrafts, NothingWhereTooLittleIsAlike) {
  EXPECT_TRUE(looked_up({1, 2, 3, 4, 3}, 4).empty());
  EXPECT_TRUE(looked_up({5, 5}, 4).empty());
  EXPECT_TRUE(looked_up({1}, 4).empty());
  EXPECT_TRUE(looked_up({1, 2, 3, 1, 2}, 0).empty());
}

TEST(PromptLookupDrafts, ATextThatRepeatsItselfGoesOnInTheDraft) {
  EXPECT_EQ(looked_up({8, 1, 2, 1, 2, 1, 2}, 5), Tokens({1, 2, 1, 2, 1}));
  EXPECT_EQ(looked_up({4, 4, 4, 4}, 6), Tokens({4, 4, 4, 4, 4, 4}));
}

TEST(DraftRoom, EndsBeforeTheTileDoesSoThatItsTailCanBeTakenBack) {
  EXPECT_EQ(draft_room(0), 62);
  EXPECT_EQ(draft_room(61), 1);
  EXPECT_EQ(draft_room(62), 0);
  EXPECT_EQ(draft_room(63), 0);
  EXPECT_EQ(draft_room(64), 62);
}

TEST(AcceptanceOf, FollowsWhatIsSeenAndForgetsWhileNothingIsDrafted) {
  Acceptance good, bad;
  for (int i = 0; i < 20; ++i) {
    good.add(4, 4);
    bad.add(4, 0);
  }
  EXPECT_GT(good.estimate(), 0.9);
  EXPECT_LT(bad.estimate(), 0.15);
  for (int i = 0; i < 200; ++i) bad.skip();
  EXPECT_GT(bad.estimate(), 0.4);
}

int64_t total(const std::vector<int64_t>& counts) {
  return std::accumulate(counts.begin(), counts.end(), int64_t{0});
}
Nanos free_token(int64_t) { return 0; }

TEST(ChooseDrafts, AllWhereRowsAreFreeAndNoneWhereEachCostsAsMuchAsAStep) {
  const std::vector<DraftBid> bids = {{6, 0.8}, {4, 0.5}};
  EXPECT_EQ(choose_drafts(bids, 2, 100, [](int64_t) { return Nanos{1000}; }, free_token),
            std::vector<int64_t>({6, 4}));
  EXPECT_EQ(total(choose_drafts(bids, 2, 100, [](int64_t r) { return 1000 * r; }, free_token)), 0);
}

TEST(ChooseDrafts, LongerWhereGuessesAreBetter) {
  const std::vector<DraftBid> bids = {{16, 0.9}, {16, 0.3}};
  const auto k =
      choose_drafts(bids, 2, 100, [](int64_t r) { return 1000 + 60 * r; }, free_token);
  EXPECT_GT(k[0], k[1]);
  EXPECT_GT(k[0], 4);
}

TEST(ChooseDrafts, NeverMoreThanThereIsRoomAndGuesses) {
  const std::vector<DraftBid> bids = {{3, 0.9}, {0, 0.9}, {5, 0.9}};
  const auto flat = [](int64_t) { return Nanos{1000}; };
  EXPECT_EQ(choose_drafts(bids, 3, 100, flat, free_token), std::vector<int64_t>({3, 0, 5}));
  EXPECT_EQ(total(choose_drafts(bids, 3, 2, flat, free_token)), 2);
  EXPECT_EQ(total(choose_drafts(bids, 3, -4, flat, free_token)), 0);
}

TEST(ChooseDrafts, TheCostOfTheDraftModelCounts) {
  const std::vector<DraftBid> bids = {{8, 0.7}};
  const auto flat = [](int64_t) { return Nanos{1000}; };
  const auto cheap = choose_drafts(bids, 1, 100, flat, [](int64_t) { return Nanos{50}; });
  const auto dear = choose_drafts(bids, 1, 100, flat, [](int64_t) { return Nanos{900}; });
  EXPECT_GT(cheap[0], 2);
  EXPECT_LT(cheap[0], 8);
  EXPECT_EQ(dear[0], 0);
}

// The best of all numbers of guesses, tried one by one.
TEST(ChooseDrafts, AreTheBestOfAllWaysToChoose) {
  const std::vector<DraftBid> bids = {{3, 0.85}, {3, 0.4}, {3, 0.6}};
  for (int64_t slope : {10, 60, 120, 250, 500}) {
    const auto times = [slope](int64_t r) { return 1000 + slope * r; };
    const auto rate = [&](const std::vector<int64_t>& k) {
      double tokens = 3;
      for (size_t i = 0; i < 3; ++i) {
        double reached = 1;
        for (int64_t j = 0; j < k[i]; ++j) tokens += reached *= bids[i].acceptance;
      }
      return tokens / static_cast<double>(times(3 + total(k)));
    };
    double best = 0;
    for (int64_t a = 0; a <= 3; ++a)
      for (int64_t b = 0; b <= 3; ++b)
        for (int64_t c = 0; c <= 3; ++c) best = std::max(best, rate({a, b, c}));
    EXPECT_NEAR(rate(choose_drafts(bids, 3, 100, times, free_token)), best, 1e-12) << slope;
  }
}

}  // namespace
}  // namespace headrace
