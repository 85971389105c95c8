// BatchPlan: what many sequences that share each pass over the weights will do with one budget.
//
// Vocabulary
//   place   where a running sequence is in a step: one row of state (tails). Others wait, or are on disk.
//   block   `block_tokens` positions of KV of all layers (kv/block_cache.h)
//
// One cyclic Program does every step: rows that follow what was sampled, chunks of prompts and drafted
// rows, ragged; how many is decided step by step, so a step costs what its rows cost. KV is in pools of
// blocks that stay in memory; weights stay or pass through the ring as in any plan.
//
// Promises
//   1. The ledger's items add up to at most the budget; the arena is one of them.
//   2. kDoesNotFit names the shortfall, the least budget that would do, and the options.
//   3. The same model, machine and options give the same plan.
#pragma once

#include <string>
#include <vector>

#include "headrace/base/ledger.h"
#include "headrace/plan/plan.h"
#include "headrace/session/model.h"

namespace headrace {

struct BatchOptions {
  Bytes memory_bytes = 0;      // the budget for the whole process
  int threads = 1;
  int32_t places = 8;          // sequences in a step at most
  int64_t context = 0;         // positions a sequence may have; 0: chosen (trained length, at most 8192)
  int64_t step_rows = 256;     // rows of a step at most: at least places * (1 + speculate)
  int64_t speculate = 0;       // drafted tokens of a sequence in a step at most
  KvFormat kv_format = KvFormat::kF16;
  // Folder on a disk for blocks that leave memory, and preempted sequences; empty: nothing leaves.
  std::string kv_folder;
  Bytes kv_disk_bytes = 0;     // that they may take there; 0: chosen (four times the blocks in memory)
  int64_t block_tokens = 256;  // a multiple of 64
  int32_t blocks = 0;          // in memory; 0: chosen
  int64_t typical_tokens = 1024;  // of a prompt and its answer, for that choice
  Bytes beside_bytes = 0;      // kept back for what the caller holds beside (connections, drafts)
  Machine machine = Machine::defaults(1);
};

struct BatchPlan {
  BatchOptions options;  // with everything chosen filled in
  BudgetLedger ledger{0};
  Program step;
  CostQuery cost;
  Bytes arena_bytes = 0;
  Bytes block_bytes = 0;     // of one block, all layers
  Bytes pool_bytes = 0;      // of all blocks and tails in memory
  Bytes kv_disk_bytes = 0;   // of what leaves memory
  int64_t blocks_a_sequence = 0;
  // Predicted time of a step with so many rows, ascending, at typical positions.
  struct StepTime {
    int64_t rows = 0;
    Nanos ns = 0;
  };
  std::vector<StepTime> times;
  // Between those, on a line; past the last, on the last one's.
  Nanos step_ns(int64_t rows) const;
  // Blocks that `positions` of one sequence take.
  int64_t blocks_of(int64_t positions) const {
    return (positions + options.block_tokens - 1) / options.block_tokens;
  }
};

// Blocks are chosen so that the predicted tokens a second of typical sequences are the most: more blocks
// let more sequences share a pass, more resident weights make a pass shorter. At least one sequence of
// the whole context fits. kUsage: an option out of range, naming it; kUnsupported as plan_session.
Result<BatchPlan> plan_batch(const Model& model, const BatchOptions& options);
// The least memory_bytes that plan_batch accepts, all else as in `options`.
Result<Bytes> least_batch_memory(const Model& model, const BatchOptions& options);

}  // namespace headrace
