#include "headrace/train/metrics.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "tests/model/gguf_writer.h"
#include "tests/model/scratch.h"

namespace headrace {
namespace {

using Json = nlohmann::json;
using testing::Scratch;

std::string content(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream out;
  out << in.rdbuf();
  return out.str();
}

MetricsLine line(int64_t step) {
  MetricsLine out;
  out.step = step;
  out.loss = 5.0 / static_cast<double>(step);
  out.rate = 1e-3;
  out.gradient_norm = step == 2 ? -1 : 0.5;
  out.tokens_per_s = 1000;
  out.peak_rss_bytes = 100 * kMiB;
  out.tiers = {{"scratch", 10 * step, 20 * step}};
  return out;
}

void write(const Scratch& scratch, int64_t from, int64_t to) {
  auto metrics = Metrics::open(scratch.folder(), from - 1);
  ASSERT_TRUE(metrics.ok()) << metrics.status().message();
  for (int64_t step = from; step <= to; ++step) {
    ASSERT_TRUE((*metrics)->add(line(step)).ok());
    if (step % 2 == 0) {
      ASSERT_TRUE((*metrics)->add_evaluation(step, 3).ok());
    }
  }
}

TEST(Metrics, EveryStepIsALineOfJson) {
  const Scratch scratch;
  write(scratch, 1, 3);
  std::istringstream lines(content(scratch.path("metrics.jsonl")));
  std::vector<Json> all;
  for (std::string text; std::getline(lines, text);) all.push_back(Json::parse(text));
  ASSERT_EQ(all.size(), 4u);
  EXPECT_EQ(all[0]["step"], 1);
  EXPECT_EQ(all[0]["loss"], 5.0);
  EXPECT_EQ(all[0]["gradient_norm"], 0.5);
  EXPECT_TRUE(all[1]["gradient_norm"].is_null());
  EXPECT_EQ(all[2]["eval_loss"], 3);
  EXPECT_EQ(all[3]["tiers"]["scratch"]["stored_bytes"], 60);
}

TEST(Metrics, ALossThatIsNoNumberIsNull) {
  const Scratch scratch;
  auto metrics = Metrics::open(scratch.folder(), 0);
  ASSERT_TRUE(metrics.ok());
  MetricsLine bad = line(1);
  bad.loss = NAN;
  bad.skipped = true;
  ASSERT_TRUE((*metrics)->add(bad).ok());
  EXPECT_TRUE(Json::parse(content(scratch.path("metrics.jsonl")))["loss"].is_null());
  ASSERT_TRUE((*metrics)->plot().ok());
}

TEST(Metrics, AResumedRunsFileIsThatOfOneThatWasNeverInterrupted) {
  const Scratch scratch;
  write(scratch, 1, 9);
  const std::string whole = content(scratch.path("metrics.jsonl"));
  write(scratch, 5, 9);  // gone on with after step 4
  EXPECT_EQ(content(scratch.path("metrics.jsonl")), whole);
  write(scratch, 1, 9);  // begun again
  EXPECT_EQ(content(scratch.path("metrics.jsonl")), whole);
}

TEST(Metrics, ALineThatAKillBrokeOffIsCutOff) {
  const Scratch scratch;
  write(scratch, 1, 9);
  const std::string whole = content(scratch.path("metrics.jsonl"));
  for (const std::string& rest : {std::string("{\"step\": 10, \"lo"), std::string("\0\0\n", 3)}) {
    testing::write_file(scratch.path("metrics.jsonl"), whole + rest);
    ASSERT_TRUE(Metrics::open(scratch.folder(), 10).ok());
    EXPECT_EQ(content(scratch.path("metrics.jsonl")), whole);
  }
}

TEST(Metrics, AFolderThatIsNotThereIsAnErrorWithItsName) {
  const auto metrics = Metrics::open("/nonexistent/run", 0);
  EXPECT_EQ(metrics.status().code(), Code::kIo);
  EXPECT_NE(metrics.status().message().find("/nonexistent/run"), std::string::npos);
}

TEST(Metrics, ThePageShowsLossEvaluationAndPeakAndLoadsNothing) {
  const Scratch scratch;
  write(scratch, 1, 9);
  auto metrics = Metrics::open(scratch.folder(), 9);
  ASSERT_TRUE((*metrics)->plot().ok());
  const std::string page = content(scratch.path("metrics.html"));
  for (const char* part : {"<svg", "polyline", "evaluation loss, step 8: 3", "loss, step 5: 1",
                           "100.0 MiB", "prefers-color-scheme"}) {
    EXPECT_NE(page.find(part), std::string::npos) << part;
  }
  for (const char* part : {"<script", "http:", "https:", "nan", "inf,"}) {
    EXPECT_EQ(page.find(part), std::string::npos) << part;
  }
}

std::string page_of(const std::string& text, const std::string& title) {
  MetricsPage page;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) page.add(line);
  return page.html(title);
}

TEST(Metrics, APageOfManyStepsStaysSmallAndNamesTheLastStepNotAMean) {
  std::string lines;
  for (int64_t step = 1; step <= 20001; ++step) {
    lines += text_of("{\"step\":%lld,\"loss\":%g,\"peak_rss_bytes\":1}\n",
                     static_cast<long long>(step), 2.0 / static_cast<double>(step % 100 + 1));
  }
  const std::string page = page_of(lines, "run");
  EXPECT_LT(page.size(), 100000u);
  EXPECT_NE(page.find("<dt>steps</dt><dd>20001</dd>"), std::string::npos);
  EXPECT_NE(page.find("<dt>loss</dt><dd>1.0000</dd>"), std::string::npos);
}

TEST(Metrics, ThePageOfAResumedRunIsThatOfOneThatWasNeverInterrupted) {
  const Scratch scratch;
  write(scratch, 1, 9);
  ASSERT_TRUE((*Metrics::open(scratch.folder(), 9))->plot().ok());
  const std::string whole = content(scratch.path("metrics.html"));
  auto metrics = Metrics::open(scratch.folder(), 6);
  ASSERT_TRUE(metrics.ok());
  for (int64_t step = 7; step <= 9; ++step) {
    ASSERT_TRUE((*metrics)->add(line(step)).ok());
    if (step % 2 == 0) {
      ASSERT_TRUE((*metrics)->add_evaluation(step, 3).ok());
    }
  }
  ASSERT_TRUE((*metrics)->plot().ok());
  EXPECT_EQ(content(scratch.path("metrics.html")), whole);
}

TEST(Metrics, AFileOfMoreThanOnePieceIsCutAtItsStep) {
  const Scratch scratch;
  write(scratch, 1, 900);  // 270 KB
  const std::string whole = content(scratch.path("metrics.jsonl"));
  ASSERT_GT(whole.size(), 200000u);
  ASSERT_TRUE(Metrics::open(scratch.folder(), 700).ok());
  const std::string kept = content(scratch.path("metrics.jsonl"));
  const size_t after = whole.find("{\"step\":701,");
  ASSERT_NE(after, std::string::npos);
  EXPECT_EQ(kept, whole.substr(0, after));
}

TEST(Metrics, LossesSoLargeThatOneMoreIsTheSameNumberAreDrawn) {
  for (const char* losses :
       {"{\"step\":1,\"loss\":1e17}\n", "{\"step\":1,\"loss\":1e300}\n",
        "{\"step\":1,\"loss\":1e17}\n{\"step\":2,\"loss\":1.00000000000000016e17}\n"}) {
    const std::string page = page_of(losses, "run");
    EXPECT_NE(page.find("polyline"), std::string::npos);
    EXPECT_EQ(page.find("nan"), std::string::npos) << page;
  }
}

TEST(Metrics, APageWithoutLinesOfOursIsAPage) {
  EXPECT_NE(page_of("", "<run>").find("&lt;run&gt;"), std::string::npos);
  const std::string strange = "not json\n[1]\n{\"step\":\"x\"}\n";
  EXPECT_NE(page_of(strange, "run").find("No values yet."), std::string::npos);
}

}  // namespace
}  // namespace headrace
