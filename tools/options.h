// Options that several verbs share, and how they become library options.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <string_view>

#include "headrace/session/session_plan.h"

namespace headrace::cli {

struct BudgetOptions {
  std::string model;
  std::string memory = "auto";
  std::string machine_file;
  int threads = 0;      // 0: every CPU the process may use
  int64_t context = 0;  // 0: prompt + tokens
  int64_t chunk = 0;    // 0: chosen by the planner
  std::string kv = "f16";
  std::string kv_folder;  // empty: chosen
  int64_t sparse_tokens = 0;  // 0: all of the past is attended
};
void add_budget_options(CLI::App& verb, BudgetOptions* options);
// Those of them that make sense whoever shares the model: all but --chunk and --kv-sparse.
void add_process_options(CLI::App& verb, BudgetOptions* options);

// Library options, and for people where their numbers come from.
struct Setup {
  SessionOptions session;
  std::string budget_source;   // "set", "auto: ..."
  std::string machine_source;  // "built-in defaults (...)", "measured ..."
  bool machine_measured = false;  // by `headrace probe`, not written by hand
};
// How the name of a machine file begins that `headrace probe` wrote.
constexpr std::string_view kMeasured = "measured ";
// Reads sizes, machine file and CPU count. kUsage for a budget that is no size; kIo and
// kBadFile for a machine file that cannot be read or is none.
Result<Setup> read_setup(const BudgetOptions& options);

// Of an option: a number from `least` to `most`; unlike CLI::Range it refuses NaN.
CLI::Validator number_between(double least, double most);
// Reads a whole file. kIo with name and errno.
Result<std::string> read_file(const std::string& path);
// All of standard input. kIo.
Result<std::string> read_stdin();
// Writes a file completely or not at all (a temporary beside it, then rename); what is
// not a regular file (a pipe, /dev/stderr) is written to. kIo.
Status write_file(const std::string& path, const std::string& content);
// kIo when write_file could not write there as things are now.
Status check_writable(const std::string& path);

}  // namespace headrace::cli
