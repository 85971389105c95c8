// Measures the planner of steps; prints one JSON object a line. Called by bench/plan/run.py.
//
//   plan_bench trace FILE BUDGET_GIB LINK_GIB_PER_S offload|joint
//   plan_bench sweep FILE budget|link offload|joint VALUE...     independent, then inherited plans
//   plan_bench steps FILE                                        tests/data/oracle/steps.txt
//   plan_bench placement FILE     the same, placement alone: live bytes, without static offsets
//   plan_bench portfolio FILE NAME                               of one of them
//   plan_bench size OPS [LINK_SHARE]                             a transformer of about OPS ops
#include <sys/resource.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>

#include "headrace/model/step_graph.h"
#include "headrace/model/workload.h"
#include "headrace/plan/placement.h"
#include "headrace/plan/step_plan.h"
#include "headrace/sim/simulate.h"
#include "tests/plan/oracle_steps.h"

namespace {

using headrace::Bytes;
using headrace::kGiB;
using headrace::Machine;
using headrace::Nanos;
using headrace::StepPlan;
using headrace::StepRequest;
using headrace::Workload;

constexpr int kNoiseSeeds = 16;

[[noreturn]] void fail(const std::string& message) {
  std::fprintf(stderr, "plan_bench: %s\n", message.c_str());
  std::exit(1);
}

double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

// Of this process, on all cores: the planner uses one, whatever else the machine does.
double cpu_seconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto of = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) * 1e-6;
  };
  return of(usage.ru_utime) + of(usage.ru_stime);
}

double seconds(Nanos ns) { return static_cast<double>(ns) * 1e-9; }

std::shared_ptr<Workload> read_workload(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) fail("cannot read '" + path + "'");
  const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  auto workload = headrace::parse_workload(text);
  if (!workload.ok()) fail(workload.status().message());
  return std::make_shared<Workload>(std::move(*workload));
}

// What noise of +-25 % on op times costs: the stall it adds, in the mean of the seeds, as a share of
// the makespan. (Where a link is the limit, slower ops take stall away and quicker ops add it; the
// mean leaves what the plan is to blame for.)
double noise_cost(const StepPlan& plan) {
  const headrace::Trace calm = headrace::simulate(plan.program);
  double added = 0;
  for (int i = 0; i < kNoiseSeeds; ++i) {
    headrace::SimOptions options;
    options.noise = 0.25;
    options.seed = static_cast<uint64_t>(i) + 1;
    added += seconds(headrace::simulate(plan.program, options).stall_ns - calm.stall_ns);
  }
  return added / kNoiseSeeds / seconds(calm.total_ns);
}

std::string quickest_policy(const StepPlan& plan) {
  const headrace::Considered* best = nullptr;
  for (const auto& c : plan.portfolio) {
    if (c.fits && (best == nullptr || c.predicted_ns < best->predicted_ns)) best = &c;
  }
  return best == nullptr ? "" : best->policy;
}

// Null when it does not fit.
std::unique_ptr<StepPlan> plan(const StepRequest& request, double* took) {
  const auto begin = std::chrono::steady_clock::now();
  auto result = headrace::plan_step(request);
  *took = seconds_since(begin);
  if (!result.ok()) fail(result.status().message());
  auto* found = std::get_if<StepPlan>(&*result);
  if (found == nullptr) {
    std::fprintf(stderr, "%s: %s\n", request.name.c_str(),
                 std::get<headrace::Infeasible>(*result).reason.c_str());
    return nullptr;
  }
  return std::make_unique<StepPlan>(std::move(*found));
}

void print_plan(const char* what, const StepRequest& r, double link, const StepPlan* p,
                double took, const char* extra) {
  std::printf("{\"what\": \"%s\", \"name\": \"%s\", \"budget_bytes\": %lld, \"link\": %.6g, "
              "\"plan_seconds\": %.3f, \"fits\": %s", what, r.name.c_str(),
              static_cast<long long>(r.budget), link, took, p != nullptr ? "true" : "false");
  if (p != nullptr) {
    std::printf(", \"makespan_s\": %.9f, \"compute_s\": %.9f, \"bound_s\": %.9f, "
                "\"arena_bytes\": %lld, \"policy\": \"%s\", \"noise_cost\": %.5f",
                seconds(p->predicted.total_ns), seconds(p->bound.compute_ns),
                seconds(p->bound.total_ns), static_cast<long long>(p->program.arena_bytes),
                quickest_policy(*p).c_str(), noise_cost(*p));
  }
  std::printf("%s}\n", extra);
  std::fflush(stdout);
}

