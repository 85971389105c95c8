// From the command line and a config to a training plan: what `train` and `plan` have in common.
#pragma once

#include <CLI/CLI.hpp>
#include <filesystem>
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

// The RUN folder. Made by whoever comes first; when it is that run which ends before it has begun,
// it leaves nothing: the destructor removes what was made here, unless keep() was called.
class RunFolder {
 public:
  // kIo.
  static Result<std::unique_ptr<RunFolder>> make(const std::string& folder);
  RunFolder(const RunFolder&) = delete;
  RunFolder& operator=(const RunFolder&) = delete;
  ~RunFolder();
  void keep() { kept_ = true; }

 private:
  RunFolder() = default;
  std::vector<std::filesystem::path> made_;  // the folder, then those it is in
  bool kept_ = false;
};

// A config that has been read, and what it names opened.
struct TrainSetup {
  TrainOptions options;
  StepModel model;
  std::unique_ptr<RunFolder> folder;
  std::unique_ptr<InitialWeights> initial;
};
// kIo, kBadFile, kUsage, kUnsupported, each naming what is wrong.
Result<TrainSetup> read_train_setup(const TrainCliOptions& options);

// Of a checkpoint's config and the one that goes on with it: keys that change what is learned, with
// commas between; empty: none differs.
std::string changed_since(const std::string& config_then, const TrainConfig& now);

}  // namespace headrace::cli
