// CapturedStep: a training step that somebody else wrote down, a list of forward ops, run under a
// memory budget: planned as plan_training() plans, executed by a TrainEngine.
//
// THE FORMAT of a captured forward pass is one JSON object. What computes gradients, clips, steps
// parameters and moves bytes is added here; nothing is fused here, ops run as they are given.
//
//   {"headrace_forward": 1,
//    "name": "LlamaForCausalLM",     for people
//    "precision": "f32",             or "bf16" (products in bf16, f32 masters of 2-dim parameters),
//                                    or "bf16_stochastic" (bf16 without masters, rounded by chance)
//    "rows": 2048,                   of the whole step: of StepRows::tokens and targets
//    "sequences": 4,                 they are of, for people (optional)
//    "parameters": [...], "constants": [...], "inputs": [...], "micro_batches": [...]}
//
//   parameter  {"name": "model.embed_tokens.weight",
//               "shape": [32000, 512],  as the caller has it: one or two numbers
//               "dtype": "f32",         of the bytes that read() and write() exchange: f32, bf16
//               "trainable": true,      (optional, as are all below)
//               "group": 0,             of the optimizer, see below
//               "transposed": false,    true: the caller's [k, n] is [n, k] for the ops (Conv1D)
//               "aliases": ["lm_head.weight"],  other names of the same (tied) parameter
//               "remote_memory": {"max_size": 134217728, "prefetch_priority": 80}}
//              For the ops, shape [n] is f32 [1, n] (norms, biases), and [r, c] is [r, c] of the
//              compute type c: f32, or bf16 where the precision says so. remote_memory is as in a
//              workload: PlacementRule::remote, max_size in bytes of all tiles together (0: all).
//   constant   {"name": "inv_freq", "values": [1, 0.1, ...]}: f32 [1, n]
//   input      {"name": "images", "shape": [64, 3072], "dtype": "f32", "count": 1}: written before
//              every step, by write_input(); dtype f32 (default) or bf16. With count = N there are
//              N of them, one for each repetition of the micro-batch that reads it.
//   micro-batch {"ops": [...], "repeat": 1}: the forward pass of one; the step is over all of them
//              together. Names of its values are its own: two micro-batches may use the same ones.
//              With repeat = N it is there N times, on the next rows each time: attr row_begin of
//              hr.embed, hr.dropout, hr.loss, and of any other op that gives it, is what is given +
//              repetition x rows of its first output.
//   op         {"op": "hr.linear",               one of ir/train_ops.h that has a gradient
//               "name": "layers.0.qkv",          for people and messages; unique in a micro-batch
//               "in": ["norm1", "model.layers.0.self_attn.q_proj.weight", ...],   in the table's
//                                                order: values, parameters, constants, inputs
//               "out": [{"name": "qkv", "shape": [512, 768]}],  "dtype": f32, bf16 (default: c)
//               "attrs": {"weights": 3, "scale": 1}}   those of the op's row in ir/train_ops.h, by
//                                                their names there; what is absent is 0 unless the
//                                                row says otherwise
//
// What must hold, beside what verify_train_op() says of every op
//   - Values are read after they are written, each is written once.
//   - Each micro-batch has one hr.loss, its last op, without attr grad; its one output is f32
//     [rows, 1]. The step's loss is what hr.mean_loss makes of all of them. Gradients are those of
//     the mean over the step's counted targets; with own_mean = 1 and scale = c in each hr.loss, of
//     the sum of c times the mean of each micro-batch (PyTorch: (c * loss).backward() of each).
//     With weights = 1, of the sum of c * w * loss over rows, where w is an input f32 [rows, 1].
//   - A parameter that is nothing but a table of hr.embed (not its positions) or hr.loss (without
//     bias) is cut into tiles of kTableTile bytes; name it once, all tiles are put in its place.
//   - attr stream of hr.dropout: a number below 2^29 for each place in the model, the same in every
//     micro-batch, since the generator counts rows of the step.
//   - As fast as build_train_step()'s: q, k and v are one hr.linear with weights = 3 (LoRA's are
//     added with col_begin), gate and up another with 2, a residual is the last operand of the
//     product before it. hr.attention wants q | k | v and hr.act gate | up side by side anyhow.
//
// Example: one layer of one product, tied table.
//   {"headrace_forward": 1, "name": "tiny", "precision": "f32", "rows": 8,
//    "parameters": [{"name": "emb", "shape": [50, 16], "dtype": "f32", "aliases": ["head"]},
//                   {"name": "w", "shape": [16, 16], "dtype": "f32"},
//                   {"name": "b", "shape": [16], "dtype": "f32"}],
//    "micro_batches": [{"ops": [
//      {"op": "hr.embed", "name": "embed", "in": ["emb"], "out": [{"name": "x", "shape": [8, 16]}],
//       "attrs": {"sequence": 4}},
//      {"op": "hr.linear", "name": "y", "in": ["x", "w", "b", "x"],
//       "out": [{"name": "y", "shape": [8, 16]}], "attrs": {"weights": 1, "bias": 1, "scale": 1}},
//      {"op": "hr.loss", "name": "losses", "in": ["y", "head"],
//       "out": [{"name": "losses", "shape": [8, 1], "dtype": "f32"}]}]}]}
//
// THE OPTIMIZER is another object; a parameter's "group" counts its groups, one learning rate each:
//   {"kind": "adamw",                or "sgd"
//    "clip_norm": 1.0,               of the norm of all gradients; 0 or absent: no clipping
//    "groups": [{"beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 0.01},   adamw
//               {"momentum": 0.9, "weight_decay": 0}]}                               sgd
// Adam without weight decay is adamw with 0. Numbers that are absent are PyTorch's defaults.
//
// Promises
//   1. The ledger's items add up to at most the budget, which bounds what the process grows by from
//      `baseline_bytes` on. Which plan is chosen changes no bit of any loss or parameter.
//   2. A step whose loss (with clipping: gradient norm) is not finite changes nothing.
//   3. Scratch files have no name: a crash leaves nothing. After an error nothing more runs.
// Not thread-safe.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "headrace/train/captured_state.h"
#include "headrace/train/engine.h"
#include "headrace/train/train_plan.h"