StepRequest base_request(std::shared_ptr<const Workload> workload, const Machine& machine,
                         const std::string& ways) {
  if (ways != "offload" && ways != "joint") fail("'offload' or 'joint', not '" + ways + "'");
  StepRequest r;
  r.name = workload->graph.name;
  r.workload = std::move(workload);
  r.machine = &machine;
  r.reorder = false;
  r.recompute = ways == "joint";
  return r;
}

void run_trace(const std::string& path, double budget, double link, const std::string& ways) {
  const Machine machine = headrace::testing::two_tiers(link * static_cast<double>(kGiB));
  StepRequest r = base_request(read_workload(path), machine, ways);
  r.budget = static_cast<Bytes>(budget * static_cast<double>(kGiB));
  double took = 0;
  const auto p = plan(r, &took);
  print_plan(ways.c_str(), r, link, p.get(), took, "");
}

void run_sweep(const std::string& path, const std::string& by, const std::string& ways,
               const std::vector<double>& values) {
  const auto workload = read_workload(path);
  std::unique_ptr<StepPlan> below;
  for (double v : values) {
    const double link = by == "link" ? v : 15.754;
    const double budget = by == "budget" ? v : 32;
    const Machine machine = headrace::testing::two_tiers(link * static_cast<double>(kGiB));
    StepRequest r = base_request(workload, machine, ways);
    r.budget = static_cast<Bytes>(budget * static_cast<double>(kGiB));
    double took = 0;
    const auto alone = plan(r, &took);
    print_plan("alone", r, link, alone.get(), took, "");
    if (below != nullptr) r.inherit = &below->program;
    auto inherited = plan(r, &took);
    print_plan("inherited", r, link, inherited.get(), took, "");
    if (inherited != nullptr) below = std::move(inherited);
  }
}

void run_steps(const std::string& path) {
  const auto steps = headrace::testing::oracle_steps(path);
  if (steps.empty()) fail("no steps in '" + path + "'");
  for (const auto& s : steps) {
    const Machine machine = headrace::testing::two_tiers(s.link);
    const StepRequest r = headrace::testing::request_of(s, machine);
    double took = 0;
    const auto p = plan(r, &took);
    char extra[200];
    std::snprintf(extra, sizeof extra,
                  ", \"family\": \"%s\", \"order\": \"%s\", \"closed\": %s, \"optimum_s\": %.9f, "
                  "\"proven_s\": %.9f, \"ops\": %zu", s.family.c_str(), s.fixed ? "fixed" : "free",
                  s.closed ? "true" : "false", s.optimum_s, s.bound_s, s.workload->graph.ops.size());
    print_plan("step", r, s.link, p.get(), took, extra);
  }
}

void run_placement(const std::string& path) {
  for (const auto& s : headrace::testing::oracle_steps(path)) {
    const Machine machine = headrace::testing::two_tiers(s.link);
    const StepRequest r = headrace::testing::request_of(s, machine);
    std::vector<headrace::OpId> order;
    for (size_t i = 0; i < r.workload->graph.ops.size(); ++i) {
      order.emplace_back(static_cast<int64_t>(i));
    }
    auto problem = headrace::plan::make_problem(r, order);
    if (!problem.ok()) fail(problem.status().message());
    headrace::plan::PlaceOptions options;
    options.recompute = r.recompute;
    const auto begin = std::chrono::steady_clock::now();
    auto placed = headrace::plan::place(*problem, options);
    if (!placed.ok()) fail(placed.status().message());
    std::printf("{\"name\": \"%s\", \"family\": \"%s\", \"order\": \"%s\", \"closed\": %s, "
                "\"optimum_s\": %.9f, \"proven_s\": %.9f, \"policy\": \"\", \"fits\": %s, "
                "\"makespan_s\": %.9f, \"plan_seconds\": %.3f}\n",
                s.name.c_str(), s.family.c_str(), s.fixed ? "fixed" : "free",
                s.closed ? "true" : "false", s.optimum_s, s.bound_s,
                placed->fits ? "true" : "false", seconds(placed->predicted_ns),
                seconds_since(begin));
  }
}

