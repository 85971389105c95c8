#include "headrace/serve/server_numbers.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "headrace/serve/server.h"
#include "headrace/serve/server_answer.h"

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

TEST(ServerMemory, GrowsWithTheBudgetAndStaysASmallPartOfIt) {
  Bytes before = 0;
  for (const Bytes budget : {64 * kMiB, 128 * kMiB, 550 * kMiB, 2 * kGiB, 16 * kGiB}) {
    ServerOptions o;
    fit_to_budget(budget, 0, &o);
    const Bytes most = Server::most_bytes(o);
    EXPECT_GE(most, before);
    EXPECT_LE(most, budget / 8) << budget;
    EXPECT_GE(o.http.connection_memory, 2 * o.http.max_body);
    before = most;
  }
  EXPECT_LE(before, 130 * kMiB);
  ServerOptions large;
  fit_to_budget(550 * kMiB, 131'072, &large);
  EXPECT_GE(large.http.max_body, 131'072 * 5) << "a prompt of the whole context, as text";
  EXPECT_GE(large.http.max_connections, 1000);
}

TEST(AnswerRoom, GivesNoMoreThanThereIs) {
  AnswerRoom room(100);
  EXPECT_TRUE(room.take(60));
  EXPECT_FALSE(room.take(41));
  EXPECT_TRUE(room.take(40));
  room.give_back(60);
  EXPECT_TRUE(room.take(60));
  GenerateRequest plain, rich;
  rich.logprobs = 5;
  rich.n = 2;
  EXPECT_GT(AnswerRoom::needed(rich, 1, 100), 10 * AnswerRoom::needed(plain, 1, 100));
}

}  // namespace
}  // namespace headrace
