// Simulated against executed: scaled-down steps of known architectures, planned under a budget,
// run on this machine with emulated links and an emulated device, in real time. One row a scenario:
//
//   scenario, ops, budget (share of the peak), simulated ms, executed ms (median of the runs),
//   error
//
// and last the median of |error|. The bytes are small, the times are not: what the kernels really
// compute on the CPU takes a small part of the time that each op is given.
//
//   emulate [RUNS]          default 3
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
  int budget_percent;  // of the bytes that keeping everything takes
  double link;         // bytes/s of the fast tier: a step's activations this many times a step
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
    "image_tokens": 37, "patch_dim": 192, "gated_ffn": false}})";
const char* const kMoe =
    R"({"step": {"name": "moe", "family": "moe", "phase": "train", "layers": 2, "hidden": 128,
    "heads": 4, "kv_heads": 4, "head_dim": 32, "ffn": 256, "vocab": 512, "batch": 1, "sequence": 64,
    "experts": 8, "active_experts": 2, "shared_experts": 1, "expert_ffn": 64, "dense_layers": 1,
    "q_rank": 64, "kv_rank": 32, "rope_dim": 16, "v_head_dim": 32}})";

const Scenario kScenarios[] = {
    {"llama, 80 %", kLlama, 80, 4, true, false},  {"llama, 60 %", kLlama, 60, 4, true, false},
    {"llama, 60 %, slow", kLlama, 60, 1, true, false},
    {"llama, 60 %, cyclic", kLlama, 60, 4, true, true},
    {"gpt, 70 %", kGpt, 70, 3, false, false},     {"gpt, 50 %", kGpt, 50, 3, true, false},
    {"gpt, 50 %, cyclic", kGpt, 50, 6, true, true},
    {"bert, 70 %", kBert, 70, 2, true, false},    {"bert, 50 %", kBert, 50, 2, false, false},
    {"vit, 70 %", kVit, 70, 3, true, false},      {"vit, 50 %", kVit, 50, 3, true, false},
    {"moe, 70 %", kMoe, 70, 4, true, false},      {"moe, 50 %", kMoe, 50, 4, true, true},
};

// The device runs the step in kStepSeconds; a host and a slower remote memory of the rates asked
// for.
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
                       {"host", kGiB, rate, rate, 20'000, s.duplex, -1},
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
  request.budget = kGiB;
  StepResult all = must(plan_step(request));
  if (!std::holds_alternative<StepPlan>(all)) fail("a step that does not fit in 1 GiB");
  const Bytes peak = std::get<StepPlan>(all).unconstrained_peak_bytes;
  request.budget = round_down(peak / 100 * s.budget_percent, kPage);
  StepResult result = must(plan_step(request));
  if (auto* no = std::get_if<Infeasible>(&result)) {
    request.budget = round_up(no->needed_bytes + no->needed_bytes / 20, kPage);
    result = must(plan_step(request));
  }
  if (!std::holds_alternative<StepPlan>(result)) fail(std::string(s.name) + " does not fit");
  return std::get<StepPlan>(std::move(result));
}

// Nanoseconds of one step: the median of `runs`.
Nanos executed(const Program& p, int runs) {
  ThreadPool pool(1, false);
  Arena arena = must(Arena::create(std::max(kPage, p.arena_bytes)));
  arena.touch(0, arena.bytes());
  const std::vector<Bytes> copies = copy_bytes(p);
  std::vector<std::unique_ptr<Tier>> owned;
  std::vector<Tier*> tiers = {nullptr};
  ExecutorOptions options;
  options.emulate_compute = true;
  options.copies.resize(1);
  for (size_t t = 1; t < p.tiers.size(); ++t) {
    const Bytes room = std::max(kPage, copies[t]);
    const TierInfo& info = p.tiers[t];
    auto link = std::make_shared<EmulatedLink>(
        LinkModel{info.load_bytes_per_s, info.latency_ns, info.duplex});
    owned.push_back(must(open_emulated_tier(must(open_host_tier({room})), link, 4096)));
    tiers.push_back(owned.back().get());
    options.copies.push_back({0, 0, room});
  }
  Executor executor(arena, tiers, pool, options);
  PreparedPtr prepared = must(executor.prepare(p));
  StepRows rows;
  rows.tokens = rows.sequences = rows.positions = {0};
  std::vector<Nanos> times;
  // The first cycle has no prefetches of a cycle before; the first run touches fresh memory.
  for (int i = 0; i < runs + 2; ++i) {
    Trace trace;
    const Status s = executor.run(*prepared, rows, &trace);
    if (!s.ok()) fail(s.message());
    if (i >= 2) times.push_back(trace.total_ns);
  }
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

}  // namespace

int main(int argc, char** argv) {
  const int runs = argc > 1 ? std::max(1, std::atoi(argv[1])) : 3;
  std::vector<double> errors;
  std::printf("| scenario | ops | budget | simulated ms | executed ms | error |\n");
  std::printf("|---|---|---|---|---|---|\n");
  for (const Scenario& s : kScenarios) {
    const Made made = make(s);
    const StepPlan plan = planned(s, made);
    const Trace simulated = simulate(plan.program);
    const Nanos took = executed(plan.program, runs);
    const double error =
        static_cast<double>(took) / static_cast<double>(simulated.total_ns) - 1;
    errors.push_back(std::fabs(error));
    std::printf("| %s | %zu | %.0f %% | %.1f | %.1f | %+.2f %% |\n", s.name,
                made.workload->graph.ops.size(),
                100.0 * static_cast<double>(plan.program.arena_bytes) /
                    static_cast<double>(plan.unconstrained_peak_bytes),
                static_cast<double>(simulated.total_ns) / 1e6, static_cast<double>(took) / 1e6,
                100 * error);
    std::fflush(stdout);
  }
  std::sort(errors.begin(), errors.end());
  std::printf("\nmedian |error| %.2f %%, largest %.2f %%, %zu scenarios\n",
              100 * errors[errors.size() / 2], 100 * errors.back(), errors.size());
  return 0;
}
