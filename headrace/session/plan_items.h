// What the plans of a session and of a batch have in common: what the process takes beside the
// arena, and how weights are cut.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "headrace/base/ledger.h"
#include "headrace/base/system_memory.h"
#include "headrace/ir/kv.h"
#include "headrace/session/model.h"

namespace headrace {

// Reserved for rings, tickets and bounce buffers of a file tier.
constexpr Bytes kTransferMemory = 1 * kMiB;
// A Sampler holds a candidate and a weight for every token of the vocabulary.
constexpr Bytes kSamplerBytesPerToken = 16;

// What decides how much memory a process takes beside the arena.
struct ProcessUse {
  ProcessMemory now;        // before anything was planned
  Bytes budget = 0;         // 0: page tables for it are not counted
  int threads = 1;
  int64_t moved_slots = 0;  // KV slots that have transfers of their own in the Programs
  Bytes sampling = 0;
  Bytes beside = 0;         // what the caller keeps back
  std::vector<BudgetLedger::Item> more;
};
// Reserves it all; `g` is the Graph of the largest Program. kDoesNotFit as the ledger says.
Status reserve_process(const ProcessUse& use, const Graph& g, BudgetLedger* ledger);

// Page tables that a budget's worth of memory takes: 8 bytes for each page of 4 KiB.
Bytes page_tables_of(Bytes budget);
// The least budget (to a page) that holds `fixed` bytes and its own page tables.
Bytes budget_around(Bytes fixed);

// Tiles of weights large enough that a load is all bandwidth, small enough that a ring holds
// several.
Bytes weight_tile_bytes(const Model& model);

// kUnsupported for q4 with a model whose keys have a bias.
Status check_kv_format(const ModelConfig& config, KvFormat format);

// A tied embedding table is the output head as well: when all of a Graph fits in `room`, rows are
// taken from the table in memory and nothing is read; an untied table is read by rows for ever.
// `by_rows` is the Graph that reads rows, `whole` builds the other.
Result<std::shared_ptr<const Graph>> with_embedding(
    const ModelConfig& config, std::shared_ptr<const Graph> by_rows, Bytes room,
    const std::function<Result<std::shared_ptr<const Graph>>()>& whole);

}  // namespace headrace
