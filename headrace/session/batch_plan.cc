#include "headrace/session/batch_plan.h"

#include <algorithm>

#include "headrace/base/system.h"
#include "headrace/base/system_memory.h"
#include "headrace/session/plan_items.h"
#include "headrace/sim/simulate.h"

namespace headrace {
namespace {

constexpr int64_t kLongestContext = 8192;
constexpr int32_t kMostPlaces = 4096;
constexpr int64_t kMostRows = 1 << 16;
// Two groups: one is copied while the other is on its way.
constexpr int kStagingGroups = 2;
constexpr Bytes kDiskShare = 4;       // times the blocks in memory
constexpr int32_t kTailsAPlace = 4;   // preempted sequences, for each that runs
constexpr double kAsGood = 0.99;      // of the best throughput
constexpr Bytes kMostDiskBlocks = 1 << 20;

Status out_of_range(const char* what, int64_t value, const std::string& wanted) {
  return error(Code::kUsage, "%s is %lld; %s", what, static_cast<long long>(value),
               wanted.c_str());
}

Status check(const BatchOptions& o) {
  if (o.threads < 1) return out_of_range("threads", o.threads, "at least 1");
  if (o.places < 1 || o.places > kMostPlaces) {
    return out_of_range("places", o.places, text_of("1 to %d", kMostPlaces));
  }
  if (o.context < 0) return out_of_range("context", o.context, "at least 1, or 0: chosen");
  if (o.speculate < 0 || o.speculate >= kKvTile) {
    return out_of_range("speculate", o.speculate, "0 to 63");
  }
  const int64_t least_rows = o.places * (1 + o.speculate);
  if (o.step_rows < least_rows || o.step_rows > kMostRows) {
    return out_of_range("step_rows", o.step_rows,
                        text_of("%lld (places times 1 + speculate) to %lld",
                                static_cast<long long>(least_rows),
                                static_cast<long long>(kMostRows)));
  }
  if (o.block_tokens < kKvTile || o.block_tokens % kKvTile != 0) {
    return out_of_range("block_tokens", o.block_tokens, "a multiple of 64");
  }
  if (o.blocks < 0) return out_of_range("blocks", o.blocks, "at least 1, or 0: chosen");
  if (o.typical_tokens < 1) return out_of_range("typical_tokens", o.typical_tokens, "at least 1");
  if (o.beside_bytes < 0 || o.kv_disk_bytes < 0) {
    return out_of_range("beside_bytes or kv_disk_bytes",
                        std::min(o.beside_bytes, o.kv_disk_bytes), "at least 0");
  }
  return {};
}

// A step of `rows` rows that all see `positions`.
Nanos predicted_time(const Program& program, const Machine& machine, int64_t rows,
                     int64_t positions) {
  Program p = program;
  for (Instr& i : p.instrs) {
    if (i.kind != InstrKind::kCompute) continue;
    i.cost_ns = op_cost(machine, *p.graph, p.graph->at(i.op), {rows, positions});
  }
  return std::max<Nanos>(1, simulate(p).total_ns);
}

// What may be tried where none was asked for, the longest first.
std::vector<int64_t> contexts(const ModelConfig& config, const BatchOptions& o) {
  if (o.context > 0) return {o.context};
  const int64_t trained = config.trained_context > 0 ? config.trained_context : kLongestContext;
  int64_t context = round_up(std::min(trained, kLongestContext), o.block_tokens);
  const int64_t least = std::min(context, round_up(o.typical_tokens, o.block_tokens));
  std::vector<int64_t> out;
  for (; context > least; context = round_up(context / 2, o.block_tokens)) out.push_back(context);
  out.push_back(least);
  return out;
}

class BatchPlanner {
 public:
  BatchPlanner(const Model& model, const BatchOptions& options, const ProcessMemory& now,
               int64_t context)
      : model_(model), now_(now) {
    plan_.options = options;
    plan_.options.context = context;
    plan_.blocks_a_sequence = plan_.blocks_of(context);
    plan_.options.kv_disk_bytes = 0;
    asked_disk_ = options.kv_disk_bytes;
    fewest_ = static_cast<int32_t>(plan_.blocks_a_sequence);
    if (options.blocks > 0) fewest_ = options.blocks;
  }

