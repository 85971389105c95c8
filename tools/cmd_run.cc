// headrace run: generates text inside a budget.
#include <memory>

#include "tools/commands.h"
#include "tools/run_session.h"

namespace headrace::cli {
namespace {

void add_prompt_options(CLI::App& verb, PromptOptions* o) {
  CLI::Option* prompt = verb.add_option("--prompt", o->text, "Text to continue");
  prompt->each([o](const std::string&) { o->has_text = true; });
  verb.add_option("--prompt-file", o->file, "Read the prompt from a file");
  verb.add_flag("--stdin", o->from_stdin, "Read the prompt from standard input");
  verb.add_flag(
      "--chat", o->chat,
      "Put the prompt through the model's chat template; without a prompt, on a "
      "terminal: a conversation");
  verb.add_option("--system", o->system, "With --chat: the system message");
}

void add_generation_options(CLI::App& verb, RunOptions* o) {
  GenerateOptions& g = o->generate;
  verb.add_option("--tokens", g.max_tokens,
                  "Tokens to generate (0: until the context is full)")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 24))
      ->capture_default_str()
      ->each([o](const std::string&) { o->has_tokens = true; });
  verb.add_option("--temperature", g.sampling.temperature,
                  "0: always the likeliest token")
      ->capture_default_str();
  verb.add_option("--top-k", g.sampling.top_k, "Sample from the K likeliest (0: all)")
      ->capture_default_str();
  verb.add_option("--top-p", g.sampling.top_p,
                  "Sample from the likeliest with this share (1: all)")
      ->capture_default_str();
  verb.add_option("--min-p", g.sampling.min_p,
                  "Drop tokens below this share of the likeliest")
      ->capture_default_str();
  verb.add_option("--repeat-penalty", g.sampling.repeat_penalty,
                  "Push down tokens of the last 64 (1: no)")
      ->capture_default_str();
  verb.add_option("--seed", g.sampling.seed, "Of the sampler")->capture_default_str();
  verb.add_flag("--ignore-eos", g.ignore_end, "Go on after an end-of-text token");
}

}  // namespace

void add_run(CLI::App& app, Action* action) {
  auto o = std::make_shared<RunOptions>();
  CLI::App* verb = app.add_subcommand("run", "Generate text inside a memory budget");
  add_budget_options(*verb, &o->budget);
  add_prompt_options(*verb, &o->prompt);
  add_generation_options(*verb, o.get());
  verb->add_option("--report", o->report_file,
                   "Write what was planned and measured as JSON");
  verb->add_option(
      "--trace", o->trace_file,
      "Write the last step as Chrome trace JSON (chrome://tracing, Perfetto)");
  verb->add_option("--prefix-store", o->prefix_store,
                   "Folder in which what was read is kept: a prompt that begins like one before "
                   "is not computed again (see headrace kv)");
  verb->add_option("--prefix-limit", o->prefix_limit, "Bytes that this folder may take")
      ->capture_default_str();
  verb->add_option("--conversation", o->conversation,
                   "Go on with the conversation of this name in the prefix store, or begin it; "
                   "what was said is saved there at the end");
  verb->callback([o, action] { *action = [o] { return run_session(*o); }; });
}

}  // namespace headrace::cli
