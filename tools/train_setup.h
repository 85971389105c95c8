// From the command line and a config to a training plan: what `train` and `plan` have in common.
#pragma once

#include <CLI/CLI.hpp>
#include <memory>
#include <string>
#include <vector>

#include "headrace/train/initial_weights.h"
#include "headrace/train/train_plan.h"
#include "tools/options.h"

namespace headrace::cli {

struct TrainCliOptions {
  std::string config;
  std::string memory = "auto";
  std::string machine;
  int threads = 0;
  std::vector<std::string> tiers;  // NAME=FOLDER[:BYTES]
  bool no_profile = false;
  bool paranoid = false;
  int64_t steps = -1;              // instead of the config's
};
void add_train_options(CLI::App& verb, TrainCliOptions* options);

// A config that has been read, and what it names opened.
struct TrainSetup {
  TrainOptions options;
  StepModel model;
  std::unique_ptr<InitialWeights> initial;
};
// kIo, kBadFile, kUsage, kUnsupported, each naming what is wrong.
Result<TrainSetup> read_train_setup(const TrainCliOptions& options);

}  // namespace headrace::cli
