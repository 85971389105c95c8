// TrainPlan: what a training run will do with its budget, decided before a parameter is read.
//
// Promises
//   1. The ledger's items add up to at most the budget; the arena is one of them.
//   2. kDoesNotFit names the shortfall, the op, the least budget that would do, and the options.
//   3. Which plan is chosen changes no bit of any loss or parameter.
#pragma once

#include <memory>
#include <string>

#include "headrace/base/ledger.h"
#include "headrace/plan/step_plan.h"
#include "headrace/train/step.h"
#include "headrace/train/train_config.h"

namespace headrace {

// Beside the device, the tiers of `machine` that state may live in: name and folder.
struct StateTier {
  std::string name;
  std::string folder;    // on a disk; empty: in this process's memory, beside the budget
  Bytes capacity = 0;    // 0: what the disk has free
};

// What a budget bounds.
enum class BudgetOf : uint8_t {
  kProcess,  // resident bytes of the whole process: headrace's own
  kGrowth,   // what the process grows by, above TrainOptions::baseline_bytes: another's process
};

struct TrainOptions {
  TrainConfig config;
  Bytes memory_bytes = 0;  // the budget
  BudgetOf budget_of = BudgetOf::kProcess;
  Bytes baseline_bytes = 0;
  int threads = 1;
  Machine machine;         // tiers[1]: the disk that state goes to, where nothing else is said
  std::vector<StateTier> tiers;  // empty: the RUN folder alone
  bool profile = true;     // measure ops here first; false: predict them
  bool paranoid = false;
  Bytes arena_bytes = 0;   // tests: the arena's room, instead of what the budget leaves; 0: that
};

struct TrainPlan {
  TrainOptions options;
  BudgetLedger ledger{0};
  Machine machine;         // as it was planned for: the tiers of the Program
  std::shared_ptr<const TrainStep> step;
  StepPlan plan;
  std::string frozen_file; // where frozen parameters lie; empty: nothing is frozen
  Bytes arena_bytes = 0;
  Bytes full_arena_bytes = 0;  // with which nothing moves and nothing runs twice
};

// Errors: kUsage and kUnsupported as build_train_step; kDoesNotFit.
Result<TrainPlan> plan_training(const TrainOptions& options, const StepModel& model);

// Why there is no plan, as numbers.
struct TrainRefusal {
  Bytes needed_bytes = 0;            // the least budget that would do
  std::vector<std::string> options;  // what would make it fit, best first
};

// The same for steps that are built already and differ in the order of their ops alone; the fastest
// is taken. Of options.config: name, out, recompute, and for people batch, sequence and precision.
// kUnsupported: more ops than can be planned; kDoesNotFit, with *refusal set where it is not null.
Result<TrainPlan> plan_steps(const TrainOptions& options,
                             std::vector<std::shared_ptr<TrainStep>> steps,
                             TrainRefusal* refusal = nullptr);

// "--memory 12MiB" or "memory='12MiB'": how a user asks for a budget of so many bytes, rounded up.
std::string budget_words(const TrainOptions& options, Bytes bytes);

// What plan_step is asked for: `step` on plan.machine in an arena of `arena` bytes. Borrows both.
StepRequest train_request(const TrainPlan& plan, const std::shared_ptr<const TrainStep>& step,
                          Bytes arena);

// The same step at another budget.
struct TrainBudget {
  Bytes memory_bytes = 0;
  bool fits = false;
  Nanos step_ns = 0;
  Bytes moved_bytes = 0;  // loaded and stored, a step
};
// What budgets from a half of the plan's to twice it would buy; as far as everything stays on the
// device.
Result<std::vector<TrainBudget>> other_budgets(const TrainPlan& plan);

// Memory beside the arena and this process as it is: transfers, checkpoints, data, plans.
Bytes train_overhead(const TrainStep& step, int threads);

}  // namespace headrace
