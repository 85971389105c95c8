// The published scenarios that this planner is compared with, simulated: LLaMA-8B and DeepSeek-V3
// training steps, a long key-value cache, a long prefill, activation memory. Every assumption is
// printed, and where a published figure cannot be right, why.
//
// No constant here is chosen to reach a figure: shapes are the published ones, machines the shipped
// profiles, and what nobody has published is stated as assumed.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "headrace/base/status.h"

namespace headrace::cli {

// One comparison. `theirs` is empty where there is nothing to compare with.
struct ScenarioRow {
  std::string figure;
  std::string theirs;
  std::string ours;
};

struct Scenario {
  std::string name;
  std::vector<std::string> assumptions;
  std::vector<ScenarioRow> rows;
  std::vector<std::string> remarks;  // why the two differ; what cannot be right
};

// Plans and simulates all of them: some 30 plans, a minute or less. `before` is called with the
// name of each and may return false to stop (kCancelled). Deterministic.
Result<std::vector<Scenario>> run_scenarios(
    const std::function<bool(const std::string& name)>& before = {});

// As Markdown, for people and for bench/results.
std::string scenarios_text(const std::vector<Scenario>& scenarios);
std::string scenarios_json(const std::vector<Scenario>& scenarios);

}  // namespace headrace::cli
