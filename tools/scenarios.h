// The published scenarios that this planner is compared with, simulated: LLaMA-8B and DeepSeek-V3
// training steps, a long key-value cache, a long prefill, activation memory. Every assumption is
// printed, and where a published figure cannot be right, why.
//
// No constant here is chosen to reach a figure: shapes are the published ones, machines the shipped
// profiles, and what nobody has published is stated as assumed.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "headrace/plan/step_plan.h"

namespace headrace::cli {

// One comparison. `theirs` is empty where there is nothing to compare with.
struct ScenarioRow {
  std::string figure;
  std::string theirs;
  std::string ours;
};

// A plan that a scenario's figures are taken from.
struct ScenarioPlan {
  std::shared_ptr<const Workload> workload;
  std::vector<TierInfo> tiers;  // of the machine
  Bytes budget = 0;
  bool fits = false;
  Bytes needed = 0;  // when it does not
  // Only when it does:
  Bytes peak = 0;    // of the live bytes, everything kept
  Nanos total_ns = 0, bound_ns = 0, compute_ns = 0;
  std::vector<Considered> portfolio;
  std::shared_ptr<const Program> program;
};

struct Scenario {
  std::string name;
  std::vector<std::string> assumptions;
  std::vector<ScenarioRow> rows;
  std::vector<std::string> remarks;  // why the two differ; what cannot be right
  std::vector<ScenarioPlan> plans;   // all that were made, in order
};

// Plans and simulates all of them: some 35 plans in 6 s. `before` is called with each name and
// may return false to stop (kCancelled). `divide` (>= 1) makes models with so many times fewer
// layers and words, and devices with as much less memory: a quick look at what the code does, whose
// figures compare with nothing published. Deterministic.
Result<std::vector<Scenario>> run_scenarios(
    const std::function<bool(const std::string& name)>& before = {}, int64_t divide = 1);

// As Markdown, for people and for bench/results.
std::string scenarios_text(const std::vector<Scenario>& scenarios);
std::string scenarios_json(const std::vector<Scenario>& scenarios);

}  // namespace headrace::cli
