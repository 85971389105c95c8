// Options that several verbs share, and how they become library options.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

#include "headrace/session/session_plan.h"

namespace headrace::cli {

struct BudgetOptions {
  std::string model;
  std::string memory = "auto";
  std::string machine_file;
  int threads = 0;      // 0: every CPU the process may use
  int64_t context = 0;  // 0: prompt + tokens
  int64_t chunk = 0;    // 0: chosen by the planner
};
void add_budget_options(CLI::App& verb, BudgetOptions* options);

// Reads sizes, machine file and CPU count. kUsage for a budget that is no size.
Result<SessionOptions> session_options(const BudgetOptions& options);

// Reads a whole small file. kIo with name and errno.
Result<std::string> read_file(const std::string& path);
// Writes a file completely or not at all (a temporary beside it, then rename). kIo.
Status write_file(const std::string& path, const std::string& content);

}  // namespace headrace::cli
