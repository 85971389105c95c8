// BatchPlan: what many sequences that share each pass over the weights will do with one budget.
//
// Vocabulary
//   place   where a running sequence is in a step: one row of state (tails). Others wait, or are on
//           disk.
//   block   `block_tokens` positions of KV of all layers (kv/block_cache.h)
//
// One cyclic Program does every step: rows that follow what was sampled, chunks of prompts and
// drafted rows, ragged; how many is decided step by step, so a step costs what its rows cost. KV is
// in pools of blocks that stay in memory, with all positions of layers that have a window as well;
// weights stay or pass through the ring as in any plan.
//
// Promises
//   1. The ledger's items add up to at most the budget; the arena is one of them.
//   2. kDoesNotFit names the shortfall, the least budget that would do, and the options.
//   3. The same model, machine and options give the same plan.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "headrace/base/ledger.h"
#include "headrace/base/system_memory.h"
#include "headrace/kv/block_cache.h"
#include "headrace/plan/plan.h"
#include "headrace/session/model.h"

namespace headrace {

struct BatchOptions {
  Bytes memory_bytes = 0;      // the budget for the whole process
  int threads = 1;
  int32_t places = 8;          // sequences in a step at most
  // Positions a sequence may have; 0: chosen: the trained length, at most 8192, halved (down to
  // typical_tokens) until one sequence takes at most a quarter of what the budget leaves.
  int64_t context = 0;
  int64_t step_rows = 256;     // rows of a step at most: at least places * (1 + speculate)
  int64_t speculate = 0;       // drafted tokens of a sequence in a step at most
  KvFormat kv_format = KvFormat::kF16;
  // Folder on a disk for blocks that leave memory, and preempted sequences; empty: nothing leaves.
  std::string kv_folder;
  // That they may take there; 0: chosen (four times the blocks in memory, at most half of what is
  // free there). Reserved when a session starts.
  Bytes kv_disk_bytes = 0;
  int64_t block_tokens = 256;  // a multiple of 64
  int32_t blocks = 0;          // in memory; 0: chosen
  int64_t typical_tokens = 1024;  // of a prompt and its answer, for that choice
  // Kept back for what the caller holds beside: connections, drafts, Samplers but for one.
  Bytes beside_bytes = 0;
  Machine machine = Machine::defaults(1);
};

// Time of a step with so many rows.
struct StepTime {
  int64_t rows = 0;
  Nanos ns = 0;
};
// Between `times` (ascending, at least one), on a line; past the last, on the last one's. At least
// 1.
Nanos step_time(std::span<const StepTime> times, int64_t rows);

struct BatchPlan {
  BatchOptions options;  // with everything chosen filled in
  BudgetLedger ledger{0};
  Program step;
  CostQuery cost;
  Bytes arena_bytes = 0;
  Bytes block_bytes = 0;     // of one block, all layers
  Bytes pool_bytes = 0;      // of all blocks and tails in memory
  Bytes kv_disk_bytes = 0;   // of what leaves memory
  int32_t disk_blocks = 0;   // blocks and tails (of preempted sequences) that have room there
  int32_t disk_tails = 0;
  Bytes staging_bytes = 0;   // what passes between memory and the disk, in groups
  int64_t blocks_a_sequence = 0;
  // Predicted, at typical positions: of 1, 2, 4 ... step_rows rows.
  std::vector<StepTime> times;
  Nanos step_ns(int64_t rows) const { return step_time(times, rows); }
  // Blocks that `positions` of one sequence take.
  int64_t blocks_of(int64_t positions) const {
    return (positions + options.block_tokens - 1) / options.block_tokens;
  }
};

// Blocks are chosen so that the predicted tokens a second of typical sequences are the most: more
// blocks let more sequences share a pass, more resident weights make a pass shorter; of counts that
// are within 1 % of the best, the largest. At least one sequence of the whole context fits. kUsage:
// an option out of range, naming it; kUnsupported as plan_session; kIo: the folder cannot be looked
// at.
// now: what the process holds, which is part of the question.
Result<BatchPlan> plan_batch(const Model& model, const BatchOptions& options,
                             const ProcessMemory& now = process_memory());
// The least memory_bytes that plan_batch accepts, all else as in `options`; plans nothing.
Result<Bytes> least_batch_memory(const Model& model, const BatchOptions& options,
                                 const ProcessMemory& now = process_memory());

// Sizes of the plan's block cache; all spans are empty, and the tier is object 0.
BlockCacheOptions block_cache_sizes(const ModelConfig& config, const BatchPlan& plan);

}  // namespace headrace
