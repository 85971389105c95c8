// A workload planned for this machine: what the Python doors ask for. The device is an arena, and
// beside it there is one tier, a scratch file in a folder on a disk.
#pragma once

#include <memory>
#include <string>
#include <variant>

#include "headrace/plan/step_plan.h"
#include "headrace/report/step_report.h"

namespace headrace {

struct WorkloadPlanOptions {
  Bytes budget = 0;     // of the arena
  // Where the scratch file will be: the machine then has the device and that, with the rates of its
  // own disk. Empty: the tiers of `machine` as they are; without a machine, scratch_folder().
  std::string folder;
  const Machine* machine = nullptr;  // null: a quick probe of the folder (quick_probe.h)
  bool recompute = true;
  bool reorder = false;
  Goal goal = Goal::kThroughput;
};

struct WorkloadPlan {
  StepPlan plan;
  StepRequestFacts facts;
  Machine machine;      // with the tiers of the Program
  std::string folder;   // of the scratch file; empty: planned for another machine's tiers
};
struct WorkloadRefusal {
  Infeasible why;
  std::string text;     // infeasible_text
};
using WorkloadResult = std::variant<WorkloadPlan, WorkloadRefusal>;

// Errors of plan_step; kIo when the folder is not there; kUsage when it is in memory, or none was
// given and this machine has no folder on a disk that can be written to.
Result<WorkloadResult> plan_workload(Workload workload, const WorkloadPlanOptions& options);

// Gives state and activations of at least half a page the alignment of a page: disks are written in
// pages, and what is worth moving has whole ones.
void align_for_disks(Graph* graph);

}  // namespace headrace
