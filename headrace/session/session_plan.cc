#include "headrace/session/session_plan.h"

#include <algorithm>

#include "headrace/base/system_memory.h"
#include "headrace/session/kv_choice.h"
#include "headrace/sim/simulate.h"
#include "headrace/tier/checksum_tier.h"

namespace headrace {
namespace {

constexpr int64_t kLargestChunk = 512;
constexpr int64_t kSmallestChunk = 16;
// Predicted times that differ by less are equal.
constexpr double kFaster = 0.97;

class Planner {
 public:
  // `now`: this process before anything was planned.
  Planner(const Model& model, const SessionOptions& options, bool streamed,
          const ProcessMemory& now)
      : model_(model), now_(now) {
    plan_.options = options;
    plan_.kv_streamed = streamed;
    plan_.ledger = BudgetLedger(options.memory_bytes);
  }

  Result<SessionPlan> run() {
    HR_TRY(choose());
    HR_ASSIGN(std::shared_ptr<const Graph> rows_graph, graph(1, true));
    if (!reserve_process(*rows_graph).ok()) return does_not_fit();
    HR_TRY(plan_decode(std::move(rows_graph)));
    HR_TRY(plan_prefill());
    plan_.arena_bytes = plan_.decode.arena_bytes;
    HR_TRY(plan_.ledger.reserve("arena", plan_.arena_bytes));
    return std::move(plan_);
  }

  // False where no slot could be anywhere but in memory: every layer has a window, or one slot.
  bool has_choice() {
    return choose_context().ok() && kv_bytes(model_.config, graph_options(1)).slots > 0 &&
           graph_options(1).segment_tokens < plan_.context;
  }

