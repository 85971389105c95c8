// What a training plan and a training run are, as numbers, for people and for programs.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "headrace/report/json_writer.h"
#include "headrace/report/text_style.h"
#include "headrace/train/trainer.h"

namespace headrace {

// One class of data in one step.
struct ClassFigures {
  Bytes total_bytes = 0;       // of all tensors of the class
  Bytes at_peak_bytes = 0;     // on the device when it is fullest
  Bytes stored_bytes = 0, loaded_bytes = 0;
  Bytes recomputed_bytes = 0;  // written again by ops that run twice
  Bytes encoded_bytes = 0;     // that stood on the device or moved in a codec's form
};

struct TrainPlanFigures {
  std::array<ClassFigures, kDataClassCount> classes;  // by DataClass
  Bytes workspace_at_peak = 0;
  Bytes device_peak_bytes = 0;  // of the arena
  std::vector<Bytes> tier_bytes;  // by TierId, the room that copies take
  Nanos step_ns = 0, compute_ns = 0, recompute_ns = 0, stall_ns = 0;
  Bytes loaded_bytes = 0, stored_bytes = 0;
  Bytes floor_bytes = 0;        // that any plan within the arena moves a step, see floor_of()
};
TrainPlanFigures train_plan_figures(const TrainPlan& plan);

// What a step moves at least whatever the plan: persistent state (parameters, masters, moments)
// that the arena cannot hold while the op with the largest operands runs must leave the device and
// come back once a step. Bytes of loads and stores together.
Bytes floor_of(const TrainPlan& plan);

// The table before step 1. At most 100 columns.
std::string train_plan_table(const TrainPlan& plan, const TextStyle& style);
// What other budgets would buy, a line each.
std::string train_budget_table(const TrainPlan& plan, const std::vector<TrainBudget>& budgets);
// Members "train", "memory", "step": see docs/guide/training.md.
void write_train_plan(const TrainPlan& plan, JsonWriter& json);

// A run so far.
struct TrainRunFigures {
  std::string version;
  std::vector<double> losses;     // by step, of this process
  int64_t first_step = 1;
  int64_t steps = 0;              // steps that this process took
  Nanos wall_ns = 0, cpu_ns = 0, stall_ns = 0;
  Nanos steady_wall_ns = 0, steady_cpu_ns = 0;  // without the first step
  Bytes loaded_bytes = 0, stored_bytes = 0;
  int64_t tokens_a_step = 0;
  Bytes peak_rss_bytes = 0;
  Trainer::Replanned replanned;
  std::string exit_reason;        // "steps_done", "cancelled", "error"
  int exit_code = 0;
  std::string error;
  void add(const TrainStepReport& step);
};
double seconds_per_step(const TrainRunFigures& run);
double cpu_seconds_per_step(const TrainRunFigures& run);
std::string train_report_json(const TrainPlan* plan, const TrainRunFigures& run);
// "20 steps: 4.79 s each (4.51 s predicted), 2.75 s of CPU; peak 885.3 MiB of 900.0 MiB; stall 3 %"
std::string run_line(const TrainPlan& plan, const TrainRunFigures& run);
// "step 12/100  loss 3.214  1,240 tok/s  peak 498 MiB  stall 3 %  4 min left".
std::string step_line(const TrainStepReport& step, const TrainRunFigures& run, int64_t steps);

}  // namespace headrace
