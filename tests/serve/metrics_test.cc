#include "headrace/serve/metrics.h"

#include <gtest/gtest.h>

#include <map>
#include <set>
#include <sstream>
#include <string>

namespace headrace {
namespace {

TEST(HistogramOf, BoundsBelongToTheirBucketAndWhatIsLongerToTheLast) {
  Histogram h;
  h.add(0.001);
  h.add(0.0011);
  h.add(100);
  h.add(1e6);
  EXPECT_EQ(h.counts()[0], 1);
  EXPECT_EQ(h.counts()[1], 1);
  EXPECT_EQ(h.counts()[15], 1);
  EXPECT_EQ(h.counts()[16], 1);
  EXPECT_EQ(h.count(), 4);
  EXPECT_DOUBLE_EQ(h.sum(), 0.0021 + 100 + 1e6);
}

TEST(RecentStepsOf, ForgetWhatIsOlderThanTenSeconds) {
  constexpr Nanos kSecond = 1000000000;
  RecentSteps recent;
  EXPECT_EQ(recent.at(5 * kSecond).steps, 0);
  StepSums step;
  step.steps = 1;
  step.tokens = 3;
  step.step_seconds = 0.5;
  for (int64_t s = 100; s < 130; ++s) recent.add(s * kSecond + 7, step);
  EXPECT_EQ(recent.at(129 * kSecond + kSecond / 2).tokens, 33);
  EXPECT_DOUBLE_EQ(recent.at(129 * kSecond + kSecond / 2).window_seconds, 10.5);
  EXPECT_EQ(recent.at(134 * kSecond).steps, 6);
  EXPECT_DOUBLE_EQ(recent.at(134 * kSecond).step_seconds, 3);
  EXPECT_EQ(recent.at(140 * kSecond).steps, 0);
}

EngineMetrics some() {
  EngineMetrics m;
  m.steps = 40;
  m.rows = 80;
  m.recent.steps = 4;
  m.recent.rows = 10;
  m.recent.tokens = 30;
  m.recent.window_seconds = 10;
  m.recent.step_seconds = 2;
  m.recent.stall_seconds = 0.5;
  m.recent.streamed_bytes = 1000;
  m.generated_tokens = 7;
  m.drafted = 8;
  m.accepted = 6;
  m.step_seconds = 20;
  m.stall_seconds = 20;
  m.streamed_bytes = 100000;
  m.memory = {{"device", "weights", 12, 34}, {"disk", "k\"v\\\n", 5, 6}};
  m.first_token.add(0.003);
  m.first_token.add(0.3);
  return m;
}

TEST(PrometheusText, EveryNameHasHelpAndTypeOnceAndBeforeItsSamples) {
  std::istringstream lines(prometheus_text(some()));
  std::set<std::string> helped, typed, closed;
  std::string line, current;
  while (std::getline(lines, line)) {
    std::istringstream words(line);
    std::string first, second, name;
    words >> first >> second;
    if (first == "#") {
      words >> name;
      ASSERT_TRUE(name.starts_with("headrace_")) << line;
      ASSERT_TRUE((second == "HELP" ? helped : typed).insert(name).second) << line;
      if (second == "TYPE") current = name;
      continue;
    }
    const std::string base = first.substr(0, first.find('{'));
    ASSERT_TRUE(base.starts_with(current)) << line;
    ASSERT_NO_THROW((void)std::stod(second)) << line;
  }
  EXPECT_EQ(helped, typed);
  EXPECT_GT(helped.size(), 30u);
}

TEST(PrometheusText, BucketsAreCumulativeAndEndWithAll) {
  const std::string text = prometheus_text(some());
  EXPECT_NE(text.find("headrace_first_token_seconds_bucket{le=\"0.002\"} 0\n"), text.npos);
  EXPECT_NE(text.find("headrace_first_token_seconds_bucket{le=\"0.005\"} 1\n"), text.npos);
  EXPECT_NE(text.find("headrace_first_token_seconds_bucket{le=\"0.5\"} 2\n"), text.npos);
  EXPECT_NE(text.find("headrace_first_token_seconds_bucket{le=\"+Inf\"} 2\n"), text.npos);
  EXPECT_NE(text.find("headrace_first_token_seconds_sum 0.303\n"), text.npos);
  EXPECT_NE(text.find("headrace_first_token_seconds_count 2\n"), text.npos);
}

TEST(PrometheusText, SharesAreOfTheLastSecondsAndZeroBeforeAnythingRan) {
  const std::string text = prometheus_text(some());
  EXPECT_NE(text.find("headrace_stall_fraction 0.25\n"), text.npos);
  EXPECT_NE(text.find("headrace_draft_acceptance 0.75\n"), text.npos);
  EXPECT_NE(text.find("headrace_batch_rows 2.5\n"), text.npos);
  EXPECT_NE(text.find("headrace_streamed_bytes_per_second 500\n"), text.npos);
  EXPECT_NE(text.find("headrace_tokens_per_second 3\n"), text.npos);
  EXPECT_NE(prometheus_text({}).find("headrace_stall_fraction 0\n"), std::string::npos);
}

TEST(PrometheusText, LabelsAreEscaped) {
  const std::string text = prometheus_text(some());
  EXPECT_NE(text.find("headrace_memory_bytes{tier=\"device\",class=\"weights\"} 12\n"), text.npos);
  EXPECT_NE(text.find("headrace_memory_limit_bytes{tier=\"disk\",class=\"k\\\"v\\\\\\n\"} 6\n"),
            text.npos);
}

}  // namespace
}  // namespace headrace
