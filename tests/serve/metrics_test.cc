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

EngineMetrics some() {
  EngineMetrics m;
  m.steps = 4;
  m.rows = 10;
  m.generated_tokens = 7;
  m.drafted = 8;
  m.accepted = 6;
  m.step_seconds = 2;
  m.stall_seconds = 0.5;
  m.streamed_bytes = 1000;
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

TEST(PrometheusText, SharesAreOfWhatTheyAreOfAndZeroBeforeAnythingRan) {
  const std::string text = prometheus_text(some());
  EXPECT_NE(text.find("headrace_stall_fraction 0.25\n"), text.npos);
  EXPECT_NE(text.find("headrace_draft_acceptance 0.75\n"), text.npos);
  EXPECT_NE(text.find("headrace_batch_rows 2.5\n"), text.npos);
  EXPECT_NE(text.find("headrace_streamed_bytes_per_second 500\n"), text.npos);
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
