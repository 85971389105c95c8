// headrace: one binary, one verb a file (cmd_VERB.cc).
#include <malloc.h>

#include <cstdio>

#include "tools/commands.h"

int main(int argc, char** argv) {
  // One heap, given back as soon as it is free: what the allocator keeps counts against --memory.
  mallopt(M_ARENA_MAX, 1);
  mallopt(M_MMAP_THRESHOLD, 128 * 1024);
  mallopt(M_TRIM_THRESHOLD, 256 * 1024);

  CLI::App app("Runs language models that do not fit the memory at hand.", "headrace");
  app.require_subcommand(1);
  headrace::cli::Action action;
  headrace::cli::add_run(app, &action);
  headrace::cli::add_plan(app, &action);
  headrace::cli::add_inspect(app, &action);
  headrace::cli::add_probe(app, &action);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    return app.exit(e) == 0 ? 0 : headrace::exit_code(headrace::Code::kUsage);
  }
  const headrace::Status status = action();
  if (!status.ok()) std::fprintf(stderr, "headrace: %s\n", status.message().c_str());
  return headrace::exit_code(status.code());
}
