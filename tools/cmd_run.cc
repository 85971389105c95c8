// headrace run: generates text inside a budget.
#include <csignal>

#include <atomic>
#include <cstdio>

#include "headrace/session/generate.h"
#include "tools/commands.h"
#include "tools/options.h"

namespace headrace::cli {
namespace {

struct RunOptions {
  BudgetOptions budget;
  std::string prompt;
  GenerateOptions generate;
};

std::atomic<bool> g_cancel{false};

Status run(const RunOptions& o) {
  HR_ASSIGN(SessionOptions options, session_options(o.budget));
  HR_ASSIGN(const std::unique_ptr<Model> model, load_model(o.budget.model));
  EncodeOptions encode;
  encode.add_bos = model->tokenizer.add_bos();
  HR_ASSIGN(const std::vector<int32_t> prompt, model->tokenizer.encode(o.prompt, encode));
  options.prompt_tokens = static_cast<int64_t>(prompt.size());
  options.new_tokens = o.generate.max_tokens;
  HR_ASSIGN(SessionPlan plan, plan_session(*model, options));
  for (const auto& i : plan.ledger.items()) {
    std::fprintf(stderr, "%s %s\n", i.name.c_str(), human_bytes(i.bytes).c_str());
  }
  const PlanSummary s = summarize(plan.decode);
  std::fprintf(stderr, "M %s R %s streamed %s ring %s predicted %.2f ms\n",
               human_bytes(s.model_bytes).c_str(), human_bytes(s.resident_bytes).c_str(),
               human_bytes(s.streamed_bytes).c_str(), human_bytes(s.ring_bytes).c_str(),
               static_cast<double>(s.predicted_ns) / 1e6);
  HR_ASSIGN(std::unique_ptr<Session> session, Session::start(*model, std::move(plan), &g_cancel));
  GenerateStats stats;
  HR_TRY(generate(*session, model->tokenizer, prompt, o.generate, [&](int32_t token) {
    const std::string bytes = model->tokenizer.token_bytes(token, false);
    std::fwrite(bytes.data(), 1, bytes.size(), stdout);
    std::fflush(stdout);
    return true;
  }, &stats));
  std::fprintf(stderr, "\nprefill %lld in %.1f ms, steady %lld in %.1f ms, wait %.1f ms, loaded %s/token\n",
               static_cast<long long>(stats.prompt_tokens), stats.prefill_ns / 1e6,
               static_cast<long long>(stats.steady_steps), stats.steady_ns / 1e6,
               stats.steady_wait_ns / 1e6,
               human_bytes(stats.steady_loaded / std::max<int64_t>(1, stats.steady_steps)).c_str());
  return {};
}

}  // namespace

void add_run(CLI::App& app, Action* action) {
  auto o = std::make_shared<RunOptions>();
  CLI::App* verb = app.add_subcommand("run", "Generate text inside a memory budget");
  add_budget_options(*verb, &o->budget);
  verb->add_option("--prompt", o->prompt, "Text to continue");
  verb->add_option("--tokens", o->generate.max_tokens, "Tokens to generate");
  verb->callback([o, action] { *action = [o] { return run(*o); }; });
}
void add_plan(CLI::App&, Action*) {}
void add_inspect(CLI::App&, Action*) {}
void add_probe(CLI::App&, Action*) {}

}  // namespace headrace::cli
