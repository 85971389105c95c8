// One `headrace run`, from the options to the report.
#pragma once

#include <string>

#include "headrace/session/generate.h"
#include "tools/options.h"
#include "tools/prompt.h"

namespace headrace::cli {

struct RunOptions {
  BudgetOptions budget;
  PromptOptions prompt;
  GenerateOptions generate;
  bool has_tokens = false;  // --tokens was given
  std::string report_file;
  std::string trace_file;
  std::string prefix_store;         // folder; empty: none
  std::string prefix_limit = "8GiB";
  std::string conversation;         // a name in prefix_store; empty: none
};

// Text goes to stdout, all else to stderr. Once the options make sense a report is
// written whatever happens, also when loading or planning was stopped or failed. Errors:
// those of every part; kCancelled after a signal; kIo when the report or trace cannot be
// written (checked before anything is loaded, too).
Status run_session(const RunOptions& options);

}  // namespace headrace::cli
