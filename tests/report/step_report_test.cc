// What plan_step decided, in words.
#include "headrace/report/step_report.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <sstream>

#include "tests/report/small_step.h"

namespace headrace {
namespace {

using Json = nlohmann::json;

StepRequestFacts facts() {
  return {"two layers", "test machine", 268435456, "set by --memory", "latency"};
}

TEST(Explain, SaysWhyWhereHowEarlyAndWhatElseItWouldHaveCost) {
  const StepPlan plan = test::two_layers_plan();
  EXPECT_EQ(explain_text(plan, 268435456, 10, {}),
            R"(Why one idle gap is spent as it is
   1. 'x' (64.0 MiB, input) moves to 'host': nothing touches it between 'layer.1.forward' and
      'layer.1.back.w', for 9.93 ms. Were everything kept, the step would be up to 64.0 MiB over its
      budget then: this frees 64.0 MiB of them. It is back just in time. It adds 5.30 ms to the
      step. Instead, keeping it compressed would have added 2.00 us. Not possible: computing it
      again.
)");
}

TEST(Explain, TellsTheLeadAndPartsAndRecomputation) {
  StepPlan plan = test::two_layers_plan();
  Choice c = plan.choices[0];
  c.lead_ns = 6'711'000;  // twice what 64 MiB take at 20 GB/s
  c.added_ns = 0;
  EXPECT_NE(explain_choice(plan.program, c, 0).find(
                "It is back 6.71 ms before it is needed (2.00 times as long as the copy takes). It "
                "adds nothing to the step."),
            std::string::npos)
      << explain_choice(plan.program, c, 0);
  c.range = {0, 16777216};
  EXPECT_EQ(explain_choice(plan.program, c, 0).rfind("16.0 MiB of 'x' (64.0 MiB", 0), 0u);
  c = plan.choices[0];
  c.way = Way::kRecompute;
  const std::string text = explain_choice(plan.program, c, 0);
  EXPECT_NE(text.find("is dropped and computed again"), std::string::npos) << text;
  EXPECT_NE(text.find("moving it would have added 5.30 ms"), std::string::npos) << text;
  c.before = c.after;
  EXPECT_NE(explain_choice(plan.program, c, 0).find("until 'layer.1.forward' runs again"),
            std::string::npos);
  c.before = OpId();
  EXPECT_NE(explain_choice(plan.program, c, 0).find("to the end of the step"), std::string::npos);
}

TEST(Explain, ShowsTheFirstOnesAndSaysHowToSeeAll) {
  StepPlan plan = test::two_layers_plan();
  plan.choices.assign(30, plan.choices[0]);
  const std::string text = explain_text(plan, 268435456, 3, {});
  EXPECT_NE(text.find("Why 30 idle gaps are spent as they are, the first 3 (--all shows all)"),
            std::string::npos);
  EXPECT_NE(text.find("   3. "), std::string::npos);
  EXPECT_EQ(text.find("   4. "), std::string::npos);
  plan.choices.clear();
  EXPECT_NE(explain_text(plan, 1, 3, {}).find("Everything stays"), std::string::npos);
}

TEST(Explain, OverIsTheMostThatKeepingEverythingWouldExceedTheBudgetByInTheGap) {
  const StepPlan plan = test::two_layers_plan();
  // At 'loss': two weights of 32 MiB, x, both layers' outputs and dy of 64 MiB each.
  EXPECT_EQ(over_by_choice(plan, 268435456), std::vector<Bytes>{67108864});
  EXPECT_EQ(over_by_choice(plan, 335544320), std::vector<Bytes>{0});
}

TEST(StepPlanTable, NamesTimeBoundMemoryAndEveryPolicyInHundredColumns) {
  const StepPlan plan = test::two_layers_plan();
  const std::string text = step_plan_text(plan, facts(), {});
  for (const char* part :
       {"two layers", "9 ops, 9 tensors", "256.0 MiB (set by --memory)", "7.60 ms", "stalls",
        "no plan is below", "everything kept", "320.0 MiB at the peak", "moved to host",
        "host store", "keep everything", "does not fit", "+100.00 %", "chosen", "order 9"})
    EXPECT_NE(text.find(part), std::string::npos) << part << "\n" << text;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) EXPECT_LE(columns(line), 100) << line;
}

TEST(StepPlanTable, ControlCharactersOfNamesDoNotReachATerminal) {
  StepRequestFacts f = facts();
  f.workload = "a\x1b[31mred\nline";
  const std::string text = step_plan_text(test::two_layers_plan(), f, {});
  EXPECT_EQ(text.find('\x1b'), std::string::npos);
  EXPECT_EQ(text.rfind("a?[31mred?line\n", 0), 0u);
}

TEST(StepPlanJson, CarriesTheSameNumbers) {
  const StepPlan plan = test::two_layers_plan();
  const Json json = Json::parse(step_plan_json(plan, facts(), 5));
  EXPECT_EQ(json["fits"], true);
  EXPECT_EQ(json["budget_bytes"], 268435456);
  EXPECT_NEAR(json["predicted_s"], static_cast<double>(plan.predicted.total_ns) / 1e9, 1e-12);
  EXPECT_NEAR(json["bound"]["gap"], gap_to_bound(plan), 1e-12);
  EXPECT_EQ(json["tiers"][0]["peak_bytes"], 268435456);
  EXPECT_EQ(json["tiers"][1]["at_peak"]["input"], 67108864);
  EXPECT_EQ(json["portfolio"].size(), 3u);
  EXPECT_EQ(json["choices"][0]["tensor"], "x");
  EXPECT_EQ(json["choices"][0]["way"], "move");
  EXPECT_TRUE(json["choices"][0]["recompute_s"].is_null());
  EXPECT_EQ(Json::parse(step_plan_json(plan, facts(), 0))["choices"].size(), 0u);
}

TEST(Certificate, NamesTheOpTheLiveSetTheLeastBudgetAndTheOptions) {
  const Program p = test::two_layers();
  Infeasible no;
  no.op = OpId(1);
  no.needed_bytes = 167772160;
  no.budget = 104857600;
  no.live = {TensorId(2), TensorId(3), TensorId(0)};
  no.workspace = 4096;
  no.reason = "its operands must be there together";
  no.options = {"a budget of 160 MiB", "a smaller batch"};
  EXPECT_EQ(infeasible_text(no, *p.graph, facts()),
            R"(100.0 MiB do not hold a step of two layers, whatever is moved or computed again
the least budget is 160.0 MiB (167772160 bytes); 60.0 MiB are missing
its operands must be there together
while 'layer.1.forward' runs, these are on the device together:
      64.0 MiB  input       x
      64.0 MiB  activation  layer.1.out
      32.0 MiB  weight      layer.1.w
      4.00 KiB  workspace
what would make it fit:
  a budget of 160 MiB
  a smaller batch)");
  const Json json = Json::parse(infeasible_json(no, *p.graph, facts()));
  EXPECT_EQ(json["fits"], false);
  EXPECT_EQ(json["op"], "layer.1.forward");
  EXPECT_EQ(json["live"].size(), 3u);
  EXPECT_EQ(json["options"][1], "a smaller batch");
}

TEST(StepPlanPage, EscapesNames) {
  StepRequestFacts f = facts();
  f.machine = "<script>";
  const std::string html = step_plan_html(test::two_layers_plan(), f, 5);
  EXPECT_EQ(html.find("<script>"), std::string::npos);
  EXPECT_NE(html.find("&#39;x&#39; (64.0 MiB, input) moves to"), std::string::npos);
}

}  // namespace
}  // namespace headrace