  // `last`: there is no shorter context to be tried.
  Result<BatchPlan> run(bool last) {
    plan_.ledger = BudgetLedger(plan_.options.memory_bytes);
    HR_TRY(begin(plan_.options.memory_bytes));
    if (!last && plan_.blocks_a_sequence * plan_.block_bytes >
                     plan_.ledger.available() / kShareOfOne) {
      return error(Code::kDoesNotFit, "a sequence of %lld positions takes too much",
                   static_cast<long long>(plan_.options.context));
    }
    HR_ASSIGN(const int32_t blocks, choose_blocks());
    HR_ASSIGN(plan_.step, plan_with(blocks));
    set_blocks(blocks);
    plan_.arena_bytes = plan_.step.arena_bytes;
    plan_.cost = cost_of(blocks);
    const KvBytes kv = kv_bytes(model_.config, graph_options(blocks));
    plan_.pool_bytes = kv.total();
    HR_TRY(plan_.ledger.reserve("tables of KV blocks", tables_of(blocks)));
    HR_TRY(plan_.ledger.reserve("arena", plan_.arena_bytes));
    predict();
    return std::move(plan_);
  }

  Result<Bytes> least() {
    plan_.ledger = BudgetLedger(Bytes{1} << 60);
    HR_TRY(begin(0));
    return budget_around(plan_.ledger.reserved() + tables_of(fewest_) +
                         least_arena_bytes(*fewest_graph_));
  }

 private:
  static constexpr Bytes kShareOfOne = 4;  // of what is left, at most for one sequence

  GraphOptions graph_options(int32_t blocks) const {
    const BatchOptions& o = plan_.options;
    GraphOptions g;
    g.max_output_rows = o.places * (1 + o.speculate);
    // One more than those, so that kernels know which tensors have the rows of the output alone.
    g.max_rows = std::max(o.step_rows, g.max_output_rows + 1);
    g.context = plan_.blocks_a_sequence * o.block_tokens;
    g.sequences = o.places;
    g.segment_tokens = o.block_tokens;
    g.kv_format = o.kv_format;
    g.pool_blocks = blocks;
    g.tile_bytes = weight_tile_bytes(model_);
    g.threads = o.threads;
    return g;
  }

  Result<std::shared_ptr<const Graph>> graph(int32_t blocks, bool embedding_by_rows) const {
    GraphOptions o = graph_options(blocks);
    o.embedding_by_rows = embedding_by_rows;
    HR_ASSIGN(Graph g, build_graph(model_.file, model_.config, o));
    return std::make_shared<const Graph>(std::move(g));
  }

  // All that does not depend on the number of blocks.
  Status begin(Bytes budget) {
    BatchOptions& o = plan_.options;
    plan_.block_bytes = model_.config.layers * (o.block_tokens / kKvTile) *
                        kv_tile_bytes(o.kv_format, model_.config.kv_heads, model_.config.head_dim);
    HR_ASSIGN(fewest_graph_, graph(fewest_, true));
    ProcessUse use;
    use.now = now_;
    use.budget = budget;
    use.threads = o.threads;
    use.sampling = model_.config.vocab * kSamplerBytesPerToken;
    use.beside = o.beside_bytes;
    if (!o.kv_folder.empty()) {
      HR_ASSIGN(free_disk_, free_on_disk(o.kv_folder));
      if (asked_disk_ > free_disk_) {
        return error(Code::kIo, "%s has room for %s, not for %s of KV", o.kv_folder.c_str(),
                     human_bytes(free_disk_).c_str(), human_bytes(asked_disk_).c_str());
      }
      plan_.staging_bytes =
          kStagingGroups * block_cache_staging(block_cache_sizes(model_.config, plan_));
      use.more = {{"transfers of KV", kTransferMemory}, {"staging of KV", plan_.staging_bytes}};
    }
    return reserve_process(use, *fewest_graph_, &plan_.ledger);
  }

  // Fills in how many blocks there are, and what of them has room on the disk.
  void set_blocks(int32_t blocks) {
    plan_.options.blocks = blocks;
    plan_.disk_blocks = plan_.disk_tails = 0;
    if (plan_.options.kv_folder.empty()) return;
    const Bytes block = round_up(plan_.block_bytes, kPage);
    const ModelConfig& c = model_.config;
    const Bytes tail = round_up(c.layers * kv_tail_bytes(c.kv_heads, c.head_dim), kPage);
    const int32_t tails = kTailsAPlace * plan_.options.places;
    const Bytes wanted = kDiskShare * blocks * block + tails * tail;
    const Bytes room = asked_disk_ > 0 ? asked_disk_ : std::min(wanted, free_disk_ / 2);
    plan_.disk_tails = static_cast<int32_t>(std::min<Bytes>(tails, room / 4 / tail));
    plan_.disk_blocks = static_cast<int32_t>(
        std::min<Bytes>((room - plan_.disk_tails * tail) / block, kMostDiskBlocks));
    plan_.kv_disk_bytes = block_cache_tier(block_cache_sizes(model_.config, plan_));
    plan_.options.kv_disk_bytes = plan_.kv_disk_bytes;
  }

