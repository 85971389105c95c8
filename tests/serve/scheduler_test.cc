#include "headrace/serve/scheduler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <vector>

#include "headrace/base/split_mix.h"

namespace headrace {
namespace {

Nanos flat(int64_t) { return 1000; }
Nanos by_row(int64_t rows) { return 100 * rows; }

ChoiceView choice(int32_t id, int64_t worst, int priority = 0) {
  ChoiceView c;
  c.id = c.job = id;
  c.arrival = id;
  c.worst = worst;
  c.priority = priority;
  return c;
}

ScheduleLimits limits(int64_t places, int64_t blocks, int64_t disk_blocks = 0) {
  ScheduleLimits l;
  l.places = places;
  l.blocks = blocks;
  l.disk_blocks = disk_blocks;
  l.disk_sequences = disk_blocks > 0 ? 100 : 0;
  l.step_rows = 64;
  return l;
}

using Ids = std::vector<int32_t>;

TEST(PlaceChoices, StartsInTheOrderOfArrivalUntilBlocksOrPlacesAreFull) {
  const std::vector<ChoiceView> queued = {choice(2, 1), choice(0, 4), choice(1, 3)};
  EXPECT_EQ(place_choices(limits(8, 10), {}, queued).start, Ids({0, 1, 2}));
  EXPECT_EQ(place_choices(limits(2, 10), {}, queued).start, Ids({0, 1}));
  EXPECT_EQ(place_choices(limits(8, 7), {}, queued).start, Ids({0, 1}));
}

TEST(PlaceChoices, NothingOvertakesOneThatDoesNotFitNow) {
  const std::vector<ChoiceView> running = {choice(0, 6)};
  const std::vector<ChoiceView> queued = {choice(1, 8), choice(2, 1)};
  EXPECT_TRUE(place_choices(limits(8, 10), running, queued).start.empty());
}

TEST(PlaceChoices, BlocksThatChoicesOfAJobShareAreCountedOnce) {
  std::vector<ChoiceView> queued = {choice(0, 5), choice(1, 5), choice(2, 5)};
  for (ChoiceView& c : queued) {
    c.number = c.id;
    c.job = 7;
    c.arrival = 0;
    c.shared = 4;
  }
  EXPECT_EQ(promised_blocks(queued), 4 + 3);
  EXPECT_EQ(place_choices(limits(8, 6), {}, queued).start, Ids({0, 1}));
}

TEST(PlaceChoices, LowerPriorityGoesToDiskTheYoungestFirst) {
  const std::vector<ChoiceView> running = {choice(0, 4), choice(1, 4), choice(2, 2, -1)};
  const Placement p = place_choices(limits(8, 10, 100), running, std::vector{choice(3, 5, 1)});
  EXPECT_EQ(p.preempt, Ids({2, 1}));
  EXPECT_EQ(p.start, Ids({3}));
}

TEST(PlaceChoices, NoneIsPreemptedWhoseRoomIsNotNeeded) {
  // The youngest of two blocks does not help; the next one alone does.
  const std::vector<ChoiceView> running = {choice(0, 8), choice(1, 2)};
  const Placement p = place_choices(limits(8, 10, 100), running, std::vector{choice(2, 8, 1)});
  EXPECT_EQ(p.preempt, Ids({0}));
}

TEST(PlaceChoices, EqualsAreNeverPreemptedNorIsAnythingWithoutADisk) {
  const std::vector<ChoiceView> running = {choice(0, 10)};
  EXPECT_TRUE(place_choices(limits(8, 10, 99), running, std::vector{choice(1, 1)}).start.empty());
  const Placement p = place_choices(limits(8, 10), running, std::vector{choice(1, 1, 5)});
  EXPECT_TRUE(p.preempt.empty());
  EXPECT_TRUE(p.start.empty());
}

TEST(PlaceChoices, NothingIsPreemptedThatTheDiskHasNoRoomFor) {
  const std::vector<ChoiceView> running = {choice(0, 10)};
  EXPECT_TRUE(place_choices(limits(8, 10, 9), running, std::vector{choice(1, 1, 5)}).start.empty());
  EXPECT_EQ(place_choices(limits(8, 10, 10), running, std::vector{choice(1, 1, 5)}).start,
            Ids({1}));
}

TEST(PlaceChoices, WhatWasPreemptedComesBackBeforeItsEqualsBegin) {
  std::vector<ChoiceView> queued = {choice(5, 4), choice(3, 4)};
  queued[1].on_disk = true;
  EXPECT_EQ(place_choices(limits(1, 10, 100), {}, queued).start, Ids({3}));
}

TEST(ShareStep, EveryOneThatDecodesHasARowAndAPromptTheRest) {
  std::vector<ChoiceView> running = {choice(0, 1), choice(1, 1), choice(2, 1)};
  running[0].unread = 100;
  const auto shares = share_step(limits(8, 10), running, 0, flat);
  ASSERT_EQ(shares.size(), 3u);
  EXPECT_EQ(shares[0].id, 1);
  EXPECT_EQ(shares[2].id, 0);
  EXPECT_EQ(shares[2].rows, 62);
}

TEST(ShareStep, PromptsAreReadByPriorityAndThenByArrival) {
  std::vector<ChoiceView> running = {choice(0, 1), choice(1, 1), choice(2, 1, 3)};
  for (ChoiceView& c : running) c.unread = 40;
  const auto shares = share_step(limits(8, 10), running, 0, flat);
  ASSERT_EQ(shares.size(), 2u);
  EXPECT_EQ(shares[0].id, 2);
  EXPECT_EQ(shares[0].rows, 40);
  EXPECT_EQ(shares[1].id, 0);
  EXPECT_EQ(shares[1].rows, 24);
}

TEST(ShareStep, AQuestionDoesNotWaitForABookNorTheBookForQuestions) {
  std::vector<ChoiceView> running = {choice(0, 1), choice(1, 1), choice(2, 1), choice(3, 1, -1)};
  running[0].unread = 5000;
  running[1].unread = 40;
  running[2].unread = 20;
  running[3].unread = 2;  // of a lower priority
  const auto shares = share_step(limits(8, 10), running, 0, flat);
  ASSERT_EQ(shares.size(), 2u);
  EXPECT_EQ(shares[0].id, 0);
  EXPECT_EQ(shares[0].rows, 44);
  EXPECT_EQ(shares[1].id, 2);
  EXPECT_EQ(shares[1].rows, 20);
  running[2].unread = 4000;
  running[1].unread = 4500;
  const auto books = share_step(limits(8, 10), running, 0, flat);
  ASSERT_EQ(books.size(), 2u);
  EXPECT_EQ(books[0].rows, 32);
  EXPECT_EQ(books[1].id, 2);
  EXPECT_EQ(books[1].rows, 32) << "half at most";
}

TEST(ShareStep, PromptsOfOneLengthAreReadOneAfterTheOther) {
  std::vector<ChoiceView> running = {choice(0, 1), choice(1, 1)};
  running[0].unread = running[1].unread = 500;
  const auto shares = share_step(limits(8, 10), running, 0, flat);
  ASSERT_EQ(shares.size(), 1u);
  EXPECT_EQ(shares[0].id, 0);
}

TEST(ExpectedLeft, IsOfAnswersAsTheyWereAndNeverMoreThanAnAnswerMayHave) {
  EXPECT_EQ(expected_left(10, 500, -1), 490);
  EXPECT_EQ(expected_left(10, 500, 60), 50);
  EXPECT_EQ(expected_left(10, 30, 60), 20);
  EXPECT_EQ(expected_left(200, 500, 60), 30) << "half of it again";
  EXPECT_EQ(expected_left(490, 500, 60), 10);
  EXPECT_EQ(expected_left(59, 500, 59.5), 1);
  EXPECT_EQ(expected_left(500, 500, 60), 0);
}

TEST(ShareStep, APromptBesideRowsThatDecodeKeepsTheStepBelowTheStretch) {
  std::vector<ChoiceView> running;
  for (int32_t i = 0; i < 8; ++i) running.push_back(choice(i, 1));
  running[7].unread = 1000;
  // 7 rows at 100 ns: 2.5 times that are 17 rows.
  EXPECT_EQ(share_step(limits(8, 10), running, 0, by_row).back().rows, 10);
  EXPECT_EQ(share_step(limits(8, 10), running, 3, by_row).back().rows, 15);
  ScheduleLimits none = limits(8, 10);
  none.stretch = 1;
  EXPECT_EQ(share_step(none, running, 0, by_row).back().rows, 1) << "a prompt never stands still";
}

TEST(ShareStep, APromptAloneTakesTheWholeStep) {
  std::vector<ChoiceView> running = {choice(0, 1)};
  running[0].unread = 1000;
  EXPECT_EQ(share_step(limits(8, 10), running, 0, by_row).back().rows, 64);
}

// Plays a server: jobs arrive at random, choices are read and answered until their random ends.
class Play {
 public:
  explicit Play(uint64_t seed) : random_(seed) {
    limits_.places = 1 + random_.below(6);
    limits_.blocks = 8 + random_.below(24);
    limits_.step_rows = limits_.places + random_.below(64);
    if (seed % 3 != 0) {
      limits_.disk_blocks = random_.below(80);
      limits_.disk_sequences = random_.below(12);
    }
  }

