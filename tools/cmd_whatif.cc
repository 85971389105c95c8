// headrace whatif: the time of a step against budget and bandwidth.
#include "headrace/report/whatif.h"

#include <algorithm>

#include "tools/commands.h"
#include "tools/console.h"
#include "tools/options.h"
#include "tools/plan_view.h"
#include "tools/step_request.h"

namespace headrace::cli {
namespace {

struct WhatifOptions {
  std::string input;
  std::string memory;
  std::string bandwidth;
  std::string machine;
  std::string link;
  StepOptions step;
  std::string output;
  std::string html;
  bool json = false;
};

// The tier whose bandwidth varies, and the rates to try: those asked for, else the machine's own.
Status choose_link(const Machine& machine, WhatifOptions* o, std::vector<double>* rates) {
  if (o->link.empty()) o->link = machine.tiers[1].name;
  if (!o->bandwidth.empty()) {
    auto parsed = parse_bandwidths(o->bandwidth);
    if (!parsed.ok()) return parsed.status().within("--bandwidth");
    *rates = std::move(parsed).value();
    return {};
  }
  for (const TierInfo& t : machine.tiers)
    if (t.name == o->link) rates->push_back(t.load_bytes_per_s);
  if (rates->empty()) rates->push_back(1e9);  // what_if() refuses the link by name
  return {};
}

Result<Whatif> sweep_step(const WhatifOptions& given, FileKind kind, const std::string& text,
                          const std::vector<Bytes>& budgets, ProgressLine* progress) {
  WhatifOptions o = given;
  StepSetup setup;
  HR_TRY(read_step_setup(o.input, kind, text, std::to_string(budgets.back()), o.machine, o.step,
                         &setup));
  std::vector<double> rates;
  HR_TRY(choose_link(setup.machine, &o, &rates));
  const auto points = static_cast<int64_t>(budgets.size() * rates.size());
  return what_if(setup.request, o.link, budgets, rates, [&](size_t done) {
    progress->update("plans", static_cast<int64_t>(done), points, "plans/s");
    return !stop_flag()->load();
  });
}

// A model's decode step: budgets are of the whole process.
Result<Whatif> sweep_model(const WhatifOptions& given, const std::vector<Bytes>& budgets,
                           ProgressLine* progress) {
  WhatifOptions o = given;
  BudgetOptions b;
  b.model = o.input;
  b.machine_file = o.machine;
  HR_ASSIGN(Setup setup, read_setup(b));
  HR_ASSIGN(const std::unique_ptr<Model> model, load_model(o.input));
  std::vector<double> rates;
  HR_TRY(choose_link(setup.session.machine, &o, &rates));
  if (o.link != setup.session.machine.tiers[1].name) {
    return error(Code::kUsage, "--link %s: weights are loaded from '%s'", o.link.c_str(),
                 setup.session.machine.tiers[1].name.c_str());
  }
  Whatif w{model_name(*model, o.input), setup.session.machine.name, o.link, budgets, rates, {}};
  SessionOptions s = setup.session;
  s.greedy = true;
  s.prompt_tokens = 128;
  s.new_tokens = 64;
  const auto points = static_cast<int64_t>(budgets.size() * rates.size());
  for (size_t k = 0; k < rates.size(); ++k) {
    s.machine.tiers[1].load_bytes_per_s = s.machine.tiers[1].store_bytes_per_s = rates[k];
    for (size_t i = 0; i < budgets.size(); ++i) {
      progress->update("plans", static_cast<int64_t>(w.points.size()), points,
                       "plans/s");
      if (stop_flag()->load()) return error(Code::kCancelled, "stopped on request");
      s.memory_bytes = budgets[i];
      WhatifPoint p{budgets[i], rates[k]};
      const auto plan = plan_session(*model, s);
      if (!plan.ok() && plan.status().code() != Code::kDoesNotFit) return plan.status();
      if (plan.ok()) {
        const PlanSummary sum = summarize(plan->decode);
        p.fits = true;
        p.predicted_ns = sum.predicted_ns;
        p.moved_bytes = sum.streamed_bytes;
      }
      // The plan of less memory still fits, that of a slower link still runs.
      const WhatifPoint* const less = i > 0 ? &w.points.back() : nullptr;
      const WhatifPoint* const slower = k > 0 ? &w.at(k - 1, i) : nullptr;
      for (const WhatifPoint* below : {less, slower}) {
        if (below == nullptr || !below->fits) continue;
        if (p.fits && p.predicted_ns <= below->predicted_ns) continue;
        p.fits = p.inherited = true;
        p.predicted_ns = below->predicted_ns;
        p.moved_bytes = below->moved_bytes;
      }
      w.points.push_back(p);
    }
  }
  return w;
}

Status tell(const Whatif& w, const WhatifOptions& o, const Console& console) {
  if (!o.output.empty()) {
    const bool json = o.output.size() > 5 && o.output.substr(o.output.size() - 5) == ".json";
    HR_TRY(write_file(o.output, json ? whatif_json(w) : whatif_csv(w)));
  }
  if (!o.html.empty()) HR_TRY(write_file(o.html, whatif_html(w)));
  HR_TRY(print_output(o.json ? whatif_json(w) : whatif_text(w, console.output_style)));
  const bool any = std::any_of(w.points.begin(), w.points.end(),
                               [](const WhatifPoint& p) { return p.fits; });
  if (any) return {};
  return error(Code::kDoesNotFit, "none of these budgets holds a step of %s (`headrace plan` says "
               "why)", w.workload.c_str());
}

Status whatif(const WhatifOptions& o) {
  const Console console = look_at_console();
  stop_flag();
  for (const std::string* file : {&o.output, &o.html})
    if (!file->empty()) HR_TRY(check_writable(*file));
  const auto budgets = parse_budgets(o.memory);
  if (!budgets.ok()) return budgets.status().within("--memory");
  std::string text;
  HR_ASSIGN(const FileKind kind, look_at_file(o.input, &text));
  ProgressLine progress(console);
  progress.restart();
  auto swept = kind == FileKind::kModel ? sweep_model(o, *budgets, &progress)
                                        : sweep_step(o, kind, text, *budgets, &progress);
  progress.clear();
  if (!swept.ok()) return swept.status();
  return tell(*swept, o, console);
}

}  // namespace

void add_whatif(CLI::App& app, Action* action) {
  auto o = std::make_shared<WhatifOptions>();
  CLI::App* verb =
      app.add_subcommand("whatif", "Time of a step against memory and bandwidth");
  verb->add_option("input", o->input, "Workload, step config or graph; or a model")->required();
  verb->add_option("--memory", o->memory, "Budgets: 16GiB..48GiB, 16GiB..48GiB:9 (steps), 24GiB")
      ->required();
  verb->add_option("--bandwidth", o->bandwidth,
                   "GB/s each way: 16..128, 16..128:7 (default: the machine's)");
  verb->add_option("--link", o->link,
                   "Tier whose link varies (default: the machine's first after the device)");
  verb->add_option("--machine", o->machine,
                   "Machine file, or for steps the name of a profile (default: the last probe's)");
  add_step_options(*verb, &o->step);
  verb->add_option("-o,--output", o->output, "Write the points: .csv, or .json");
  verb->add_option("--html", o->html, "Write a page with plot and table");
  verb->add_flag("--json", o->json, "As JSON");
  verb->callback([o, action] { *action = [o] { return whatif(*o); }; });
}

}  // namespace headrace::cli
