// The published scenarios at a third of their size: what is printed is derived from plans that
// keep the planner's promises.
#include "tools/scenarios.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "headrace/ir/trace.h"

namespace headrace::cli {
namespace {

constexpr int64_t kDivide = 3;

const std::vector<Scenario>& scenarios() {
  static const std::vector<Scenario> all = [] {
    auto made = run_scenarios({}, kDivide);
    EXPECT_TRUE(made.ok()) << made.status().message();
    return made.ok() ? std::move(made).value() : std::vector<Scenario>();
  }();
  return all;
}

TEST(Scenarios, AreFiveEachWithAssumptionsFiguresRemarksAndPlans) {
  ASSERT_EQ(scenarios().size(), 5u);
  for (const Scenario& s : scenarios()) {
    EXPECT_FALSE(s.name.empty());
    EXPECT_FALSE(s.assumptions.empty()) << s.name;
    EXPECT_FALSE(s.remarks.empty()) << s.name;
    EXPECT_GE(s.plans.size(), 2u) << s.name;
    int published = 0;
    for (const ScenarioRow& r : s.rows) {
      EXPECT_FALSE(r.figure.empty()) << s.name;
      EXPECT_FALSE(r.ours.empty()) << s.name << ": " << r.figure;
      published += r.theirs.empty() ? 0 : 1;
    }
    EXPECT_GE(published, 1) << s.name;
  }
}

TEST(Scenarios, EveryPlanIsValidAndStaysBelowItsBudgetAndEveryTiersCapacity) {
  int plans = 0;
  for (const Scenario& s : scenarios()) {
    for (const ScenarioPlan& plan : s.plans) {
      if (!plan.fits) {
        EXPECT_GT(plan.needed, plan.budget) << s.name;
        continue;
      }
      const Status status = verify(*plan.program);
      EXPECT_TRUE(status.ok()) << s.name << ": " << status.message();
      EXPECT_LE(peak_bytes(*plan.program), plan.budget) << s.name;
      for (size_t t = 1; t < plan.tiers.size(); ++t) {
        if (plan.tiers[t].capacity == 0) continue;  // nobody has said
        EXPECT_LE(peak_bytes(*plan.program, TierId(static_cast<int64_t>(t))),
                  plan.tiers[t].capacity)
            << s.name << ": " << plan.tiers[t].name;
      }
      ++plans;
    }
  }
  EXPECT_GE(plans, 20);
}

TEST(Scenarios, NoPlanIsSlowerThanAWellKnownPolicyOrFasterThanItsBound) {
  int compared = 0;
  for (const Scenario& s : scenarios()) {
    for (const ScenarioPlan& plan : s.plans) {
      if (!plan.fits) continue;
      EXPECT_GE(plan.total_ns, plan.bound_ns) << s.name;
      EXPECT_GE(plan.bound_ns, plan.compute_ns) << s.name;
      for (const Considered& other : plan.portfolio) {
        if (!other.fits) continue;
        EXPECT_LE(plan.total_ns, other.predicted_ns) << s.name << ": " << other.policy;
        compared += other.policy == "planner" ? 0 : 1;
      }
    }
  }
  EXPECT_GT(compared, 20);
}

TEST(Scenarios, TheTextAndTheJsonHoldEveryRow) {
  const std::string text = scenarios_text(scenarios());
  const auto json = nlohmann::json::parse(scenarios_json(scenarios()));
  ASSERT_EQ(json.size(), scenarios().size());
  for (size_t i = 0; i < scenarios().size(); ++i) {
    const Scenario& s = scenarios()[i];
    EXPECT_NE(text.find("## " + s.name + "\n"), std::string::npos);
    EXPECT_EQ(json[i]["name"], s.name);
    ASSERT_EQ(json[i]["rows"].size(), s.rows.size());
    for (size_t r = 0; r < s.rows.size(); ++r) {
      EXPECT_NE(text.find("| " + s.rows[r].figure + " | "), std::string::npos);
      EXPECT_EQ(json[i]["rows"][r]["ours"], s.rows[r].ours);
    }
  }
}

TEST(Scenarios, StopWhenAsked) {
  std::vector<std::string> names;
  const auto result = run_scenarios([&](const std::string& name) {
    names.push_back(name);
    return names.size() < 2;
  }, kDivide);
  EXPECT_EQ(result.status().code(), Code::kCancelled);
  EXPECT_EQ(names.size(), 2u);
}

}  // namespace
}  // namespace headrace::cli
