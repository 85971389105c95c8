// Simulated against executed: scaled-down steps of known architectures, planned under a budget,
// run on this machine with emulated links and an emulated device, in real time. One row a scenario:
//
//   scenario, ops, budget (part of what keeping everything takes), transfers, simulated ms,
//   executed ms (median of the runs), error, bytes
//
// and last the median of |error|. Bytes are equal when every tier's own counters say, load and
// store, what the simulator says; the executor is given an arena and tiers of exactly the bytes
// that the plan's residencies end at, and refuses whatever lies beyond. The bytes are small, the
// times are not: what the kernels really compute on the CPU takes a small part of the time that
// each op is given.
//
//   taskset -c 0,1 emulate [RUNS]          default 3; two threads: compute, and copies
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "headrace/model/step_graph.h"
#include "headrace/plan/step_plan.h"
#include "headrace/run/executor.h"
#include "headrace/sim/simulate.h"
#include "headrace/tier/emulated_tier.h"
#include "headrace/tier/host_tier.h"

namespace {

using namespace headrace;

constexpr double kStepSeconds = 0.4;  // of compute, all ops once; more for their operands

[[noreturn]] void fail(const std::string& message) {
  std::fprintf(stderr, "emulate: %s\n", message.c_str());
  std::exit(1);
}

template <typename T>
T must(Result<T> result) {
  if (!result.ok()) fail(result.status().message());
  return std::move(result).value();
}

struct Scenario {
  const char* name;
  const char* config;  // of model/step_graph.h
  // Of the way from the least that any plan needs (0) to keeping everything (100).
  int budget_percent;
  double link;  // bytes/s loaded from the fast tier: a step's activations this many times a step
  bool duplex;
  bool cyclic;
};

const char* const kLlama =
    R"({"step": {"name": "llama", "family": "llama", "phase": "train", "layers": 3, "hidden": 128,
    "heads": 4, "kv_heads": 2, "head_dim": 32, "ffn": 256, "vocab": 512, "batch": 1,
    "sequence": 64}})";
const char* const kGpt =
    R"({"step": {"name": "gpt", "family": "gpt", "phase": "train", "layers": 3, "hidden": 128,
    "heads": 4, "kv_heads": 4, "head_dim": 32, "ffn": 512, "vocab": 512, "batch": 1, "sequence": 64,
    "gated_ffn": false}})";
const char* const kBert =
    R"({"step": {"name": "bert", "family": "bert", "phase": "train", "layers": 2, "hidden": 128,
    "heads": 4, "kv_heads": 4, "head_dim": 32, "ffn": 512, "vocab": 512, "batch": 2, "sequence": 64,
    "gated_ffn": false, "flash_attention": false}})";
const char* const kVit =
    R"({"step": {"name": "vit", "family": "vit", "phase": "train", "layers": 3, "hidden": 96,
    "heads": 3, "kv_heads": 3, "head_dim": 32, "ffn": 384, "vocab": 100, "batch": 4,
    "image_tokens": 37, "positions": 37, "patch_dim": 192, "gated_ffn": false}})";
const char* const kMoe =
    R"({"step": {"name": "moe", "family": "moe", "phase": "train", "layers": 2, "hidden": 128,
    "heads": 4, "kv_heads": 4, "head_dim": 32, "ffn": 256, "vocab": 512, "batch": 1, "sequence": 64,
    "experts": 8, "active_experts": 2, "shared_experts": 1, "expert_ffn": 64, "dense_layers": 1,
    "q_rank": 64, "kv_rank": 32, "rope_dim": 16, "v_head_dim": 32}})";

const Scenario kScenarios[] = {
    {"llama, 60 %", kLlama, 60, 4, true, false},
    {"llama, 20 %", kLlama, 20, 4, true, false},
    {"llama, 20 %, slow", kLlama, 20, 1, true, false},
    {"llama, 20 %, cyclic", kLlama, 20, 4, true, true},
    {"gpt, 40 %, shared link", kGpt, 40, 3, false, false},
    {"gpt, 10 %", kGpt, 10, 3, true, false},
    {"gpt, 10 %, cyclic", kGpt, 10, 6, true, true},
    {"bert, 50 %", kBert, 50, 2, true, false},
    {"bert, 10 %, shared link", kBert, 10, 2, false, false},
    {"vit, 50 %", kVit, 50, 3, true, false},
    {"vit, 10 %", kVit, 10, 3, true, false},
    {"moe, 40 %", kMoe, 40, 4, true, false},
    {"moe, 20 %, cyclic", kMoe, 20, 4, true, true},
};

