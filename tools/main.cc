// headrace: one binary, one verb a file (cmd_VERB.cc).
#include <malloc.h>

#include <cstdio>
#include <cstring>

#include "tools/commands.h"
#include "tools/console.h"

namespace {

constexpr const char* kVerbs =
    "run, serve, train, plan, sim, timeline, hotspots, whatif, offsets, bench, inspect, probe, "
    "export, kv, doctor";

// CLI11 would call an unknown verb an unexpected argument.
bool unknown_verb(const CLI::App& app, int argc, char** argv) {
  if (argc < 2 || argv[1][0] == '-') return false;
  for (const CLI::App* verb : app.get_subcommands([](const CLI::App*) { return true; })) {
    if (verb->get_name() == argv[1]) return false;
  }
  headrace::cli::notice("there is no verb '%s'; the verbs are %s (headrace --help)",
                        argv[1], kVerbs);
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  headrace::cli::hold_standard_descriptors();
  (void)headrace::cli::since_start();
  // One heap, given back as soon as it is free: what the allocator keeps counts against
  // --memory.
  mallopt(M_ARENA_MAX, 1);
  mallopt(M_MMAP_THRESHOLD, 128 * 1024);
  mallopt(M_TRIM_THRESHOLD, 256 * 1024);
  const int usage = headrace::exit_code(headrace::Code::kUsage);

  CLI::App app("Runs and trains language models that do not fit the memory at hand.", "headrace");
  app.set_version_flag("--version", std::string("headrace ") + HEADRACE_VERSION);
  app.footer(
      "Exit codes: 0 done, 2 usage, 3 does not fit the budget, 4 bad or unsupported "
      "file,\n"
      "5 input or output failed, 6 the loss is not a number, 130 stopped by a signal.");
  app.require_subcommand(1);
  headrace::cli::Action action;
  headrace::cli::add_run(app, &action);
  headrace::cli::add_serve(app, &action);
  headrace::cli::add_train(app, &action);
  headrace::cli::add_plan(app, &action);
  headrace::cli::add_sim(app, &action);
  headrace::cli::add_timeline(app, &action);
  headrace::cli::add_hotspots(app, &action);
  headrace::cli::add_offsets(app, &action);
  headrace::cli::add_whatif(app, &action);
  headrace::cli::add_bench(app, &action);
  headrace::cli::add_inspect(app, &action);
  headrace::cli::add_probe(app, &action);
  headrace::cli::add_export(app, &action);
  headrace::cli::add_kv(app, &action);
  headrace::cli::add_doctor(app, &action);
  if (unknown_verb(app, argc, argv)) return usage;
  if (argc < 2) {
    headrace::cli::notice("a verb is missing: %s (headrace --help)", kVerbs);
    return usage;
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& e) {
    return app.exit(e);  // --help, --version
  } catch (const CLI::ParseError& e) {
    headrace::cli::notice("%s (see headrace %s --help)", e.what(),
                          argv[1][0] == '-' ? "" : argv[1]);
    return usage;
  }
  const headrace::Status status = action();
  if (!status.ok()) {
    const bool ended = !status.message().empty() && status.message().back() == '\n';
    headrace::cli::print_error("headrace: " + status.message() + (ended ? "" : "\n"));
  }
  return headrace::exit_code(status.code());
}
