// The verbs of the command line, one file each: cmd_VERB.cc registers its options and its
// action.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>

#include "headrace/base/status.h"

namespace headrace::cli {

// An action returns what went wrong; main prints it to stderr and turns it into the exit
// code.
using Action = std::function<Status()>;

// Each adds its subcommand to `app` and sets `*action` when that subcommand was given.
void add_run(CLI::App& app, Action* action);
void add_serve(CLI::App& app, Action* action);
void add_train(CLI::App& app, Action* action);
void add_plan(CLI::App& app, Action* action);
void add_sim(CLI::App& app, Action* action);
void add_timeline(CLI::App& app, Action* action);
void add_hotspots(CLI::App& app, Action* action);
void add_offsets(CLI::App& app, Action* action);
void add_whatif(CLI::App& app, Action* action);
void add_bench(CLI::App& app, Action* action);
void add_inspect(CLI::App& app, Action* action);
void add_probe(CLI::App& app, Action* action);
void add_export(CLI::App& app, Action* action);
void add_kv(CLI::App& app, Action* action);
void add_doctor(CLI::App& app, Action* action);

}  // namespace headrace::cli
