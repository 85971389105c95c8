// headrace bench: measures the planner, and sessions, on this machine.
#include <sys/resource.h>

#include <algorithm>
#include <chrono>

#include "headrace/cost/profiles.h"
#include "headrace/model/step_graph.h"
#include "headrace/plan/step_plan.h"
#include "headrace/report/json_writer.h"
#include "headrace/report/step_report.h"
#include "tools/bench_session.h"
#include "tools/commands.h"
#include "tools/console.h"
#include "tools/options.h"
#include "tools/scenarios.h"

namespace headrace::cli {
namespace {

struct BenchOptions {
  std::vector<int64_t> nodes = {1'000, 10'000, 100'000};
  std::string machine = "h200-pcie5";
  double part = 0.5;
  bool json = false;
};

struct Row {
  int64_t ops = 0, tensors = 0;
  Bytes peak = 0, budget = 0;
  double plan_s = 0;
  Bytes rss = 0;          // of the process, the most so far
  bool fits = false;
  Nanos predicted_ns = 0, bound_ns = 0;
  std::string best_other;  // of the portfolio
  Nanos other_ns = 0;
};

double now_s() {
  using Clock = std::chrono::steady_clock;
  return std::chrono::duration<double>(Clock::now().time_since_epoch()).count();
}

Bytes most_rss() {
  rusage usage = {};
  ::getrusage(RUSAGE_SELF, &usage);
  return static_cast<Bytes>(usage.ru_maxrss) * kKiB;
}

// A training step of a GPT-like model with as many layers as `nodes` ops ask for.
Result<Workload> layered(int64_t nodes) {
  StepConfig c;
  c.name = text_of("gpt_%lld", static_cast<long long>(nodes));
  c.family = StepFamily::kGpt;
  c.hidden = 1024;
  c.heads = 16;
  c.kv_heads = 16;
  c.head_dim = 64;
  c.ffn = 4096;
  c.vocab = 50'304;
  c.positions = 1024;
  c.batch = 16;
  c.sequence = 1024;
  c.gated_ffn = false;
  c.layers = 2;
  HR_ASSIGN(const Workload two, build_step(c));
  c.layers = 4;
  HR_ASSIGN(const Workload four, build_step(c));
  const auto per_layer =
      static_cast<int64_t>(four.graph.ops.size() - two.graph.ops.size()) / 2;
  c.layers = std::max<int64_t>(2, (nodes - static_cast<int64_t>(two.graph.ops.size())) /
                                          std::max<int64_t>(1, per_layer) + 2);
  return build_step(c);
}

void read_portfolio(const StepPlan& plan, Row* row) {
  for (const Considered& c : plan.portfolio) {
    if (!c.fits || c.policy == "planner" || c.policy == "keep everything") continue;
    if (!row->best_other.empty() && c.predicted_ns >= row->other_ns) continue;
    row->best_other = c.policy;
    row->other_ns = c.predicted_ns;
  }
}

Result<Row> measure(int64_t nodes, const BenchOptions& o) {
  HR_ASSIGN(Machine machine, machine_by_name(o.machine));
  HR_ASSIGN(Workload built, layered(nodes));
  Row row;
  StepRequest r;
  r.name = built.graph.name;
  for (const Tensor& t : built.graph.tensors) r.budget += t.bytes + kPage;
  for (const Op& op : built.graph.ops) row.peak = std::max(row.peak, op.workspace);
  r.budget += row.peak;
  row.ops = static_cast<int64_t>(built.graph.ops.size());
  row.tensors = static_cast<int64_t>(built.graph.tensors.size());
  r.workload = std::make_shared<const Workload>(std::move(built));
  r.machine = &machine;
  r.goal = Goal::kFit;
  HR_ASSIGN(const StepResult whole, plan_step(r));
  if (const auto* plan = std::get_if<StepPlan>(&whole)) row.peak = plan->unconstrained_peak_bytes;
  row.budget = r.budget =
      round_down(static_cast<Bytes>(o.part * static_cast<double>(row.peak)), kMiB);
  r.goal = Goal::kLatency;
  const double begin = now_s();
  HR_ASSIGN(const StepResult result, plan_step(r));
  row.plan_s = now_s() - begin;
  row.rss = most_rss();
  const auto* plan = std::get_if<StepPlan>(&result);
  if (plan == nullptr) return row;
  row.fits = true;
  row.predicted_ns = plan->predicted.total_ns;
  row.bound_ns = plan->bound.total_ns;
  read_portfolio(*plan, &row);
  return row;
}

std::string row_text(const Row& r) {
  std::string out = pad_left(grouped(r.ops), 9) + pad_left(grouped(r.tensors), 10) +
                    pad_left(human_bytes(r.peak), 11) + pad_left(human_bytes(r.budget), 11) +
                    pad_left(text_of("%.3f s", r.plan_s), 10) + pad_left(human_bytes(r.rss), 11);
  if (!r.fits) return out + "  does not fit\n";
  out += pad_left(human_time(r.predicted_ns), 10);
  const auto bound = static_cast<double>(r.bound_ns);
  out += pad_left(r.bound_ns > 0 ? text_of("%.2f %%", 100 * (static_cast<double>(r.predicted_ns) /
                                                            bound - 1)) : "-", 9);
  if (r.best_other.empty()) return out + "  none fits\n";
  return out + "  " + human_time(r.other_ns) + " " + r.best_other + "\n";
}

void write_row(const Row& r, JsonWriter& json) {
  const auto s = [](Nanos ns) { return static_cast<double>(ns) / 1e9; };
  json.begin_object().field("ops", r.ops).field("tensors", r.tensors);
  json.field("peak_bytes", r.peak).field("budget_bytes", r.budget).field("plan_s", r.plan_s);
  json.field("rss_bytes", r.rss).field("fits", r.fits);
  if (r.fits) json.field("predicted_s", s(r.predicted_ns)).field("bound_s", s(r.bound_ns));
  if (!r.best_other.empty())
    json.field("best_policy", r.best_other).field("best_policy_s", s(r.other_ns));
  json.end_object();
}

Status bench_plan(const BenchOptions& o) {
  const Console console = look_at_console();
  stop_flag();
  JsonWriter json;
  json.begin_object().field("machine", o.machine).field("part", o.part);
  json.key("rows").begin_array();
  if (!o.json) {
    HR_TRY(print_output(
        text_of("training steps of a GPT-like model on %s, in %.0f %% of the memory that keeping "
                "everything takes\n", o.machine.c_str(), 100 * o.part) +
        dim(pad_left("ops", 9) + pad_left("tensors", 10) + pad_left("peak", 11) +
                pad_left("budget", 11) + pad_left("planning", 10) + pad_left("RSS", 11) +
                pad_left("step", 10) + pad_left("gap", 9) + "  best known policy",
            console.output_style) + "\n"));
  }
  for (int64_t nodes : o.nodes) {
    if (stop_flag()->load()) return error(Code::kCancelled, "stopped on request");
    HR_ASSIGN(const Row row, measure(nodes, o));
    if (o.json) {
      write_row(row, json);
    } else {
      HR_TRY(print_output(row_text(row)));
    }
  }
  json.end_array().end_object();
  return o.json ? print_output(json.take()) : Status();
}

Status bench_scenarios(bool json) {
  stop_flag();
  HR_ASSIGN(const std::vector<Scenario> all, run_scenarios([](const std::string& name) {
              print_error("scenario: " + name + "\n");
              return !stop_flag()->load();
            }));
  return print_output(json ? scenarios_json(all) : scenarios_text(all));
}

void add_session_benches(CLI::App& verb, Action* action) {
  auto kv = std::make_shared<BenchKvOptions>();
  CLI::App* sub = verb.add_subcommand("kv", "Decoding after a long past, drawn from a seed");
  add_budget_options(*sub, &kv->budget);
  sub->add_option("--positions", kv->positions, "Lengths of the past, multiples of 64")
      ->delimiter(',')
      ->capture_default_str();
  sub->add_option("--steps", kv->steps, "Tokens decoded at each")
      ->check(CLI::Range(int64_t{1}, int64_t{100'000}))
      ->capture_default_str();
  sub->add_option("--fill", kv->fill, "Seed of the past")->capture_default_str();
  sub->add_option("--kv-link", kv->link_bytes_per_s,
                  "Bytes a second of an emulated link to KV that is not in memory");
  sub->add_flag("--json", kv->json, "As JSON");
  sub->callback([kv, action] { *action = [kv] { return bench_kv(*kv); }; });

  auto text = std::make_shared<BenchPerplexityOptions>();
  sub = verb.add_subcommand("perplexity", "How well a text is predicted");
  add_budget_options(*sub, &text->budget);
  sub->add_option("--text", text->text, "A file")->required();
  sub->add_option("--window", text->window, "Tokens, each window read on its own")
      ->check(CLI::Range(int64_t{2}, int64_t{1} << 20))
      ->capture_default_str();
  sub->add_option("--windows", text->windows, "How many")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 20))
      ->capture_default_str();
  sub->add_flag("--json", text->json, "As JSON");
  sub->callback([text, action] { *action = [text] { return bench_perplexity(*text); }; });
}

}  // namespace

void add_bench(CLI::App& app, Action* action) {
  CLI::App* verb = app.add_subcommand("bench", "Measure the planner and sessions");
  verb->require_subcommand(1);
  auto o = std::make_shared<BenchOptions>();
  CLI::App* plan = verb->add_subcommand(
      "plan", "Planning time by size of the graph, and what the plans are worth");
  plan->add_option("--nodes", o->nodes, "Ops of each row, about")
      ->check(CLI::Range(int64_t{100}, int64_t{1'000'000}))
      ->capture_default_str();
  plan->add_option("--machine", o->machine, "Name of a profile")->capture_default_str();
  plan->add_option("--budget-part", o->part, "Of the memory that keeping everything takes")
      ->check(number_between(0.01, 1))
      ->capture_default_str();
  plan->add_flag("--json", o->json, "As JSON");
  plan->callback([o, action] { *action = [o] { return bench_plan(*o); }; });
  add_session_benches(*verb, action);
  auto as_json = std::make_shared<bool>(false);
  CLI::App* scenarios = verb->add_subcommand(
      "scenarios", "Published figures beside ours, simulated, with every assumption");
  scenarios->add_flag("--json", *as_json, "As JSON");
  scenarios->callback(
      [as_json, action] { *action = [as_json] { return bench_scenarios(*as_json); }; });
}

}  // namespace headrace::cli
