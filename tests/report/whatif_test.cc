// Sweeps over budget and bandwidth.
#include "headrace/report/whatif.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/report/small_step.h"

namespace headrace {
namespace {

TEST(Ranges, BudgetsAreSpacedEvenlyAndEndWhereAsked) {
  const auto five = parse_budgets("16GiB..48GiB");
  ASSERT_TRUE(five.ok());
  EXPECT_EQ(*five, (std::vector<Bytes>{16 * kGiB, 24 * kGiB, 32 * kGiB, 40 * kGiB, 48 * kGiB}));
  EXPECT_EQ(parse_budgets("1GiB..2GiB:3")->at(1), 3 * kGiB / 2);
  EXPECT_EQ(*parse_budgets("24GiB"), std::vector<Bytes>{24 * kGiB});
  for (const char* bad : {"", "..", "2GiB..1GiB", "1GiB..2GiB:1", "1GiB..2GiB:x", "1GiB..2GiB:999",
                          "banana", "1GiB..banana"})
    EXPECT_EQ(parse_budgets(bad).status().code(), Code::kUsage) << bad;
}

TEST(Ranges, BandwidthsAreSpacedInRatio) {
  const auto four = parse_bandwidths("16..128:4");
  ASSERT_TRUE(four.ok());
  ASSERT_EQ(four->size(), 4u);
  EXPECT_NEAR((*four)[1], 32e9, 1);
  EXPECT_EQ((*four)[3], 128e9);
  EXPECT_EQ(*parse_bandwidths("33.6"), std::vector<double>{33.6e9});
  for (const char* bad : {"", "0", "-4", "nan", "inf", "16..8", "16..x", "16GB"})
    EXPECT_EQ(parse_bandwidths(bad).status().code(), Code::kUsage) << bad;
}

class Sweep : public ::testing::Test {
 protected:
  Sweep() {
    Workload w;
    w.graph = *test::two_layers().graph;
    request_.name = "two layers";
    request_.workload = std::make_shared<const Workload>(std::move(w));
    machine_ = Machine::defaults(1);
    machine_.tiers = {{"device", 0, 0, 0, 0}, {"host", kGiB, 2e10, 2e10, 10'000, true}};
    machine_.matmul_per_s.fill(1e14);
    request_.machine = &machine_;
  }
  Result<Whatif> run(const std::string& link = "host") {
    return what_if(request_, link, {96 * kMiB, 192 * kMiB, 256 * kMiB, 320 * kMiB},
                   {5e9, 2e10, 8e10}, [](size_t) { return true; });
  }
  Machine machine_;
  StepRequest request_;
};

TEST_F(Sweep, TimesNeverRiseAsBudgetOrBandwidthRises) {
  const auto w = run();
  ASSERT_TRUE(w.ok()) << w.status().message();
  ASSERT_EQ(w->points.size(), 12u);
  for (size_t k = 0; k < 3; ++k) {
    EXPECT_FALSE(w->at(k, 0).fits) << "an op needs 160 MiB";
    EXPECT_TRUE(w->at(k, 3).fits);
    for (size_t i = 0; i < 4; ++i) {
      const WhatifPoint& p = w->at(k, i);
      for (const WhatifPoint* below :
           {i > 0 ? &w->at(k, i - 1) : &p, k > 0 ? &w->at(k - 1, i) : &p}) {
        if (!below->fits) continue;
        EXPECT_TRUE(p.fits);
        EXPECT_LE(p.predicted_ns, below->predicted_ns) << k << " " << i;
      }
      if (p.fits) {
        EXPECT_GE(p.predicted_ns, p.bound_ns);
      }
    }
  }
}

TEST_F(Sweep, IsToldAsTableCsvJsonAndPage) {
  const auto w = run();
  ASSERT_TRUE(w.ok());
  const std::string text = whatif_text(*w, {});
  EXPECT_NE(text.find("does not fit"), std::string::npos);
  EXPECT_NE(text.find("a 5.00 GB/s, b 20.0 GB/s, c 80.0 GB/s"), std::string::npos) << text;
  const std::string csv = whatif_csv(*w);
  EXPECT_EQ(std::count(csv.begin(), csv.end(), '\n'), 13);
  const auto json = nlohmann::json::parse(whatif_json(*w));
  EXPECT_EQ(json["points"].size(), 12u);
  EXPECT_EQ(json["points"][0]["fits"], false);
  const std::string html = whatif_html(*w);
  EXPECT_NE(html.find("<polyline"), std::string::npos);
  EXPECT_EQ(html.find("http:"), std::string::npos);
  EXPECT_EQ(html.find("https:"), std::string::npos);
}

TEST_F(Sweep, ALinkThatIsNotThereIsRefusedWithTheNames) {
  const auto w = run("moon");
  EXPECT_EQ(w.status().code(), Code::kUsage);
  EXPECT_NE(w.status().message().find("it has host"), std::string::npos);
}

TEST_F(Sweep, StopsWhenAsked) {
  const auto w = what_if(request_, "host", {256 * kMiB}, {1e10}, [](size_t) { return false; });
  EXPECT_EQ(w.status().code(), Code::kCancelled);
}

}  // namespace
}  // namespace headrace
