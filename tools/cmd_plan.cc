// headrace plan: what a run would do, before anything is loaded.
#include "tools/commands.h"
#include "tools/console.h"
#include "tools/plan_view.h"

namespace headrace::cli {
namespace {

struct PlanOptions {
  BudgetOptions budget;
  int64_t prompt_tokens = 128;
  int64_t new_tokens = 64;
  bool json = false;
};

Status plan(const PlanOptions& o) {
  const Console console = look_at_console();
  stop_flag();
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

}  // namespace

void add_plan(CLI::App& app, Action* action) {
  auto o = std::make_shared<PlanOptions>();
  CLI::App* verb =
      app.add_subcommand("plan", "Show what a run would do, without loading weights");
  add_budget_options(*verb, &o->budget);
  verb->add_option("--prompt-tokens", o->prompt_tokens,
                   "Length of the prompt to plan for")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 24))
      ->capture_default_str();
  verb->add_option("--tokens", o->new_tokens, "Tokens to generate")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 24))
      ->capture_default_str();
  verb->add_flag("--json", o->json, "As JSON");
  verb->callback([o, action] { *action = [o] { return plan(*o); }; });
}

}  // namespace headrace::cli