  Bytes tables_of(int32_t blocks) {
    set_blocks(blocks);
    return block_cache_memory(block_cache_sizes(model_.config, plan_));
  }

  Bytes room_with(int32_t blocks) { return plan_.ledger.available() - tables_of(blocks); }

  int64_t typical() const { return std::min(plan_.options.typical_tokens, plan_.options.context); }
  // Typical sequences that so many blocks let run together.
  int64_t sequences(int32_t blocks) const {
    return std::clamp<int64_t>(blocks / plan_.blocks_of(typical()), 1, plan_.options.places);
  }
  CostQuery cost_of(int32_t blocks) const {
    return {sequences(blocks), std::max<int64_t>(1, typical() / 2)};
  }

  // kDoesNotFit says by how much.
  Result<Program> plan_with(int32_t blocks) {
    HR_ASSIGN(std::shared_ptr<const Graph> g, graph(blocks, true));
    const Bytes room = room_with(blocks), least = least_arena_bytes(*g);
    if (room < least) {
      return error(Code::kDoesNotFit, "%lld bytes are left for an arena of at least %lld",
                   static_cast<long long>(room), static_cast<long long>(least));
    }
    HR_ASSIGN(g, with_embedding(model_.config, std::move(g), room,
                                [&] { return graph(blocks, false); }));
    PlanRequest r;
    r.name = "step";
    r.machine = &plan_.options.machine;
    r.arena_bytes = std::min(room, full_arena_bytes(*g));
    r.cost = cost_of(blocks);
    r.graph = std::move(g);
    return plan_cyclic(r);
  }

  // Numbers of blocks to be compared, ascending: enough for 1, 2, 3, 4, 6, 9 ... typical sequences,
  // and as many as leave room for all weights. The first is the fewest that there can be.
  std::vector<int32_t> counts() {
    const int64_t most = plan_.options.places * plan_.blocks_a_sequence;
    const int64_t each = plan_.blocks_of(typical());
    std::vector<int64_t> wanted = {fewest_, plan_.options.places * each};
    for (int64_t n = 1; n < plan_.options.places; n = std::max(n + 1, n * 3 / 2)) {
      wanted.push_back(n * each);
    }
    // Tables take a little besides.
    const Bytes a_block = plan_.block_bytes + plan_.block_bytes / 256 + kPage;
    const Bytes room = room_with(fewest_);
    const auto fitting = [&](Bytes arena) { return fewest_ + (room - arena) / a_block; };
    wanted.push_back(fitting(full_arena_bytes(*fewest_graph_)));
    const int64_t fits = fitting(least_arena_bytes(*fewest_graph_));
    std::vector<int32_t> out;
    for (int64_t n : wanted) {
      if (n >= fewest_ && (n <= fits || n == fewest_)) {
        out.push_back(static_cast<int32_t>(std::min(n, std::max<int64_t>(most, fewest_))));
      }
    }
    std::sort(out.begin(), out.end());
    out.erase(std::unique(out.begin(), out.end()), out.end());
    return out;
  }

  // Tokens a second of typical sequences, half of them read and half of them written.
  double throughput(const Program& step, int32_t blocks) const {
    const auto a_token = [&](int64_t rows) {
      return static_cast<double>(time_of(step, rows)) / static_cast<double>(rows);
    };
    return 2e9 / (a_token(sequences(blocks)) + a_token(plan_.options.step_rows));
  }

  Result<int32_t> choose_blocks() {
    if (plan_.options.blocks > 0) return fewest_;
    const std::vector<int32_t> all = counts();
    if (all.size() == 1) return all[0];
    std::vector<double> speed;
    for (int32_t blocks : all) {
      const Result<Program> step = plan_with(blocks);
      if (!step.ok() && step.status().code() != Code::kDoesNotFit) return step.status();
      speed.push_back(step.ok() ? throughput(*step, blocks) : 0);
    }
    const double best = *std::max_element(speed.begin(), speed.end());
    size_t chosen = 0;
    for (size_t i = 0; i < all.size(); ++i) {
      if (speed[i] > 0 && speed[i] >= kAsGood * best) chosen = i;
    }
    return all[chosen];
  }

