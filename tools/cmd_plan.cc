// headrace plan: what a run would do, before anything is loaded; or the plan of one step.
#include "headrace/report/timeline.h"
#include "headrace/sim/simulate.h"
#include "headrace/train/train_report.h"

#include "tools/commands.h"
#include "tools/console.h"
#include "tools/plan_view.h"
#include "tools/step_request.h"
#include "tools/train_setup.h"

namespace headrace::cli {
namespace {

constexpr size_t kExplained = 10;        // choices in words, without --all
constexpr size_t kExplainedInPage = 100;

struct PlanOptions {
  BudgetOptions budget;
  int64_t prompt_tokens = 128;
  int64_t new_tokens = 64;
  bool json = false;
  StepOptions step;
  std::string output;
  std::string html;
  bool explain = false;
  bool all = false;
};

Status plan_model(const PlanOptions& o) {
  const Console console = look_at_console();
  HR_ASSIGN(Setup setup, read_setup(o.budget));
  HR_ASSIGN(const std::unique_ptr<Model> model, load_model(o.budget.model));
  SessionOptions& s = setup.session;
  s.prompt_tokens = o.prompt_tokens;
  s.new_tokens = o.new_tokens;
  // With --context the expectation gives way: a longer prompt is no reason to refuse.
  if (s.context > 0)
    s.prompt_tokens = std::min(s.prompt_tokens, std::max<int64_t>(s.context / 2, 1));
  s.greedy = true;  // as `run` is without options
  const auto planned = plan_session(*model, s);
  if (!planned.ok()) {
    if (planned.status().code() != Code::kDoesNotFit) return planned.status();
    return with_advice(planned.status(), *model, s);
  }
  HR_TRY(check_peak(*model, s));
  const PlanReport report = plan_report(*model, o.budget.model, *planned, setup);
  const std::vector<BudgetOption> budgets = other_budgets(*model, *planned);
  if (!o.output.empty()) HR_TRY(write_file(o.output, to_text(planned->decode)));
  if (!o.html.empty()) {
    const Timeline t = make_timeline(planned->decode, simulate(planned->decode));
    HR_TRY(write_file(o.html, timeline_html(t)));
  }
  if (o.json) {
    JsonWriter json;
    json.begin_object();
    json.field("version", HEADRACE_VERSION);
    write_plan(report, json);
    json.key("budgets");
    write_budgets(budgets, json);
    json.end_object();
    return print_output(json.take());
  }
  return print_output(plan_table(report, console.output_style) + "\n" +
                      budget_table(budgets, console.output_style));
}

Status tell_plan(const StepPlan& plan, const StepSetup& setup, const PlanOptions& o) {
  const Console console = look_at_console();
  if (!o.output.empty()) HR_TRY(write_file(o.output, to_text(plan.program)));
  if (!o.html.empty()) {
    const Timeline t = make_timeline(plan.program, plan.predicted);
    HR_TRY(write_file(o.html,
                      timeline_html(t, step_plan_html(plan, setup.facts, kExplainedInPage))));
  }
  const size_t limit = o.all ? plan.choices.size() : kExplained;
  if (o.json)
    return print_output(step_plan_json(plan, setup.facts, o.explain || o.all ? limit : 0));
  std::string out = step_plan_text(plan, setup.facts, console.output_style);
  if (o.explain || o.all)
    out += "\n" + explain_text(plan, setup.request.budget, limit, console.output_style);
  return print_output(out);
}

Status plan_step_file(const PlanOptions& o, FileKind kind, const std::string& text) {
  StepSetup setup;
  HR_TRY(read_step_setup(o.budget.model, kind, text, o.budget.memory, o.budget.machine_file, o.step,
                         &setup));
  HR_ASSIGN(const StepResult result, plan_step(setup.request));
  if (const auto* refusal = std::get_if<Infeasible>(&result)) {
    const Graph& g = setup.workload->graph;
    if (o.json) HR_TRY(print_output(infeasible_json(*refusal, g, setup.facts)));
    return Status(Code::kDoesNotFit, infeasible_text(*refusal, g, setup.facts));
  }
  return tell_plan(std::get<StepPlan>(result), setup, o);
}

// Of a training config: the table, other budgets, the first choices in words.
Status plan_training_file(const PlanOptions& o) {
  const Console console = look_at_console();
  TrainCliOptions t;
  t.config = o.budget.model;
  t.memory = o.budget.memory;
  t.machine = o.budget.machine_file;
  t.threads = o.budget.threads;
  t.tiers = o.step.tiers;
  HR_ASSIGN(const TrainSetup setup, read_train_setup(t));
  HR_ASSIGN(const TrainPlan plan, plan_training(setup.options, setup.model));
  if (!o.output.empty()) HR_TRY(write_file(o.output, to_text(plan.plan.program)));
  if (!o.html.empty()) {
    HR_TRY(write_file(o.html, timeline_html(make_timeline(plan.plan.program, plan.plan.predicted))));
  }
  HR_ASSIGN(const std::vector<TrainBudget> budgets, other_budgets(plan));
  if (o.json) {
    JsonWriter json;
    json.begin_object();
    json.field("version", HEADRACE_VERSION);
    write_train_plan(plan, json);
    json.key("budgets").begin_array();
    for (const TrainBudget& b : budgets) {
      json.begin_object().field("memory_bytes", b.memory_bytes).field("fits", b.fits);
      if (b.fits) {
        json.field("predicted_s_per_step", static_cast<double>(b.step_ns) * 1e-9);
        json.field("moved_bytes_per_step", b.moved_bytes);
      }
      json.end_object();
    }
    json.end_array();
    json.end_object();
    return print_output(json.take());
  }
  std::string out = train_plan_table(plan, console.output_style) + "\n" +
                    train_budget_table(plan, budgets);
  if (o.explain || o.all) {
    out += "\n" + explain_text(plan.plan, plan.arena_bytes,
                               o.all ? plan.plan.choices.size() : kExplained,
                               console.output_style);
  }
  return print_output(out);
}

// Options that only some kinds of plan have.
Status check_options(const PlanOptions& o, FileKind kind, const CLI::App& verb) {
  using Options = std::vector<const char*>;
  const Options of_steps = {"--goal", "--no-recompute", "--keep-order", "--codec"};
  const Options of_both = {"--tier", "--explain", "--all"};
  const Options of_models = {"--context", "--chunk", "--prompt-tokens", "--tokens"};
  const auto refuse = [&](const Options& options, const char* whose) {
    for (const char* option : options) {
      if (verb.count(option) == 0) continue;
      return error(Code::kUsage, "%s is for %s; %s is %s", option, whose, o.budget.model.c_str(),
                   kind_text(kind));
    }
    return Status();
  };
  const bool training = kind == FileKind::kTraining;
  if (kind != FileKind::kModel) HR_TRY(refuse(of_models, "models"));
  if (kind == FileKind::kModel) HR_TRY(refuse(of_both, "steps and training configs"));
  if (kind == FileKind::kModel || training) HR_TRY(refuse(of_steps, "steps"));
  if (kind != FileKind::kModel && !training) HR_TRY(refuse({"--threads"}, "models and training"));
  return {};
}

Status plan(const PlanOptions& o, const CLI::App& verb) {
  stop_flag();
  for (const std::string* file : {&o.output, &o.html})
    if (!file->empty()) HR_TRY(check_writable(*file));
  std::string text;
  HR_ASSIGN(const FileKind kind, look_at_file(o.budget.model, &text));
  const bool step = kind == FileKind::kWorkload || kind == FileKind::kGraph;
  if (kind == FileKind::kProgram || kind == FileKind::kTrace || kind == FileKind::kMachine) {
    return error(Code::kBadFile, "%s is %s; this wants a model, a workload, a step config or a "
                 "graph", o.budget.model.c_str(), kind_text(kind));
  }
  if (kind == FileKind::kUnknown) {
    return error(Code::kBadFile, "%s is %s: a model is a GGUF file or a Hugging Face folder; a step "
                 "is JSON with \"step\", \"headrace_workload\" or \"kernels\", or a graph; a training "
                 "config has \"data\"",
                 o.budget.model.c_str(), text.empty() ? "empty" : kind_text(kind));
  }
  HR_TRY(check_options(o, kind, verb));
  if (kind == FileKind::kTraining) return plan_training_file(o);
  return step ? plan_step_file(o, kind, text) : plan_model(o);
}

}  // namespace

void add_plan(CLI::App& app, Action* action) {
  auto o = std::make_shared<PlanOptions>();
  CLI::App* verb = app.add_subcommand(
      "plan", "Show what a run or a training would do, before it starts; or plan a step");
  add_budget_options(*verb, &o->budget);
  verb->get_option("model")->description(
      "Model (GGUF file, Hugging Face folder), training config (JSON), or a step: workload or step "
      "config (JSON), graph");
  verb->get_option("--memory")->description(
      "Models: budget of the whole process; steps: of the device. 512MiB, 24GiB, 60% (of auto), "
      "auto");
  verb->get_option("--machine")->description(
      "Machine file, or for steps the name of a profile (default: the last probe's)");
  verb->add_option("--prompt-tokens", o->prompt_tokens,
                   "Length of the prompt to plan for")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 24))
      ->capture_default_str();
  verb->add_option("--tokens", o->new_tokens, "Tokens to generate")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 24))
      ->capture_default_str();
  add_step_options(*verb, &o->step);
  verb->add_option("-o,--output", o->output, "Write the Program (of a model: its decode step)");
  verb->add_option("--html", o->html, "Write the timeline, with the plan's tables");
  verb->add_flag("--explain", o->explain, "Not of a model: say why each tensor goes where it goes");
  verb->add_flag("--all", o->all, "Not of a model: explain every choice");
  verb->add_flag("--json", o->json, "As JSON");
  verb->callback([o, action, verb] { *action = [o, verb] { return plan(*o, *verb); }; });
}

}  // namespace headrace::cli
