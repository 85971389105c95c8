// Trainer: a training run. Owns the engine and the counters; takes steps, evaluates, saves, resumes.
//
// Promises
//   1. Losses and parameters are the same bits for every budget, plan, tier, delay and number of
//      threads, and whether or not the run was interrupted and resumed.
//   2. A step whose loss or gradient norm is not finite changes no parameter. It is reported, and
//      ends the run with kNotFinite naming the op and the element, unless the config says "skip", or
//      gradients are scaled (f16) and a smaller scale can be tried.
//   3. evaluate() changes nothing.
//   4. After an error nothing more runs; checkpoints on the disk stay as they are.
// Not thread-safe.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "headrace/train/checkpoint.h"
#include "headrace/train/dataset.h"
#include "headrace/train/engine.h"
#include "headrace/train/train_plan.h"

namespace headrace {

// What one step was.
struct TrainStepReport {
  int64_t step = 0;         // from 1
  double loss = 0;          // mean over the step's targets
  std::optional<double> gradient_norm;  // when the step computes one
  double rate = 0;
  bool skipped = false;     // not finite: nothing changed
  Nanos wall_ns = 0;
  Nanos cpu_ns = 0;         // of all threads of the process
  Nanos stall_ns = 0;       // of wall_ns: compute stood still for transfers
  Bytes loaded_bytes = 0, stored_bytes = 0;
};

// Elements [begin, begin + out.size()) of a parameter's tile, in the order that we hold them, as f32.
using InitialValues =
    std::function<Status(const Parameter& tile, int64_t begin, std::span<float> out)>;

class Trainer {
 public:
  struct Sources {
    const Dataset* data = nullptr;       // borrowed
    const Dataset* eval_data = nullptr;  // borrowed; null: evaluate() is refused
    InitialValues initial;               // called during start() only
  };

  // A new run, or with `checkpoint` (a folder) that run gone on with: kUsage when it is of another
  // model. Frozen parameters are written to plan.frozen_file first, when they are not there yet.
  static Result<std::unique_ptr<Trainer>> start(TrainPlan plan, const Sources& sources,
                                                const std::string& checkpoint = "",
                                                const ByteProgress& progress = {},
                                                const EngineOptions& test_options = {});

  // Steps done so far.
  int64_t done() const { return done_; }
  Result<TrainStepReport> step();
  // Mean loss over the evaluation data. kUsage when there is none.
  Result<double> evaluate();
  // A checkpoint of the steps done so far.
  Status save(const ByteProgress& progress = {});

  // After a step: plans again with what it has shown. Where the new plan is predicted to save more
  // over the steps that are left than moving all state to its places takes (through files in the RUN
  // folder, removed afterwards), the run goes on with it.
  struct Replanned {
    bool swapped = false;
    Nanos before_ns = 0, after_ns = 0;  // predicted for a step; 0: no better plan was found
  };
  Result<Replanned> replan(int64_t steps_left);

  // What the gradients of the next step are multiplied by; 1 but in f16.
  double loss_scale() const { return rows_.loss_scale; }
  const TrainPlan& plan() const { return plan_; }
  TrainEngine& engine() { return *engine_; }
  // Of the last step or evaluation.
  const Trace& trace() const { return trace_; }

 private:
  Trainer() = default;
  Status start_engine();
  Status save_to(const std::string& folder, int64_t keep, const ByteProgress& progress);
  std::string replan_folder() const;
  Status stream_initial(
      const Parameter& tile, DType dtype, const InitialValues& initial,
      const std::function<Status(Bytes at, std::span<const std::byte> bytes)>& sink);
  Status write_frozen(bool fresh, const InitialValues& initial, const ByteProgress& progress);
  Status write_initial(const InitialValues& initial, const ByteProgress& progress);
  Status resume(const std::string& folder, const ByteProgress& progress);
  Status write_copy(const Parameter& p, Bytes begin, std::span<const std::byte> master);
  Status fill_rows(const Dataset& data, int64_t first_sample, int64_t samples);
  Status run_step(double* loss);
  Status explain_not_finite(double loss, std::optional<double> norm);
  bool scales_loss() const { return plan_.options.config.precision == Precision::kF16; }
  bool adapt_loss_scale(bool skipped);
  CheckpointInfo checkpoint_info() const;

  TrainPlan plan_;
  EngineOptions engine_options_;
  const Dataset* data_ = nullptr;
  const Dataset* eval_data_ = nullptr;
  std::unique_ptr<TrainEngine> engine_;
  std::vector<std::byte> block_;  // kCheckpointBlock bytes
  StepRows rows_;
  Trace trace_;
  int64_t done_ = 0;         // steps
  int64_t saved_ = 0;        // steps of the newest checkpoint; 0: none
  int64_t next_sample_ = 0;  // of the dataset
  int64_t skipped_ = 0;      // steps in a row
  int64_t good_steps_ = 0;  // in a row since the loss scale was last changed
};

}  // namespace headrace
