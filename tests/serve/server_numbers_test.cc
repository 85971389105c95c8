#include "headrace/serve/server_numbers.h"

#include <gtest/gtest.h>

namespace headrace {
namespace {

TEST(ServerNumbers, QuantilesAreInsideTheBucketThatHoldsThem) {
  Histogram h;
  EXPECT_EQ(quantile(h, 0.5), 0);
  for (int i = 0; i < 98; ++i) h.add(0.015);
  h.add(3);
  h.add(1000);
  EXPECT_GT(quantile(h, 0.5), 0.01);
  EXPECT_LT(quantile(h, 0.5), 0.02);
  EXPECT_GT(quantile(h, 0.985), 2);
  EXPECT_LE(quantile(h, 0.985), 5);
  EXPECT_EQ(quantile(h, 1), Histogram::kBounds.back()) << "no bound above it";
}

TEST(ServerNumbers, MetricsEndWithTheSockets) {
  EngineMetrics m;
  HttpStats http;
  http.requests = 17;
  http.memory_used = 5000;
  const std::string text = metrics_text(m, http, 1 << 20, 3);
  EXPECT_NE(text.find("\nheadrace_http_requests_total 17\n"), std::string::npos);
  EXPECT_NE(text.find("\nheadrace_front_tasks 3\n"), std::string::npos);
  EXPECT_NE(text.find("class=\"connections\"} 5000\n"), std::string::npos);
  EXPECT_EQ(text.back(), '\n');
}

}  // namespace
}  // namespace headrace