  Nanos time_of(const Program& step, int64_t rows) const {
    return predicted_time(step, plan_.options.machine, rows, std::max<int64_t>(1, typical() / 2));
  }

  void predict() {
    for (int64_t rows = 1;; rows = std::min(2 * rows, plan_.options.step_rows)) {
      plan_.times.push_back({rows, time_of(plan_.step, rows)});
      if (rows == plan_.options.step_rows) break;
    }
  }

  const Model& model_;
  const ProcessMemory now_;
  BatchPlan plan_;
  Bytes asked_disk_ = 0, free_disk_ = 0;
  int32_t fewest_ = 0;
  std::shared_ptr<const Graph> fewest_graph_;
};

Status does_not_fit(const Model& model, const BatchOptions& options, const ProcessMemory& now,
                    const Status& why) {
  const Result<Bytes> least = least_batch_memory(model, options, now);
  if (!least.ok()) return least.status();
  const Bytes missing = std::max<Bytes>(kPage, *least - options.memory_bytes);
  const bool exact = options.kv_format == KvFormat::kF16 || options.kv_format == KvFormat::kBF16;
  return error(Code::kDoesNotFit,
               "%s do not hold this model and one sequence of %lld positions: %s (%lld bytes) are "
               "missing (%s); the least budget is %s (--memory %lldMiB), or choose a smaller "
               "--context, fewer sequences or rows a step%s",
               human_bytes(options.memory_bytes).c_str(),
               static_cast<long long>(contexts(model.config, options).back()),
               human_bytes(missing).c_str(), static_cast<long long>(missing),
               why.message().c_str(), human_bytes(*least).c_str(),
               static_cast<long long>(round_up(*least, kMiB) / kMiB), exact ? ", or --kv q8" : "");
}

Status check(const Model& model, const BatchOptions& o) {
  HR_TRY(check(o));
  const int64_t blocks = ceil_div(contexts(model.config, o).back(), o.block_tokens);
  if (o.blocks > 0 && o.blocks < blocks) {
    return out_of_range("blocks", o.blocks,
                        text_of("at least %lld, for one sequence", static_cast<long long>(blocks)));
  }
  return check_kv_format(model.config, o.kv_format);
}

}  // namespace

Nanos step_time(std::span<const StepTime> times, int64_t rows) {
  HR_CHECK(!times.empty(), "a plan has predicted times");
  size_t i = 0;
  while (i + 2 < times.size() && times[i + 1].rows < rows) ++i;
  if (rows <= times[0].rows || times.size() == 1) return times[0].ns;
  const StepTime &a = times[i], &b = times[i + 1];
  const double share = static_cast<double>(rows - a.rows) / static_cast<double>(b.rows - a.rows);
  return std::max<Nanos>(1, a.ns + static_cast<Nanos>(share * static_cast<double>(b.ns - a.ns)));
}

BlockCacheOptions block_cache_sizes(const ModelConfig& config, const BatchPlan& plan) {
  const BatchOptions& o = plan.options;
  BlockCacheOptions out;
  out.block_tokens = o.block_tokens;
  out.device_blocks = o.blocks;
  out.places = o.places;
  out.blocks_a_sequence = static_cast<int32_t>(plan.blocks_a_sequence);
  const Bytes tile = kv_tile_bytes(o.kv_format, config.kv_heads, config.head_dim);
  const auto layers = static_cast<size_t>(config.layers);
  out.pools.assign(layers, {{}, o.block_tokens / kKvTile * tile});
  out.tails.assign(layers, {{}, kv_tail_bytes(config.kv_heads, config.head_dim)});
  out.tier_blocks = plan.disk_blocks;
  out.tier_tails = plan.disk_tails;
  return out;
}

Result<BatchPlan> plan_batch(const Model& model, const BatchOptions& options,
                             const ProcessMemory& now) {
  HR_TRY(check(model, options));
  const std::vector<int64_t> tried = contexts(model.config, options);
  Status why;
  for (int64_t context : tried) {
    if (options.blocks > 0 && context > options.blocks * options.block_tokens) continue;
    Result<BatchPlan> plan =
        BatchPlanner(model, options, now, context).run(context == tried.back());
    if (plan.ok() || plan.status().code() != Code::kDoesNotFit) return plan;
    why = plan.status();
  }
  return does_not_fit(model, options, now, why);
}

Result<Bytes> least_batch_memory(const Model& model, const BatchOptions& options,
                                 const ProcessMemory& now) {
  HR_TRY(check(model, options));
  return BatchPlanner(model, options, now, contexts(model.config, options).back()).least();
}

}  // namespace headrace
