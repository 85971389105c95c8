#include "headrace/session/session_plan.h"

#include <algorithm>

#include "headrace/base/system_memory.h"
#include "headrace/sim/simulate.h"

namespace headrace {
namespace {

// KV of a sequence is planned in segments of whole attention tiles; a long context has longer
// segments, not more of them, so that plans do not grow with it.
constexpr int64_t kSegmentTokens = 256;
constexpr int64_t kMostSegments = 16;
constexpr int64_t kLargestChunk = 512;
// One byte of page tables for so many bytes of memory.
constexpr Bytes kPageTableShare = 512;
constexpr int64_t kSmallestChunk = 16;

// What the process may still grow by after planning, beside the arena: kernel code paged in on
// first use, thread stacks, trace records, output text. Measured at 1.6 MiB for SmolLM2-135M.
constexpr Bytes kGrowth = 5 * kMiB / 2;
constexpr Bytes kGrowthPerThread = 64 * kKiB;
// All Programs of a session together hold about this much an op and a tensor of the Graph.
constexpr Bytes kGrowthPerOp = 2 * kKiB;
constexpr Bytes kGrowthPerTensor = kKiB;
// A Sampler holds a candidate and a weight for every token of the vocabulary.
constexpr Bytes kSamplerBytesPerToken = 16;
// What the process holds is rounded up to this, so that the same command makes the same plan.
constexpr Bytes kProcessUnit = kMiB;

int64_t segment_tokens(int64_t context) {
  return kSegmentTokens * ((context + kMostSegments * kSegmentTokens - 1) /
                           (kMostSegments * kSegmentTokens));
}

// Tiles large enough that a load is all bandwidth, small enough that a ring holds several.
Bytes tile_bytes(const Model& model) {
  return std::clamp(weight_bytes(model.file) / 256, 1 * kMiB, 4 * kMiB);
}

class Planner {
 public:
  Planner(const Model& model, const SessionOptions& options) : model_(model) {
    plan_.options = options;
    plan_.ledger = BudgetLedger(options.memory_bytes);
  }

  Result<SessionPlan> run() {
    HR_TRY(choose_context());
    HR_ASSIGN(std::shared_ptr<const Graph> rows_graph, graph(1, true));
    if (!reserve_process(*rows_graph).ok()) return does_not_fit();
    HR_TRY(plan_decode(std::move(rows_graph)));
    HR_TRY(plan_prefill());
    plan_.arena_bytes = plan_.decode.arena_bytes;
    HR_TRY(plan_.ledger.reserve("arena", plan_.arena_bytes));
    return std::move(plan_);
  }

  Result<Bytes> least() {
    plan_.options.memory_bytes = 0;
    plan_.ledger = BudgetLedger(Bytes{1} << 60);
    HR_TRY(choose_context());
    HR_ASSIGN(std::shared_ptr<const Graph> g, graph(1, true));
    HR_TRY(reserve_process(*g));
    Bytes arena = least_arena_bytes(*g);
    if (plan_.options.chunk > 1) {
      HR_ASSIGN(g, graph(plan_.options.chunk, true));
      arena = std::max(arena, least_arena_bytes(*g));
    }
    return budget_around(plan_.ledger.reserved() + arena);
  }

 private:
  Status choose_context() {
    const SessionOptions& o = plan_.options;
    const int64_t wanted = o.prompt_tokens + o.new_tokens;
    plan_.context = o.context > 0 ? o.context : context_bucket(std::max<int64_t>(wanted, 1));
    if (o.context > 0 && o.prompt_tokens >= o.context) {
      return error(Code::kUsage, "the prompt has %lld tokens, the context only %lld",
                   static_cast<long long>(o.prompt_tokens), static_cast<long long>(o.context));
    }
    return {};
  }

  Result<std::shared_ptr<const Graph>> graph(int64_t rows, bool embedding_by_rows) const {
    GraphOptions o;
    o.max_rows = rows;
    o.max_output_rows = plan_.options.all_logits ? rows : 1;
    o.context = plan_.context;
    o.segment_tokens = segment_tokens(plan_.context);
    o.tile_bytes = tile_bytes(model_);
    o.embedding_by_rows = embedding_by_rows;
    o.threads = plan_.options.threads;
    HR_ASSIGN(Graph g, build_graph(model_.file, model_.config, o));
    return std::make_shared<const Graph>(std::move(g));
  }

  Status reserve_process(const Graph& g) {
    const ProcessMemory now = process_memory();
    HR_TRY(plan_.ledger.reserve("code, tokenizer, graph", round_up(now.rss, kProcessUnit)));
    HR_TRY(plan_.ledger.reserve(
        "plans, stacks, growth",
        kGrowth + plan_.options.threads * kGrowthPerThread +
            static_cast<Bytes>(g.ops.size()) * kGrowthPerOp +
            static_cast<Bytes>(g.tensors.size()) * kGrowthPerTensor));
    if (!plan_.options.greedy) {
      HR_TRY(plan_.ledger.reserve("sampling", model_.config.vocab * kSamplerBytesPerToken));
    }
    HR_TRY(plan_.ledger.reserve("transfers", kTransferMemory));
    // Page tables are the kernel's memory but the control group's bill: 8 bytes a page, and the
    // few pages of upper levels and of everything that is mapped already.
    return plan_.ledger.reserve("page tables", round_up(now.page_tables, kProcessUnit / 4) +
                                                   page_tables_of(plan_.options.memory_bytes));
  }