void run_portfolio(const std::string& path, const std::string& name) {
  for (const auto& s : headrace::testing::oracle_steps(path)) {
    if (s.name != name) continue;
    const Machine machine = headrace::testing::two_tiers(s.link);
    double took = 0;
    const auto p = plan(headrace::testing::request_of(s, machine), &took);
    std::printf("{\"optimum_s\": %.6f, \"budget_bytes\": %lld}\n", s.optimum_s,
                static_cast<long long>(s.budget));
    if (p == nullptr) return;
    for (const auto& c : p->portfolio) {
      std::printf("{\"policy\": \"%s\", \"fits\": %s, \"seconds\": %.6f, \"bytes\": %lld}\n",
                  c.policy.c_str(), c.fits ? "true" : "false", seconds(c.predicted_ns),
                  static_cast<long long>(c.peak_bytes));
    }
    for (const auto& w : p->passes) {
      std::printf("{\"pass\": \"%s\", \"work\": %lld}\n", w.pass.c_str(),
                  static_cast<long long>(w.work));
    }
  }
}

// A training step of about `ops` ops at 60 % of its peak.
void run_size(int64_t ops, double share) {
  headrace::StepConfig c;
  c.name = "transformer";
  c.family = headrace::StepFamily::kLlama;
  c.phase = headrace::StepPhase::kTrain;
  c.hidden = 1024, c.heads = 16, c.kv_heads = 16, c.head_dim = 64, c.ffn = 2816, c.vocab = 32000;
  c.batch = 4, c.sequence = 2048;
  c.layers = 2;
  auto two = headrace::build_step(c);
  c.layers = 3;
  auto three = headrace::build_step(c);
  if (!two.ok() || !three.ok()) fail("the step cannot be built");
  const int64_t layer = static_cast<int64_t>(three->graph.ops.size() - two->graph.ops.size());
  c.layers = std::max<int64_t>(1, ops / layer);
  auto built = headrace::build_step(c);
  if (!built.ok()) fail(built.status().message());
  const auto workload = std::make_shared<Workload>(std::move(*built));
  Machine machine = headrace::testing::two_tiers(share * 50e9);
  machine.matmul_per_s.fill(100e12);
  machine.memory_bytes_per_s = 1.5e12;
  StepRequest r = base_request(workload, machine, "joint");
  r.reorder = true;
  r.budget = Bytes{1} << 48;
  r.goal = headrace::Goal::kFit;
  double took = 0;
  const auto full = plan(r, &took);
  if (full == nullptr) fail("nothing fits");
  r.goal = headrace::Goal::kLatency;
  r.budget = full->unconstrained_peak_bytes * 6 / 10;
  const double before = cpu_seconds();
  const auto p = plan(r, &took);
  const double cpu = cpu_seconds() - before;
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  char extra[160];
  std::snprintf(extra, sizeof extra,
                ", \"ops\": %zu, \"tensors\": %zu, \"peak_rss_mib\": %ld, \"cpu_seconds\": %.3f",
                workload->graph.ops.size(), workload->graph.tensors.size(),
                usage.ru_maxrss / 1024, cpu);
  print_plan("size", r, share * 50e9 / static_cast<double>(kGiB), p.get(), took, extra);
}

}  // namespace

int main(int argc, char** argv) {
  const std::string verb = argc > 1 ? argv[1] : "";
  if (verb == "trace" && argc == 6) {
    run_trace(argv[2], std::atof(argv[3]), std::atof(argv[4]), argv[5]);
  } else if (verb == "sweep" && argc > 5) {
    std::vector<double> values;
    for (int i = 5; i < argc; ++i) values.push_back(std::atof(argv[i]));
    run_sweep(argv[2], argv[3], argv[4], values);
  } else if (verb == "steps" && argc == 3) {
    run_steps(argv[2]);
  } else if (verb == "placement" && argc == 3) {
    run_placement(argv[2]);
  } else if (verb == "portfolio" && argc == 4) {
    run_portfolio(argv[2], argv[3]);
  } else if (verb == "size" && argc >= 3) {
    run_size(std::atoll(argv[2]), argc > 3 ? std::atof(argv[3]) : 1.0);
  } else {
    fail("see the head of bench/plan/plan_bench.cc");
  }
  return 0;
}