  void run() {
    int64_t turns = 0;
    for (; left_ > 0 || !live_.empty(); ++turns) {
      ASSERT_LT(turns, 200000) << "somebody starves";
      if (left_ > 0 && random_.below(4) == 0) arrive();
      turn();
      if (::testing::Test::HasFatalFailure()) return;
    }
    EXPECT_EQ(ended_, begun_);
  }

 private:
  struct State {
    ChoiceView view;
    bool running = false;
    int64_t answer = 0;
  };

  void arrive() {
    --left_;
    const int n = 1 + random_.below(3) / 2 * random_.below(4);
    const int64_t prompt = 1 + random_.below(600);
    const int64_t worst = std::min<int64_t>(limits_.blocks, 1 + (prompt + random_.below(400)) / 64);
    const int64_t shared = std::min(worst, prompt / 64);
    const int priority = random_.below(3);
    for (int i = 0; i < n; ++i) {
      ChoiceView c;
      c.id = begun_++;
      c.job = c.id - i;
      c.arrival = c.job;
      c.number = i;
      c.priority = priority;
      c.worst = worst;
      c.shared = shared;
      c.unread = prompt;
      live_[c.id] = {c, false, 1 + random_.below(60)};
    }
  }

  std::vector<ChoiceView> views(bool running) const {
    std::vector<ChoiceView> out;
    for (const auto& [id, s] : live_)
      if (s.running == running) out.push_back(s.view);
    return out;
  }