  PlanRequest request(const char* name, std::shared_ptr<const Graph> g, Bytes arena) const {
    PlanRequest r;
    r.name = name;
    r.machine = &plan_.options.machine;
    r.arena_bytes = arena;
    r.cost.rows = g->max_rows;
    r.cost.positions = std::max<int64_t>(1, (plan_.options.prompt_tokens +
                                             plan_.options.new_tokens) / 2);
    r.graph = std::move(g);
    return r;
  }

  Status plan_decode(std::shared_ptr<const Graph> by_rows) {
    const Bytes room = plan_.ledger.available();
    if (room < least_arena_bytes(*by_rows)) return does_not_fit();
    // A tied embedding table is the output head as well: when all of it stays, rows are taken
    // from it and nothing is read. An untied table is read by rows for ever.
    if (model_.config.tied_embeddings && room >= full_arena_bytes(*by_rows)) {
      HR_ASSIGN(std::shared_ptr<const Graph> from_device, graph(1, false));
      if (room >= full_arena_bytes(*from_device)) by_rows = std::move(from_device);
    }
    full_decode_ = full_arena_bytes(*by_rows);
    decode_graph_ = std::move(by_rows);
    const PlanRequest decode =
        request("decode", decode_graph_, std::min(room, full_decode_));
    plan_.decode_cost = decode.cost;
    HR_ASSIGN(plan_.decode, plan_cyclic(decode));
    return {};
  }

  Status does_not_fit() const {
    HR_ASSIGN(const Bytes least, least_memory(model_, plan_.options));
    const Bytes shortfall = std::max<Bytes>(kPage, least - plan_.options.memory_bytes);
    return error(Code::kDoesNotFit,
                 "%s do not hold this model with a context of %lld: %s (%lld bytes) are missing; "
                 "the least budget is %s (--memory %lldMiB), or choose a smaller --context",
                 human_bytes(plan_.options.memory_bytes).c_str(),
                 static_cast<long long>(plan_.context), human_bytes(shortfall).c_str(),
                 static_cast<long long>(shortfall), human_bytes(least).c_str(),
                 static_cast<long long>(round_up(least, kMiB) / kMiB));
  }

  // Larger chunks read the weights fewer times but take more room for activations. The one with
  // the shortest predicted prefill wins.
  Status plan_prefill() {
    const int64_t prompt = std::max<int64_t>(plan_.options.prompt_tokens, 1);
    int64_t largest = kSmallestChunk;
    while (largest < kLargestChunk && largest < prompt) largest *= 2;
    int64_t smallest = kSmallestChunk;
    if (plan_.options.chunk > 0) largest = smallest = plan_.options.chunk;
    const Bytes room = plan_.ledger.available();
    Nanos best_ns = 0;
    for (int64_t chunk = largest; chunk >= smallest && chunk > 1; chunk /= 2) {
      HR_ASSIGN(std::shared_ptr<const Graph> g, graph(chunk, true));
      if (least_arena_bytes(*g) > room) continue;
      const Bytes full = full_arena_bytes(*g);
      const Bytes arena = std::min(room, std::max(full, full_decode_));
      HR_ASSIGN(Program candidate, plan_cyclic(request("prefill", g, arena)));
      const int64_t steps = (prompt + chunk - 1) / chunk;
      const Nanos ns = simulate(candidate).total_ns * steps;
      if (plan_.prefill.graph == nullptr || ns < best_ns) {
        best_ns = ns;
        plan_.prefill = std::move(candidate);
        plan_.chunk = chunk;
      }
      if (arena >= full) break;
    }
    if (plan_.prefill.graph == nullptr) {
      if (plan_.options.chunk > 1) {
        return error(Code::kDoesNotFit, "a chunk of %lld rows does not fit; choose a smaller one",
                     static_cast<long long>(plan_.options.chunk));
      }
      return {};
    }
    // Both Programs share the larger arena.
    if (plan_.prefill.arena_bytes > plan_.decode.arena_bytes) {
      HR_ASSIGN(plan_.decode, plan_cyclic(request("decode", decode_graph_,
                                                  plan_.prefill.arena_bytes)));
    } else {
      plan_.prefill.arena_bytes = plan_.decode.arena_bytes;
    }
    return plan_prefill_body(prompt);
  }

  Status plan_prefill_body(int64_t prompt) {
    if (prompt <= plan_.chunk || plan_.options.all_logits) return {};
    auto body = std::make_shared<const Graph>(without_outputs(*plan_.prefill.graph));
    HR_ASSIGN(plan_.prefill_body,
              plan_cyclic(request("prefill body", std::move(body), plan_.prefill.arena_bytes)));
    return {};
  }

  const Model& model_;
  SessionPlan plan_;
  std::shared_ptr<const Graph> decode_graph_;
  Bytes full_decode_ = 0;
};

}  // namespace

int64_t context_bucket(int64_t positions) { return round_up(positions, kSegmentTokens); }

Bytes page_tables_of(Bytes budget) { return budget / kPageTableShare; }

// B - B / 512 >= fixed.
Bytes budget_around(Bytes fixed) {
  return fixed / (kPageTableShare - 1) * kPageTableShare + kPage;
}

Result<SessionPlan> plan_session(const Model& model, const SessionOptions& options) {
  return Planner(model, options).run();
}

Result<Bytes> least_memory(const Model& model, const SessionOptions& options) {
  return Planner(model, options).least();
}

}  // namespace headrace
