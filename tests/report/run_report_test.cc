#include "headrace/report/run_report.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <sstream>

namespace headrace {
namespace {

using Json = nlohmann::json;

PlanReport sample_plan() {
  PlanReport p;
  p.model = "Sample";
  p.architecture = "llama";
  p.main_type = "q4_1";
  p.parameters = 134515008;
  p.weight_bytes = 96 * kMiB;
  p.budget_bytes = 64 * kMiB;
  p.budget_source = "set by --memory";
  p.arena_bytes = 50 * kMiB;
  p.reserved = {{"code", 9 * kMiB}, {"growth", 5 * kMiB}, {"arena", 50 * kMiB}};
  p.kv_format = "f16";
  p.context = 256;
  p.trained_context = 2048;
  p.chunk = 16;
  p.decode = {1,        96 * kMiB, 40 * kMiB, 56 * kMiB, 4096,       3 * kMiB,
              6 * kMiB, 0,         0,         kMiB,      10,         20,
              50'000'000, 40'000'000};
  p.prefill = p.decode;
  p.prefill.rows = 16;
  p.machine = {"defaults", "built-in defaults", false, 1, 1e9, 1e10};
  return p;
}

RunReport sample_run() {
  RunReport r;
  r.plan = sample_plan();
  r.exit_reason = "length";
  r.prompt_tokens = 10;
  r.prefill_ns = 500'000'000;
  r.steady_steps = 4;
  r.steady_ns = 400'000'000;
  r.steady_wait_ns = 300'000'000;
  r.steady_loaded = 4 * 56 * kMiB;
  r.steady_read = 4 * (56 * kMiB + 4096);
  r.tokens = {1, 2, 3, 4, 5, 6};
  r.text = "one\ntwo \"three\"";
  return r;
}

TEST(PlanReport, TheTableFitsIn80ColumnsWithEveryStyle) {
  for (const bool fancy : {false, true}) {
    for (const int64_t prefill_rows : {0, 16}) {
      PlanReport p = sample_plan();
      p.prefill.rows = prefill_rows;
      p.machine.source =
          "measured 2026-01-01 on a processor with a name that needs two lines";
      std::istringstream lines(plan_table(p, {fancy, fancy}));
      for (std::string line; std::getline(lines, line);)
        EXPECT_LE(columns(line), 80) << line;
    }
  }
}

TEST(PlanReport, TheClassesOfMemoryAddUpToTheReservations) {
  const PlanReport p = sample_plan();
  EXPECT_EQ(other_bytes(p, p.decode), (64 - 40 - 3 - 6 - 1) * kMiB);
  EXPECT_EQ(plan_table(p, {}).find("not needed"), std::string::npos);
}

TEST(PlanReport, TheTableSaysWhatIsReadAndHowFast) {
  const std::string table = plan_table(sample_plan(), {});
  EXPECT_NE(table.find("20.0 tok/s"), std::string::npos) << table;
  EXPECT_NE(table.find("320 tok/s"), std::string::npos) << "16 tokens a pass: " << table;
  EXPECT_NE(table.find("56.0 MiB"), std::string::npos) << table;
}

TEST(PlanReport, RatesMeasuredWithOtherThreadsSaySo) {
  PlanReport p = sample_plan();
  p.machine.source = "measured 2026-01-01";
  p.machine.measured = true;
  p.machine.threads = 2;
  p.threads = 1;
  const std::string table = plan_table(p, {});
  EXPECT_NE(table.find("measured with 2 threads, this is for 1"), std::string::npos)
      << table;
  p.threads = 2;
  EXPECT_EQ(plan_table(p, {}).find("measured with"), std::string::npos);
}

TEST(PlanReport, BudgetsThatDoNotFitSaySo) {
  const std::string table = budget_table(
      {{8 * kMiB, "25 %"}, {64 * kMiB, "this", true, kMiB, 0, 10'000'000, true}}, {});
  EXPECT_NE(table.find("does not fit"), std::string::npos) << table;
  EXPECT_NE(table.find("nothing"), std::string::npos) << table;
}

TEST(RunReport, RatesAreThoseOfSteadySteps) {
  const RunReport r = sample_run();
  EXPECT_DOUBLE_EQ(decode_tokens_per_s(r), 10);
  EXPECT_DOUBLE_EQ(prefill_tokens_per_s(r), 20);
  EXPECT_DOUBLE_EQ(stall_fraction(r), 0.75);
}

TEST(RunReport, TheBoundIsThatOfTheLinkAsThisRunSawIt) {
  RunReport r = sample_run();
  r.bound_loaded = 2 * 56 * kMiB;
  r.bound_ns = 160'000'000;  // 80 ms a step, of which 25 ms are computing
  EXPECT_STREQ(speed_bound(r).source, "measured in this run");
  EXPECT_DOUBLE_EQ(speed_bound(r).tokens_per_s, 12.5);
  r.bound_ns = 16'000'000;
  EXPECT_DOUBLE_EQ(speed_bound(r).tokens_per_s, 40) << "computing bounds it";
}

TEST(RunReport, WithoutALinkBoundStepTheBoundNeedsAMeasuredMachine) {
  RunReport r = sample_run();
  EXPECT_EQ(speed_bound(r).source, nullptr) << "built-in defaults are no measurement";
  EXPECT_TRUE(Json::parse(run_report_json(r))["bound_tokens_per_s"].is_null());
  EXPECT_TRUE(Json::parse(run_report_json(r))["bound_source"].is_null());
  r.plan.machine.measured = true;
  EXPECT_STREQ(speed_bound(r).source, "machine file");
  // 56 MiB at 1 GB/s take longer than the 25 ms of computing.
  EXPECT_DOUBLE_EQ(speed_bound(r).tokens_per_s, 1e9 / (56.0 * kMiB));
  EXPECT_EQ(Json::parse(run_report_json(r))["bound_source"], "machine file");
}

TEST(RunReport, ARunThatReadsNothingIsBoundByItsComputing) {
  RunReport r = sample_run();
  r.plan.decode.streamed_bytes = r.steady_loaded = 0;
  r.steady_wait_ns = 0;
  EXPECT_STREQ(speed_bound(r).source, "measured in this run");
  EXPECT_DOUBLE_EQ(speed_bound(r).tokens_per_s, 10);
}

TEST(RunReport, TheJsonHoldsEverythingAndCountsPerToken) {
  const Json j = Json::parse(run_report_json(sample_run()));
  EXPECT_EQ(j["read_bytes_per_token"], 56 * kMiB + 4096);
  EXPECT_EQ(j["loaded_bytes_per_token"], 56 * kMiB);
  EXPECT_EQ(j["text"], "one\ntwo \"three\"");
  EXPECT_EQ(j["tokens"].size(), 6u);
  EXPECT_EQ(j["plan"]["ledger"].size(), 3u);
  EXPECT_FALSE(j.contains("error"));
}

TEST(RunReport, WhatWasNotMeasuredIsNullOrZeroNeverInvented) {
  RunReport r;
  const Json j = Json::parse(run_report_json(r));
  EXPECT_TRUE(j["read_bytes_per_token"].is_null());
  EXPECT_EQ(j["decode_tokens_per_s"], 0);
  EXPECT_TRUE(j["bound_tokens_per_s"].is_null());
  EXPECT_TRUE(j["plan"].is_null());
  r.plan = sample_plan();
  r.plan.prefill.rows = 0;
  EXPECT_TRUE(Json::parse(run_report_json(r))["plan"]["prefill"].is_null());
}

TEST(RunReport, TheFinalLineFitsIn80Columns) {
  RunReport r = sample_run();
  r.peak_rss_bytes = 61 * kMiB;
  EXPECT_LE(final_line(r).size(), 80u) << final_line(r);
  EXPECT_EQ(
      final_line(r),
      "6 tokens, 10.0 tok/s; prompt 20.0 tok/s; 56.0 MiB read/token; peak 61.0 MiB");
}

TEST(Progress, TheLineHasRateAndTimeLeftAndKeepsItsWidth) {
  const Progress p{"text", 30, 120, 10'000'000'000};
  const std::string line = progress_line(p, 79, {});
  EXPECT_NE(line.find("text 30/120"), std::string::npos) << line;
  EXPECT_NE(line.find("3.00 tok/s"), std::string::npos) << line;
  EXPECT_NE(line.find("30 s left"), std::string::npos) << line;
  for (const int width : {10, 25, 40, 79})
    EXPECT_LE(columns(progress_line(p, width, {})), width);
  EXPECT_EQ(progress_line(p, 0, {}), "text 30/120  3.00 tok/s  30 s left");
}

}  // namespace
}  // namespace headrace