  Result<Bytes> least() {
    plan_.options.memory_bytes = 0;
    plan_.ledger = BudgetLedger(Bytes{1} << 60);
    HR_TRY(choose());
    HR_ASSIGN(std::shared_ptr<const Graph> g, graph(1, true));
    HR_TRY(reserve_process(*g));
    Bytes arena = least_arena_bytes(*g, kv_tier());
    if (plan_.options.chunk > 1) {
      HR_ASSIGN(g, graph(plan_.options.chunk, true));
      arena = std::max(arena, least_arena_bytes(*g, kv_tier()));
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

  // The context, and where its KV goes.
  Status choose() {
    HR_TRY(choose_context());
    HR_TRY(check_sparse());
    const GraphOptions o = graph_options(1);
    plan_.kv = kv_bytes(model_.config, o);
    if (!plan_.kv_streamed) return {};
    HR_TRY(check_kv_folder(model_.config, o, plan_.options));
    plan_.kv_disk_bytes = plan_.kv.on_disk();
    plan_.options.machine = with_scratch(std::move(plan_.options.machine), plan_.kv_disk_bytes);
    return {};
  }

  Status check_sparse() {
    const int64_t asked = plan_.options.sparse_tokens;
    if (asked == 0) return {};
    if (asked < 0 || plan_.options.kv_folder.empty()) {
      return error(Code::kUsage,
                   "selecting %lld positions of the past needs a folder on a disk for KV (--kv-dir)",
                   static_cast<long long>(asked));
    }
    if (!has_choice()) {
      return error(Code::kUnsupported,
                   "there is nothing to select from (--kv-sparse): every layer has a window, or the "
                   "context of %lld is one segment of %lld",
                   static_cast<long long>(plan_.context),
                   static_cast<long long>(graph_options(1).segment_tokens));
    }
    const int64_t least = kLeastSelected * graph_options(1).segment_tokens;
    if (asked >= least) return {};
    return error(Code::kUsage,
                 "--kv-sparse %lld: with a context of %lld it is at least %lld, four segments of %lld",
                 static_cast<long long>(asked), static_cast<long long>(plan_.context),
                 static_cast<long long>(least),
                 static_cast<long long>(graph_options(1).segment_tokens));
  }

  TierId kv_tier() const { return plan_.kv_streamed ? kScratchTier : TierId(); }

  // Rows of the largest prefill step that there can be.
  int64_t largest_chunk() const {
    if (plan_.options.chunk > 0) return plan_.options.chunk;
    int64_t largest = kSmallestChunk;
    while (largest < kLargestChunk && largest < plan_.options.prompt_tokens) largest *= 2;
    return largest;
  }

  GraphOptions graph_options(int64_t rows) const {
    GraphOptions o;
    o.max_rows = rows;
    o.max_output_rows = plan_.options.all_logits ? rows : 1;
    o.context = plan_.context;
    o.kv_format = plan_.options.kv_format;
    o.segment_tokens = plan_.options.segment_tokens;
    if (o.segment_tokens == 0) {
      o.segment_tokens = plan_.options.sparse_tokens > 0
                             ? sparse_segment_tokens(o.context, plan_.options.sparse_tokens)
                             : kv_segment_tokens(model_.config, o, plan_.kv_streamed);
    }
    if (plan_.kv_streamed) o.sparse_tokens = plan_.options.sparse_tokens;
    o.split_attention = plan_.kv_streamed;
    // The same in every Program of the session, whose slots are the same.
    o.window_positions =
        round_up(model_.config.window + largest_chunk() + 2 * kKvTile, o.segment_tokens);
    o.tile_bytes = weight_tile_bytes(model_);
    o.threads = plan_.options.threads;
    return o;
  }

  Result<std::shared_ptr<const Graph>> graph(int64_t rows, bool embedding_by_rows) const {
    GraphOptions o = graph_options(rows);
    o.embedding_by_rows = embedding_by_rows;
    HR_ASSIGN(Graph g, build_graph(model_.file, model_.config, o));
    return std::make_shared<const Graph>(std::move(g));
  }

  Status reserve_process(const Graph& g) {
    ProcessUse use;
    use.now = now_;
    use.budget = plan_.options.memory_bytes;
    use.threads = plan_.options.threads;
    if (!plan_.options.greedy) use.sampling = model_.config.vocab * kSamplerBytesPerToken;
    use.beside = plan_.options.beside_bytes;
    if (plan_.kv_streamed) {
      use.moved_slots = plan_.kv.slot_count;
      use.more = {{"transfers of KV", kTransferMemory},
                  {"checksums of KV", checksum_memory(plan_.kv_disk_bytes)}};
    }
    return headrace::reserve_process(use, g, &plan_.ledger);
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
    r.kv_tier = kv_tier();
    return r;
  }

  Status plan_decode(std::shared_ptr<const Graph> by_rows) {
    const Bytes room = plan_.ledger.available();
    if (room < least_arena_bytes(*by_rows, kv_tier())) return does_not_fit();
    HR_ASSIGN(by_rows, with_embedding(model_.config, std::move(by_rows), room,
                                      [this] { return graph(1, false); }));
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
    std::string smaller = "a smaller --context";
    if (!plan_.kv_streamed) {
      const int64_t fit = positions_that_fit(model_.config, graph_options(1),
                                             plan_.kv.total() - shortfall, &KvBytes::total);
      if (fit > 0) smaller = text_of("--context %lld", static_cast<long long>(fit));
    }
    const bool exact = plan_.options.kv_format == KvFormat::kF16 ||
                       plan_.options.kv_format == KvFormat::kBF16;
    return error(Code::kDoesNotFit,
                 "%s do not hold this model with a context of %lld: %s (%lld bytes) are missing; "
                 "the least budget is %s (--memory %lldMiB), or choose %s%s%s",
                 human_bytes(plan_.options.memory_bytes).c_str(),
                 static_cast<long long>(plan_.context), human_bytes(shortfall).c_str(),
                 static_cast<long long>(shortfall), human_bytes(least).c_str(),
                 static_cast<long long>(round_up(least, kMiB) / kMiB), smaller.c_str(),
                 exact ? " or --kv q8" : "",
                 plan_.kv_streamed ? "" : ", or a folder on a disk for KV (--kv-dir)");
  }

  // Larger chunks read weights and KV fewer times but take more room for activations. The one with
  // the shortest predicted prefill wins; where predictions are as good as equal, the larger one, whose
  // rows the threads share more evenly (17K tokens at half of their KV: 193 tok/s by 64, 341 by 256).
  Status plan_prefill() {
    const int64_t prompt = std::max<int64_t>(plan_.options.prompt_tokens, 1);
    const int64_t largest = largest_chunk();
    const int64_t smallest = plan_.options.chunk > 0 ? largest : kSmallestChunk;
    const Bytes room = plan_.ledger.available();
    Nanos best_ns = 0;
    for (int64_t chunk = largest; chunk >= smallest && chunk > 1; chunk /= 2) {
      HR_ASSIGN(std::shared_ptr<const Graph> g, graph(chunk, true));
      if (least_arena_bytes(*g, kv_tier()) > room) continue;
      const Bytes full = full_arena_bytes(*g);
      const Bytes arena = std::min(room, std::max(full, full_decode_));
      HR_ASSIGN(Program candidate, plan_cyclic(request("prefill", g, arena)));
      const int64_t steps = (prompt + chunk - 1) / chunk;
      const StepRows rows = rows_at(candidate, prompt / 2);
      const Nanos ns = simulate(candidate, {.tiers = {}, .rows = &rows}).total_ns * steps;
      const double limit = kFaster * static_cast<double>(best_ns);
      if (plan_.prefill.graph == nullptr || static_cast<double>(ns) < limit) {
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

  // A full step of this Program from about `first` on, inside the context.
  StepRows rows_at(const Program& p, int64_t first) const {
    const int64_t most = std::max<int64_t>(0, plan_.context - p.graph->max_rows);
    return typical_rows(*p.graph, std::clamp<int64_t>(first, 0, most));
  }

  const Model& model_;
  const ProcessMemory now_;
  SessionPlan plan_;
  std::shared_ptr<const Graph> decode_graph_;
  Bytes full_decode_ = 0;
};

// Of a decode step at the middle of what is expected.
Nanos step_ns(const SessionPlan& plan) {
  const StepRows rows = typical_rows(*plan.decode.graph, plan.decode_cost.positions);
  return simulate(plan.decode, {.tiers = {}, .rows = &rows}).total_ns;
}

}  // namespace

Result<SessionPlan> plan_session(const Model& model, const SessionOptions& options) {
  HR_TRY(check_kv_format(model.config, options.kv_format));
  // KV that is a smaller part of the budget than this stays in memory without a second plan.
  constexpr Bytes kSmallShare = 16;
  const ProcessMemory now = process_memory();
  if (options.sparse_tokens != 0) return Planner(model, options, true, now).run();
  Result<SessionPlan> resident = Planner(model, options, false, now).run();
  if (options.kv_folder.empty()) return resident;
  if (!resident.ok() && resident.status().code() != Code::kDoesNotFit) return resident;
  if (resident.ok() && (summarize(resident->decode).streamed_bytes == 0 ||
                        resident->kv.slots < options.memory_bytes / kSmallShare)) {
    return resident;
  }
  Planner other(model, options, true, now);
  if (!other.has_choice()) return resident;
  Result<SessionPlan> streamed = other.run();
  if (!resident.ok()) return streamed;
  if (!streamed.ok()) return resident;
  const bool faster = step_ns(*streamed) < step_ns(*resident);
  return faster ? std::move(streamed) : std::move(resident);
}

Result<Bytes> least_memory(const Model& model, const SessionOptions& options) {
  const ProcessMemory now = process_memory();
  if (options.sparse_tokens != 0) return Planner(model, options, true, now).least();
  HR_ASSIGN(const Bytes resident, Planner(model, options, false, now).least());
  if (options.kv_folder.empty()) return resident;
  Planner other(model, options, true, now);
  if (!other.has_choice()) return resident;
  const Result<Bytes> streamed = other.least();
  if (streamed.ok()) return std::min(resident, *streamed);
  // The folder is too small. More memory helps only where all of it does.
  return resident <= options.memory_bytes ? Result<Bytes>(resident) : streamed;
}

}  // namespace headrace
