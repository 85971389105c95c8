#include "headrace/session/plan_items.h"

#include <algorithm>

#include "headrace/plan/plan.h"

namespace headrace {
namespace {

// One byte of page tables for so many bytes of memory.
constexpr Bytes kPageTableShare = 512;

// What the process may still grow by after planning, beside the arena: kernel code paged in on
// first use, thread stacks, trace records, output text. Measured at 1.6 MiB for SmolLM2-135M.
constexpr Bytes kGrowth = 5 * kMiB / 2;
constexpr Bytes kGrowthPerThread = 64 * kKiB;
// All Programs of a session together hold about this much an op and a tensor of the Graph.
constexpr Bytes kGrowthPerOp = 2 * kKiB;
constexpr Bytes kGrowthPerTensor = kKiB;
// A slot that moves has an attention op of its own and a Load, a Store and a Detach in each of
// them.
constexpr Bytes kGrowthPerMovedSlot = 5 * kKiB;
// What the process holds is rounded up to this, so that the same command makes the same plan.
constexpr Bytes kProcessUnit = kMiB;

}  // namespace

Status reserve_process(const ProcessUse& use, const Graph& g, BudgetLedger* ledger) {
  HR_TRY(ledger->reserve("code, tokenizer, graph", round_up(use.now.rss, kProcessUnit)));
  HR_TRY(ledger->reserve("plans, stacks, growth",
                         kGrowth + use.threads * kGrowthPerThread +
                             static_cast<Bytes>(g.ops.size()) * kGrowthPerOp +
                             static_cast<Bytes>(g.tensors.size()) * kGrowthPerTensor +
                             use.moved_slots * kGrowthPerMovedSlot));
  if (use.sampling > 0) HR_TRY(ledger->reserve("sampling", use.sampling));
  if (use.beside > 0) HR_TRY(ledger->reserve("beside the session", use.beside));
  HR_TRY(ledger->reserve("transfers", kTransferMemory));
  for (const BudgetLedger::Item& item : use.more) HR_TRY(ledger->reserve(item.name, item.bytes));
  // Page tables are the kernel's memory but the control group's bill: 8 bytes a page, and the
  // few pages of upper levels and of everything that is mapped already.
  return ledger->reserve("page tables", round_up(use.now.page_tables, kProcessUnit / 4) +
                                            page_tables_of(use.budget));
}

Bytes page_tables_of(Bytes budget) { return budget / kPageTableShare; }

// B - B / 512 >= fixed.
Bytes budget_around(Bytes fixed) {
  return fixed / (kPageTableShare - 1) * kPageTableShare + kPage;
}

Bytes weight_tile_bytes(const Model& model) {
  return std::clamp(weight_bytes(model.file) / 256, 1 * kMiB, 4 * kMiB);
}

Status check_kv_format(const ModelConfig& config, KvFormat format) {
  // The rotation spreads a large bias of one channel over all (docs/decisions/0008).
  if (format != KvFormat::kQ4 || !config.qkv_bias) return {};
  return error(Code::kUnsupported,
               "KV as q4 makes nonsense of %s, whose keys have a bias; choose q8 or f16",
               config.architecture.c_str());
}

Result<std::shared_ptr<const Graph>> with_embedding(
    const ModelConfig& config, std::shared_ptr<const Graph> by_rows, Bytes room,
    const std::function<Result<std::shared_ptr<const Graph>>()>& whole) {
  if (!config.tied_embeddings || room < full_arena_bytes(*by_rows)) return by_rows;
  HR_ASSIGN(std::shared_ptr<const Graph> from_device, whole());
  return room >= full_arena_bytes(*from_device) ? from_device : by_rows;
}

}  // namespace headrace
