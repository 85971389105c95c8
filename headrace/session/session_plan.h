// SessionPlan: what a session will do with its budget, decided before a weight is read.
//
// Promises
//   1. The ledger's items add up to at most the budget; the arena is one of them.
//   2. Nothing is allocated here that would not be allocated anyway: planning under a budget and
//      refusing costs no more memory than planning.
//   3. kDoesNotFit names the shortfall, the least budget that would do, and the options.
#pragma once

#include <memory>
#include <string>

#include "headrace/base/ledger.h"
#include "headrace/plan/plan.h"
#include "headrace/session/model.h"
#include "headrace/session/plan_items.h"

namespace headrace {

struct SessionOptions {
  Bytes memory_bytes = 0;     // the budget for the whole process
  int threads = 1;
  int64_t context = 0;        // positions a sequence may have; 0: prompt + new tokens, rounded up
  int64_t prompt_tokens = 0;  // expected, to choose the chunk
  int64_t new_tokens = 0;     // expected
  int64_t chunk = 0;          // rows of a prefill step; 0: chosen
  bool greedy = false;        // no sampling: its memory is not reserved
  bool all_logits = false;    // logits of every prefill row (perplexity, tests)
  KvFormat kv_format = KvFormat::kF16;
  // Folder on a disk where KV that does not stay in memory is kept while the session runs; empty:
  // KV stays in memory.
  std::string kv_folder;
  Bytes kv_disk_bytes = 0;    // that KV may take in kv_folder; 0: what is free there
  int64_t segment_tokens = 0; // positions of a KV slot, a multiple of 64; 0: chosen
  // Positions of the past that a decode step attends in layers without a window, in whole segments;
  // 0: all of them, exactly. Needs a kv_folder. An approximation: see Session::sparse_recall().
  int64_t sparse_tokens = 0;
  Bytes beside_bytes = 0;     // kept back for what the caller holds beside the session
  Machine machine = Machine::defaults(1);
};

struct SessionPlan {
  SessionOptions options;
  BudgetLedger ledger{0};
  int64_t context = 0;  // positions that may be used; KV has room for whole segments
  int64_t chunk = 1;    // rows of the prefill Program; 1: there is none, decode does it all
  Bytes arena_bytes = 0;
  // KV slots have a copy in tier 2 of the Programs, and those that do not stay are loaded when they
  // are read.
  bool kv_streamed = false;
  Bytes kv_disk_bytes = 0;  // of these copies
  KvBytes kv;               // of the context
  Program decode;
  CostQuery decode_cost; // what its times were predicted for
  Program prefill;       // graph is null when chunk is 1
  Program prefill_body;  // a chunk that more chunks follow: no logits, so no output head; graph is
                         // null when the prompt is one chunk, or when all logits are wanted
};

// Where KV is: in memory when everything fits or there is
// no kv_folder; else wherever a step at the middle of what is expected is predicted to take less time.
// kDoesNotFit also when the KV of the context is more than kv_folder has room for: names both, and
// how many positions would fit. With sparse_tokens KV always has a copy in kv_folder; kUsage where
// there is none, or fewer than four segments are asked for; kUnsupported where no layer can select.
// kUnsupported for q4 with a model whose keys have a bias.
Result<SessionPlan> plan_session(const Model& model, const SessionOptions& options);

// The least memory_bytes that plan_session accepts, all else as in `options`; builds a graph or two,
// plans nothing. Counts this process as it is now. kDoesNotFit when KV is too much for memory_bytes and
// for kv_folder.
Result<Bytes> least_memory(const Model& model, const SessionOptions& options);

// The context that a session is planned for: whole KV segments.
int64_t context_bucket(int64_t positions);

}  // namespace headrace
