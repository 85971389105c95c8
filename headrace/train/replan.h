// Re-planning: a plan made anew with what a step has shown, where that is worth the move.
#pragma once

#include <optional>

#include "headrace/train/train_plan.h"

namespace headrace {

struct Replan {
  TrainPlan plan;
  Nanos now_ns = 0;    // a step of the running plan, by what was measured
  Nanos then_ns = 0;   // of the new one
};

// `trace` is of one step of plan's Program on this machine. Ops take from now on what they took in
// it, links move what they moved while they were busy. Nothing when a new plan is not predicted to
// be 3 % faster. Deterministic in its arguments. Errors of plan_step.
Result<std::optional<Replan>> plan_again(const TrainPlan& plan, const Trace& trace);

// The machine with the rates of links as `trace` shows them: bytes over the time in which at least
// one transfer of that direction was under way; where fewer than 256 KiB moved, as before.
Machine measured_machine(const Machine& machine, const Program& program, const Trace& trace);

}  // namespace headrace
