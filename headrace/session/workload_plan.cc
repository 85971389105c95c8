#include "headrace/session/workload_plan.h"

#include <algorithm>

#include "headrace/base/system.h"
#include "headrace/session/quick_probe.h"

namespace headrace {
namespace {

// The machine's own disk: the tier "file", or the first one beside the device.
TierInfo disk_of(const Machine& machine) {
  const auto file = std::find_if(machine.tiers.begin(), machine.tiers.end(),
                                 [](const TierInfo& t) { return t.name == "file"; });
  return file == machine.tiers.end() ? machine.tiers[1] : *file;
}

Status choose_tiers(const WorkloadPlanOptions& o, WorkloadPlan* out) {
  out->folder = o.folder;
  if (o.machine != nullptr) HR_TRY(verify(*o.machine));
  if (o.machine != nullptr && o.folder.empty()) {
    out->machine = *o.machine;
    return {};
  }
  if (out->folder.empty()) out->folder = scratch_folder();
  if (out->folder.empty()) {
    return error(Code::kUsage, "no folder on a disk for the scratch file: neither $TMPDIR nor "
                 "/var/tmp nor the current one is on a disk and can be written to; name one");
  }
  HR_ASSIGN(const FolderFacts facts, look_at_folder(out->folder));
  if (facts.in_memory) {
    return error(Code::kUsage, "%s is in memory (tmpfs), which is what the budget is about; name a "
                 "folder on a disk", out->folder.c_str());
  }
  out->machine = o.machine != nullptr ? *o.machine : quick_machine(out->folder, default_threads());
  TierInfo disk = disk_of(out->machine);
  disk.name = "scratch";
  disk.capacity = facts.free_bytes;
  disk.alignment = kPage;
  disk.group = -1;
  out->machine.tiers.resize(1);
  out->machine.tiers.push_back(disk);
  return verify(out->machine);
}

}  // namespace

void align_for_disks(Graph* graph) {
  for (Tensor& t : graph->tensors) {
    const bool plain = t.role == Role::kState || t.role == Role::kActivation;
    if (plain && t.bytes >= kPage / 2) t.alignment = kPage;
  }
}

Result<WorkloadResult> plan_workload(Workload workload, const WorkloadPlanOptions& o) {
  WorkloadPlan out;
  HR_TRY(choose_tiers(o, &out));
  const auto& tiers = out.machine.tiers;
  if (std::any_of(tiers.begin(), tiers.end(),
                  [](const TierInfo& t) { return t.alignment >= kPage; })) {
    align_for_disks(&workload.graph);
  }
  const auto shared = std::make_shared<const Workload>(std::move(workload));
  StepRequest r;
  r.name = shared->graph.name;
  r.workload = shared;
  r.machine = &out.machine;
  r.budget = o.budget;
  r.cost.rows = shared->graph.max_rows;
  r.goal = o.goal;
  r.reorder = o.reorder;
  r.recompute = o.recompute;
  out.facts = {r.name, out.machine.name, o.budget, "set by the caller", name_of(o.goal)};
  HR_ASSIGN(StepResult result, plan_step(r));
  if (const auto* no = std::get_if<Infeasible>(&result)) {
    return WorkloadResult(WorkloadRefusal{*no, infeasible_text(*no, shared->graph, out.facts)});
  }
  out.plan = std::get<StepPlan>(std::move(result));
  return WorkloadResult(std::move(out));
}

}  // namespace headrace
