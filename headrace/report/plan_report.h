// PlanReport: what a session will do with its budget, as plain numbers; and how people
// and programs read it.
//
// Vocabulary
//   decode   the Program of one generated token; prefill: of one chunk of the prompt.
//   resident weights that stay in memory; streamed: read again each pass, through the
//            ring.
//   other    what is neither weights, KV nor workspace: code, tokenizer, plans, stacks,
//            transfer buffers, page tables, rounding.
#pragma once

#include <string>
#include <vector>

#include "headrace/base/types.h"
#include "headrace/report/json_writer.h"
#include "headrace/report/text_style.h"

namespace headrace {

// One Program. Bytes are those of the Program's arena; times are predictions of the
// simulator.
struct ProgramFigures {
  int64_t rows = 0;          // tokens a pass, at most; 0: there is no such Program
  Bytes model_bytes = 0;     // M: weights that one pass uses, page-rounded
  Bytes resident_bytes = 0;  // R
  Bytes streamed_bytes = 0;  // loaded a pass
  Bytes gathered_bytes = 0;  // rows of the embedding table, read apart
  Bytes ring_bytes = 0;
  Bytes kv_bytes = 0;           // in memory, for good
  Bytes kv_disk_bytes = 0;      // copies on a disk of what may not stay in memory
  Bytes kv_loaded_bytes = 0;    // a pass, at the position that times are predicted for
  Bytes workspace_bytes = 0;
  int64_t resident_tensors = 0;
  int64_t streamed_tensors = 0;
  Nanos predicted_ns = 0;
  Nanos predicted_stall_ns = 0;  // of predicted_ns: waiting for the link
};

struct ReservedItem {
  std::string name;
  Bytes bytes = 0;
};

// The machine that times were predicted for.
struct MachineFigures {
  std::string name;    // of the machine file
  std::string source;  // for people: "measured 2026-05-01", "built-in defaults"
  bool measured = false;
  int threads = 1;
  double link_bytes_per_s = 0;  // of the tier that weights come from
  double memory_bytes_per_s = 0;
};

struct PlanReport {
  std::string model;         // name, for people
  std::string architecture;  // "llama"
  std::string main_type;     // the type of most weight bytes
  int64_t parameters = 0;
  Bytes weight_bytes = 0;  // of the whole model

  Bytes budget_bytes = 0;
  std::string budget_source;  // "set" or what `auto` went by
  Bytes arena_bytes = 0;
  std::vector<ReservedItem> reserved;  // the ledger, the arena included
  std::string kv_format;  // "f16"
  std::string kv_folder;  // where kv_disk_bytes are
  int64_t position = 0;   // that times are predicted for
  int64_t context = 0;
  int64_t trained_context = 0;
  int64_t prompt_tokens = 0;  // expected
  int64_t chunk = 1;
  int threads = 1;
  ProgramFigures decode;
  ProgramFigures prefill;
  MachineFigures machine;
};

// Tokens a second by prediction; 0 when there is none.
double predicted_tokens_per_s(const ProgramFigures& program);
// Bytes of the budget that are in no other class, see `other` above.
Bytes other_bytes(const PlanReport& plan, const ProgramFigures& program);

// The table, at most 80 columns, lines ended by newlines.
std::string plan_table(const PlanReport& plan, const TextStyle& style);

// One row of "what another budget would give".
struct BudgetOption {
  Bytes budget_bytes = 0;
  std::string label;  // "50 %", "all resident"
  bool fits = false;
  Bytes resident_bytes = 0;
  Bytes streamed_bytes = 0;
  Nanos predicted_ns = 0;
  bool is_chosen = false;  // the budget at hand
};
std::string budget_table(const std::vector<BudgetOption>& options,
                         const TextStyle& style);

// Writes the members of the plan into the object that `json` has open.
void write_plan(const PlanReport& plan, JsonWriter& json);
void write_program(const ProgramFigures& program, JsonWriter& json);  // one value
void write_machine(const MachineFigures& machine, JsonWriter& json);  // one value
void write_budgets(const std::vector<BudgetOption>& options,
                   JsonWriter& json);  // one value

}  // namespace headrace
