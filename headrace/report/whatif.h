// What if: the time of a step against the device's budget and a link's bandwidth.
//
// Promise: along a row (more memory) and along a column (a faster link) the time never rises, since
// each point may keep the plan of the point before it: that one still fits, and is not slower.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "headrace/plan/step_plan.h"
#include "headrace/report/text_style.h"

namespace headrace {

struct WhatifPoint {
  Bytes budget = 0;
  double bandwidth = 0;       // bytes a second, each way
  bool fits = false;
  Nanos predicted_ns = 0;
  Nanos bound_ns = 0;         // 0: unknown
  Bytes moved_bytes = 0;      // loaded and stored
  bool inherited = false;     // the plan is that of less memory or of a slower link
};

struct Whatif {
  std::string workload, machine, link;   // link: the tier whose bandwidth varies
  std::vector<Bytes> budgets;            // ascending
  std::vector<double> bandwidths;        // ascending
  std::vector<WhatifPoint> points;       // by bandwidth, then budget
  const WhatifPoint& at(size_t bandwidth, size_t budget) const {
    return points[bandwidth * budgets.size() + budget];
  }
};

// Plans every point. `request` gives workload, goal and machine; `link` is the tier of the machine
// whose load and store rates are set (those of the tiers that share its link as well). Budgets and
// bandwidths must ascend. Called before each point: `before(done)`; false stops (kCancelled).
// kUsage when the machine has no such tier; errors of plan_step.
Result<Whatif> what_if(const StepRequest& request, const std::string& link,
                       const std::vector<Bytes>& budgets, const std::vector<double>& bandwidths,
                       const std::function<bool(size_t done)>& before);

std::string whatif_text(const Whatif& whatif, const TextStyle& style);  // table and plot
std::string whatif_csv(const Whatif& whatif);    // budget_bytes,bandwidth_bytes_per_s,...
std::string whatif_json(const Whatif& whatif);
std::string whatif_html(const Whatif& whatif);   // one self-contained page: plot and table

// "16GiB..48GiB", "16GiB..48GiB:9", "24GiB": evenly spaced, whole MiB. kUsage.
Result<std::vector<Bytes>> parse_budgets(const std::string& text);
// "16..128", "16..128:7", "33.6": GB/s, evenly spaced in ratio. kUsage.
Result<std::vector<double>> parse_bandwidths(const std::string& text);

}  // namespace headrace
