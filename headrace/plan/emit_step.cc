// The walk from the first position to the last, and the three stages of emit.
#include "headrace/plan/emit_step.h"

#include <algorithm>

#include "headrace/plan/emit_step_walker.h"

namespace headrace::plan::walk {

Result<Draft> Walker::run() {
  begin();
  find_last_uses();
  for (size_t v = 0; v < p_.values.size(); ++v) enter(static_cast<int32_t>(v));
  size_t a = 0;
  for (int32_t k = 0; k <= p_.size(); ++k) {
    const size_t first = a;
    while (a < s_.actions.size() && s_.actions[a].before == k) ++a;
    done_.clear();
    for (size_t i = first; i < a; ++i) HR_TRY(act(i, a));
    if (k < p_.size()) {
      HR_TRY(compute(k, p_.order[static_cast<size_t>(k)], {k, kCompute}, kNone, first, first));
    }
  }
  if (a != s_.actions.size()) return fault("actions that are not by position", kNone);
  for (size_t v = 0; v < p_.values.size(); ++v) HR_TRY(leave(static_cast<int32_t>(v)));
  return finish();
}

Status Walker::fault(const std::string& what, int32_t v) const {
  return error(Code::kUnsupported, "a schedule of '%s' with %s%s%s", g_.name.c_str(), what.c_str(),
               v == kNone ? "" : ": ", v == kNone ? "" : tensor(v).name.c_str());
}

void Walker::begin() {
  Program& p = program();
  p.name = p_.request->name;
  p.graph = std::shared_ptr<const Graph>(p_.request->workload, &p_.request->workload->graph);
  p.cyclic = p_.cyclic;
  p.tiers = p_.machine->tiers;
  p.tiers[0].capacity = p_.request->budget;
  if (p_.source_tier.valid()) p.source_tier = p_.source_tier;
  p.machine = p_.machine->name;
  p.instrs.reserve(p_.order.size() + s_.actions.size());
  for (size_t t = 0; t < g_.tensors.size(); ++t) {
    if (g_.tensors[t].role != Role::kConstant) continue;
    const int32_t r = open(TensorId(static_cast<int64_t>(t)), kDevice, Codec::kNone, {},
                           device_bytes(g_.tensors[t]), kEntry.value, d_.blocks++);
    held_.push_back(r);
  }
}

// Recomputation may read a value after its last touch: it then lives that long.
void Walker::find_last_uses() {
  for (size_t v = 0; v < p_.values.size(); ++v) {
    const auto& touches = p_.values[v].touches;
    if (!touches.empty()) lives_[v].last_use = {touches.back(), kCompute};
  }
  for (size_t a = 0; a < s_.actions.size(); ++a) {
    const Action& action = s_.actions[a];
    if (action.kind != ActionKind::kRecompute || action.value < 0) continue;
    const int32_t producer = value(action.value).producer;
    if (producer < 0) continue;
    const Moment now{action.before, static_cast<int32_t>(a)};
    for (int32_t v : p_.reads[static_cast<size_t>(producer)]) {
      life(v).last_use = std::max(life(v).last_use, now);
    }
  }
}

}  // namespace headrace::plan::walk

namespace headrace::plan {

Result<Draft> walk_schedule(const Problem& problem, const Schedule& schedule) {
  if (schedule.at_entry.size() != problem.values.size()) {
    return error(Code::kUnsupported, "a schedule of '%s' for another problem",
                 problem.graph->name.c_str());
  }
  return walk::Walker(problem, schedule).run();
}

Result<Emitted> emit_step(const Problem& problem, const Schedule& schedule,
                          const EmitOptions& options) {
  HR_ASSIGN(Draft draft, walk_schedule(problem, schedule));
  Emitted result;
  HR_TRY(assign_extents(problem, options, draft, result));
  add_byte_waits(draft);
  result.program = std::move(draft.program);
  return result;
}

}  // namespace headrace::plan