// The device runs the step in kStepSeconds; a host, which is written to slower than it is read, and
// a slower remote memory.
struct Made {
  std::shared_ptr<const Workload> workload;
  Machine machine;
};

Made make(const Scenario& s) {
  Made out;
  out.machine = Machine::defaults(1);
  auto workload = std::make_shared<Workload>(must(build_step(must(parse_step_config(s.config)))));
  workload->cyclic = s.cyclic;
  Graph& g = workload->graph;
  double total = 0, moved = 0;
  for (const Op& op : g.ops) total += static_cast<double>(op_cost(out.machine, g, op, {}));
  for (Op& op : g.ops) {
    const double share = static_cast<double>(op_cost(out.machine, g, op, {})) / total;
    // At least four times what reading and writing its operands takes this CPU at 1 GB/s.
    Bytes operands = op.workspace;
    for (const auto* list : {&op.inputs, &op.outputs, &op.updates}) {
      for (TensorId t : *list) operands += t.valid() ? g.at(t).bytes : 0;
    }
    op.attrs[Attr::kSeconds] = share * kStepSeconds + 4e-9 * static_cast<double>(operands);
  }
  for (const Tensor& t : g.tensors) {
    if (t.role == Role::kActivation) moved += static_cast<double>(t.bytes);
  }
  const double rate = s.link * moved / kStepSeconds;
  out.machine.op_overhead_ns = 0;
  out.machine.tiers = {{"device", 0, 0, 0, 0, false, -1},
                       {"host", kGiB, rate, 0.75 * rate, 20'000, s.duplex, -1},
                       {"remote", kGiB, rate / 2, rate / 2, 50'000, true, -1}};
  out.workload = std::move(workload);
  return out;
}

StepPlan planned(const Scenario& s, const Made& made) {
  StepRequest request;
  request.name = s.name;
  request.workload = made.workload;
  request.machine = &made.machine;
  request.goal = s.cyclic ? Goal::kThroughput : Goal::kLatency;
  request.budget = kPage;
  const StepResult none = must(plan_step(request));
  if (!std::holds_alternative<Infeasible>(none)) fail(std::string(s.name) + " fits in a page");
  const Bytes least = std::get<Infeasible>(none).needed_bytes;
  request.budget = kGiB;
  const StepResult all = must(plan_step(request));
  if (!std::holds_alternative<StepPlan>(all)) fail("a step that does not fit in 1 GiB");
  const Bytes peak = std::get<StepPlan>(all).unconstrained_peak_bytes;
  request.budget = round_up(least + (peak - least) * s.budget_percent / 100, kPage);
  StepResult result = must(plan_step(request));
  if (!std::holds_alternative<StepPlan>(result)) fail(std::string(s.name) + " does not fit");
  return std::get<StepPlan>(std::move(result));
}

struct TierBytes {
  Bytes loaded = 0, stored = 0;
  bool operator==(const TierBytes&) const = default;
};

// By tier, as simulated.
std::vector<TierBytes> tier_bytes(const Program& p, const Trace& trace) {
  std::vector<TierBytes> out(p.tiers.size());
  for (size_t s = 0; s < p.instrs.size(); ++s) {
    const Instr& i = p.instrs[s];
    if (i.kind == InstrKind::kLoad) out[i.tier.index()].loaded += trace.records[s].bytes;
    if (i.kind == InstrKind::kStore) out[i.tier.index()].stored += trace.records[s].bytes;
  }
  return out;
}

struct Executed {
  Nanos ns = 0;                  // of one step: the median of the runs
  std::vector<TierBytes> bytes;  // of the last run, by the tiers' own counters
};

Executed executed(const Program& p, int runs) {
  ThreadPool pool(1, false);
  Arena arena = must(Arena::create(std::max(kPage, peak_bytes(p))));
  arena.touch(0, arena.bytes());
  std::vector<std::unique_ptr<Tier>> owned;
  std::vector<Tier*> tiers = {nullptr};
  ExecutorOptions options;
  options.emulate_compute = true;
  options.copies.resize(1);
  for (size_t t = 1; t < p.tiers.size(); ++t) {
    const Bytes room = std::max(kPage, peak_bytes(p, TierId(static_cast<int64_t>(t))));
    const TierInfo& info = p.tiers[t];
    auto link = std::make_shared<EmulatedLink>(
        LinkModel{info.load_bytes_per_s, info.latency_ns, info.duplex, info.store_bytes_per_s});
    owned.push_back(must(open_emulated_tier(must(open_host_tier({room})), link, 4096)));
    tiers.push_back(owned.back().get());
    options.copies.push_back({0, 0, room});
  }
  Executor executor(arena, tiers, pool, options);
  PreparedPtr prepared = must(executor.prepare(p));
  StepRows rows;
  rows.tokens = rows.sequences = rows.positions = {0};
  std::vector<Nanos> times;
  Executed out;
  std::vector<TierCounters> before(tiers.size());
  // The first cycle has no prefetches of a cycle before; the first run touches fresh memory.
  for (int i = 0; i < runs + 2; ++i) {
    for (size_t t = 1; t < tiers.size(); ++t) before[t] = tiers[t]->counters();
    Trace trace;
    const Status s = executor.run(*prepared, rows, &trace);
    if (!s.ok()) fail(s.message());
    if (i < 2) continue;
    times.push_back(trace.total_ns);
    out.bytes.resize(tiers.size());
    for (size_t t = 1; t < tiers.size(); ++t) {
      const TierCounters after = tiers[t]->counters();
      out.bytes[t].loaded = after.loaded_bytes - before[t].loaded_bytes;
      out.bytes[t].stored = after.stored_bytes - before[t].stored_bytes;
    }
  }
  std::sort(times.begin(), times.end());
  out.ns = times[times.size() / 2];
  return out;
}

}  // namespace

int main(int argc, char** argv) {
  const int runs = argc > 1 ? std::max(1, std::atoi(argv[1])) : 3;
  std::vector<double> errors;
  size_t equal = 0;
  std::printf("| scenario | ops | budget | transfers | simulated ms | executed ms | error | bytes |\n"
              "|---|---|---|---|---|---|---|---|\n");
  for (const Scenario& s : kScenarios) {
    const Made made = make(s);
    const StepPlan plan = planned(s, made);
    const Program& p = plan.program;
    const Trace simulated = simulate(p);
    const Executed took = executed(p, runs);
    const auto transfers = std::count_if(p.instrs.begin(), p.instrs.end(),
                                         [](const Instr& i) { return is_transfer(i.kind); });
    const double error = static_cast<double>(took.ns) / static_cast<double>(simulated.total_ns) - 1;
    const bool same = took.bytes == tier_bytes(p, simulated);
    errors.push_back(std::fabs(error));
    equal += same ? 1 : 0;
    std::printf("| %s | %zu | %.0f %% | %zu | %.1f | %.1f | %+.2f %% | %s |\n", s.name,
                p.graph->ops.size(),
                100.0 * static_cast<double>(p.arena_bytes) /
                    static_cast<double>(plan.unconstrained_peak_bytes),
                static_cast<size_t>(transfers), static_cast<double>(simulated.total_ns) / 1e6,
                static_cast<double>(took.ns) / 1e6, 100 * error, same ? "equal" : "DIFFER");
    std::fflush(stdout);
  }
  std::sort(errors.begin(), errors.end());
  std::printf("\nmedian |error| %.2f %%, largest %.2f %%; bytes equal in %zu of %zu scenarios\n",
              100 * errors[errors.size() / 2], 100 * errors.back(), equal, errors.size());
  return equal == errors.size() ? 0 : 1;
}
