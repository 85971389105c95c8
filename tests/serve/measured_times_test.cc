#include "headrace/serve/measured_times.h"

#include <gtest/gtest.h>

#include <cmath>

#include "headrace/base/split_mix.h"
#include "headrace/serve/scheduler.h"

namespace headrace {
namespace {

constexpr Nanos kMs = 1000000;

// A plan that predicts 4 ms and 2 ms a row.
BatchPlan plan() {
  BatchPlan p;
  for (int64_t rows = 1; rows <= 256; rows *= 2) p.times.push_back({rows, (4 + 2 * rows) * kMs});
  return p;
}

double predicted(int64_t rows) { return static_cast<double>(plan().step_ns(rows)); }
double ratio(const MeasuredTimes& times, int64_t rows) {
  return static_cast<double>(times.at(rows)) / predicted(rows);
}

TEST(MeasuredTimesOf, APlanAreItsPredictionsUntilAStepWasMeasured) {
  const MeasuredTimes times(plan());
  for (int64_t rows : {1, 3, 4, 100, 256, 300}) EXPECT_EQ(times.at(rows), plan().step_ns(rows));
}

TEST(MeasuredTimesOf, AMachineThatIsSlowerThanItsPlanAreSlowerForAllSteps) {
  MeasuredTimes times(plan());
  times.add(4, 3 * plan().step_ns(4));
  EXPECT_NEAR(ratio(times, 4), 3, 0.01);
  for (int64_t rows : {1, 6, 64, 256}) EXPECT_NEAR(ratio(times, rows), 2.9, 0.2) << rows;
}

TEST(MeasuredTimesOf, ASizeNeverSeenBeforeTeachLittleAboutThoseThatWere) {
  MeasuredTimes times(plan());
  for (int i = 0; i < 10; ++i) times.add(4, plan().step_ns(4));
  times.add(64, plan().step_ns(64) / 5);
  EXPECT_NEAR(ratio(times, 64), 0.2, 0.03);
  EXPECT_NEAR(ratio(times, 128), 0.26, 0.03) << "a neighbour is believed to be so too";
  EXPECT_NEAR(ratio(times, 4), 1, 0.05);
}

TEST(MeasuredTimesOf, AMachineThatGotBusyGrowAlsoWhereNothingIsMeasuredNow) {
  MeasuredTimes times(plan());
  for (int i = 0; i < 20; ++i) {
    times.add(4, plan().step_ns(4));
    times.add(64, plan().step_ns(64));
  }
  for (int i = 0; i < 20; ++i) times.add(64, 4 * plan().step_ns(64));
  EXPECT_NEAR(ratio(times, 64), 4, 0.2);
  EXPECT_GT(ratio(times, 4), 2);
  for (int i = 0; i < 20; ++i) times.add(4, plan().step_ns(4));
  EXPECT_NEAR(ratio(times, 4), 1, 0.1);
}

TEST(MeasuredTimesOf, OneOddStepMoveByAThirdAtMostAndComeBack) {
  MeasuredTimes times(plan());
  for (int i = 0; i < 50; ++i) times.add(8, plan().step_ns(8));
  times.add(8, 1000 * plan().step_ns(8));
  EXPECT_LE(ratio(times, 8), 4.0 / 3);
  for (int i = 0; i < 10; ++i) times.add(8, plan().step_ns(8));
  EXPECT_NEAR(ratio(times, 8), 1, 0.03);
}

TEST(MeasuredTimesOf, AnyStepsNeverFallAsRowsGrow) {
  SplitMix random(5);
  MeasuredTimes times(plan());
  for (int i = 0; i < 3000; ++i) {
    times.add(1 + random.below(300), 1 + random.below(100) * random.below(1000000));
    const int64_t rows = 1 + random.below(299);
    ASSERT_LE(times.at(rows), times.at(rows + 1));
    ASSERT_GE(times.at(rows), 1);
  }
}

// A prompt of many tokens beside four answers, on a machine that takes `fixed` and `a_row` ms,
// `busy` times as long.
class Reading {
 public:
  Reading() {
    limits_.places = 8;
    limits_.blocks = 100;
    limits_.step_rows = 256;
    for (int32_t i = 0; i < 5; ++i) {
      ChoiceView c;
      c.id = c.job = i;
      c.arrival = i;
      running_.push_back(c);
    }
  }

  double ms(int64_t rows) const { return busy * (fixed + a_row * static_cast<double>(rows)); }

  void decode(int steps) {
    running_[4].unread = 1;
    for (int i = 0; i < steps; ++i) step();
  }
  // Milliseconds of each step that reads `tokens`.
  std::vector<double> read(int64_t tokens) {
    std::vector<double> out;
    for (running_[4].unread = tokens; running_[4].unread > 1;) out.push_back(step());
    return out;
  }

  double fixed = 4, a_row = 2, busy = 1;

 private:
  double step() {
    const auto times = [this](int64_t rows) { return times_.at(rows); };
    int64_t rows = 0;
    std::vector<ChoiceView> in = running_;
    if (times_.stale(4)) std::erase_if(in, [](const ChoiceView& c) { return c.unread > 1; });
    for (const Share& s : share_step(limits_, in, 0, times)) {
      rows += s.rows;
      int64_t& unread = running_[static_cast<size_t>(s.id)].unread;
      unread = std::max<int64_t>(1, unread - s.rows);
    }
    const double took = ms(rows);
    times_.add(rows, static_cast<Nanos>(took * 1e6));
    return took;
  }

  ScheduleLimits limits_;
  std::vector<ChoiceView> running_;
  MeasuredTimes times_{plan()};
};

double longest(const std::vector<double>& steps, size_t after = 0) {
  double most = 0;
  for (size_t i = after; i < steps.size(); ++i) most = std::max(most, steps[i]);
  return most;
}

TEST(ReadingBesideAnswers, IsAsFastAsTheStretchAllowsWhereRowsAreCheaperThanPlanned) {
  Reading r;
  r.fixed = 10;
  r.a_row = 0.25;
  r.decode(10);
  // 2.5 times the 11.25 ms of four rows: 68 rows of a prompt beside them.
  const auto first = r.read(2000);
  EXPECT_LT(first.size(), 2000 / 68 + 12) << "a few steps to find that out";
  const auto second = r.read(2000);
  EXPECT_LE(second.size(), 2000 / 68 + 5) << "one in 16 is of answers alone";
  EXPECT_LT(longest(second), 1.15 * 2.5 * r.ms(5));
}

TEST(ReadingBesideAnswers, KeepsTheStretchWhereRowsAreDearerThanPlanned) {
  Reading r;
  r.fixed = 20;
  r.a_row = 8;
  r.decode(10);
  const auto steps = r.read(600);
  EXPECT_LT(longest(steps, 6), 1.15 * 2.5 * r.ms(5));
}

TEST(ReadingBesideAnswers, KeepsTheStretchOfAMachineThatGetsBusyWhileItReads) {
  Reading r;
  r.decode(10);
  r.read(600);
  r.busy = 6;
  const auto steps = r.read(600);
  EXPECT_LT(longest(steps, 10), 1.15 * 2.5 * r.ms(5));
  r.busy = 1;
  r.decode(20);
  const auto again = r.read(600);
  EXPECT_LT(longest(again, 2), 1.3 * 2.5 * r.ms(5));
}

}  // namespace
}  // namespace headrace