  void turn() {
    const auto before = views(false);
    const Placement p = place_choices(limits_, views(true), before);
    int64_t lowest = INT64_MAX;
    for (int32_t id : p.start) lowest = std::min<int64_t>(lowest, live_.at(id).view.priority);
    for (int32_t id : p.preempt) {
      State& s = live_.at(id);
      ASSERT_TRUE(s.running);
      s.running = false;
      s.view.on_disk = true;
      int64_t highest = INT64_MIN;
      for (int32_t other : p.start)
        highest = std::max<int64_t>(highest, live_.at(other).view.priority);
      ASSERT_LT(s.view.priority, highest) << "only for a higher one";
    }
    for (int32_t id : p.start) {
      ASSERT_FALSE(live_.at(id).running);
      live_.at(id).running = true;
    }
    // Nobody who stays behind goes before one who started.
    for (const ChoiceView& c : before)
      for (int32_t id : p.start)
        ASSERT_TRUE(live_.at(c.id).running || !goes_before(c, live_.at(id).view));
    const auto running = views(true);
    ASSERT_LE(promised_blocks(running), limits_.blocks);
    ASSERT_LE(static_cast<int64_t>(running.size()), limits_.places);
    ASSERT_FALSE(running.empty() && !live_.empty()) << "nobody can go on";
    check_disk();
    step(running);
  }

  void check_disk() const {
    int64_t blocks = 0, sequences = 0;
    for (const auto& [id, s] : live_) {
      blocks += s.view.on_disk ? s.view.worst : 0;
      sequences += s.view.on_disk && !s.running;
    }
    ASSERT_LE(blocks, limits_.disk_blocks);
    ASSERT_LE(sequences, limits_.disk_sequences);
  }

  void step(const std::vector<ChoiceView>& running) {
    const auto times = [](int64_t rows) -> Nanos { return 1000 + 50 * rows; };
    const int64_t decoding = std::count_if(running.begin(), running.end(), [](const ChoiceView& c) {
      return c.unread == 1;
    });
    int64_t rows = 0, decoded = 0;
    for (const Share& share : share_step(limits_, running, 0, times)) {
      State& s = live_.at(share.id);
      ASSERT_GE(share.rows, 1);
      ASSERT_LE(share.rows, s.view.unread);
      rows += share.rows;
      decoded += s.view.unread == 1;
      s.view.unread -= share.rows;
      if (s.view.unread > 0) continue;
      s.view.unread = 1;
      if (--s.answer > 0) continue;
      live_.erase(share.id);
      ++ended_;
    }
    ASSERT_EQ(decoded, decoding);
    ASSERT_LE(rows, limits_.step_rows);
    const double most = limits_.stretch * static_cast<double>(times(decoding));
    ASSERT_TRUE(decoding == 0 || rows <= decoding + 1 || static_cast<double>(times(rows)) <= most);
  }

  SplitMix random_;
  ScheduleLimits limits_;
  std::map<int32_t, State> live_;
  int left_ = 60;
  int32_t begun_ = 0, ended_ = 0;
};

TEST(SchedulerProperties, WithRandomArrivalsEveryJobEndsAndNoMoreThanTheBlocksArePromised) {
  for (uint64_t seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE(seed);
    Play(seed).run();
    if (::testing::Test::HasFatalFailure()) return;
  }
}

}  // namespace
}  // namespace headrace