namespace headrace {

struct CapturedOptions {
  Bytes memory_bytes = 0;    // the budget
  Bytes baseline_bytes = 0;  // resident bytes of the process that it does not count
  std::string folder;        // for scratch, on a disk
  std::vector<StateTier> tiers;  // instead of the folder: see TrainOptions
  int threads = 1;
  Machine machine;           // tiers[1]: the folder's disk
  bool profile = true;       // measure ops here first; false: predict them
  bool paranoid = false;
  Bytes arena_bytes = 0;     // tests: see TrainOptions
  std::function<std::unique_ptr<Tier>(std::unique_ptr<Tier>, size_t t)> wrap;  // see EngineOptions
};

// What a step is given beside its inputs.
struct CapturedRows {
  std::span<const int32_t> tokens;   // one a row of the step; -1 as a target: not counted
  std::span<const int32_t> targets;
  std::span<const double> rates;     // learning rate of each group
  uint64_t seed = 0;                 // of dropout and of rounding by chance
};

struct CapturedResult {
  double loss = 0;
  std::vector<double> losses;  // by micro-batch: the mean over its counted targets
  std::optional<double> gradient_norm;  // before clipping, when there is clipping
  bool skipped = false;        // not finite: nothing changed, the step does not count
};

class CapturedStep {
 public:
  // Reads, checks and plans; no engine yet, nothing is allocated that stays but the plan. kBadFile:
  // JSON that is not as above, with the place and the reason; kUnsupported: an op without a
  // gradient; kUsage; kDoesNotFit with the shortfall, then *refusal is set where it is not null.
  static Result<std::unique_ptr<CapturedStep>> plan(std::string_view forward_json,
                                                    std::string_view optimizer_json,
                                                    const CapturedOptions& options,
                                                    TrainRefusal* refusal = nullptr);
  ~CapturedStep();

  const TrainPlan& train_plan() const;
  // The table before step 1, at most 100 columns.
  std::string plan_text(bool color = false) const;

  // Memory, scratch file, threads; all state is zero. Once, before what follows. kIo, kDoesNotFit.
  Status start();

  // Bytes of the state of a parameter (a name or an alias); 0 when it has no such state. kUsage: no
  // such parameter.
  Result<Bytes> bytes_of(std::string_view name, ParameterState state) const;
  // Bytes [begin, begin + size) of it in the caller's own layout (shape, dtype, transposed or not),
  // whole elements, read or written in blocks of 4 MiB. A part of a transposed one takes as long as
  // all of it. kUsage: no such parameter, state or bytes; kIo.
  Status write(std::string_view name, ParameterState state, Bytes begin,
               std::span<const std::byte> bytes);
  Status read(std::string_view name, ParameterState state, Bytes begin, std::span<std::byte> out);
  // An input of the next step, all of it; with a count, that of repetition `i`. kUsage: no such
  // input, or not its size.
  Status write_input(std::string_view name, int64_t i, std::span<const std::byte> bytes);

  // Optimizer steps done (AdamW's bias correction counts them).
  int64_t done() const;
  void set_done(int64_t steps);

  // One step. kUsage: not as many tokens, targets or rates as there are rows and groups, a token or
  // target that is no row of its table.
  Result<CapturedResult> run(const CapturedRows& rows);

  // Of the last step.
  const Trace& trace() const;
  // Precondition: started.
  TrainEngine& engine();

 private:
  struct State;
  explicit CapturedStep(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace headrace
