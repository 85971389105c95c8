// From the command line to a StepRequest: what `plan`, `whatif` and `bench` have in common.
#pragma once

#include <CLI/CLI.hpp>
#include <memory>
#include <string>
#include <vector>

#include "headrace/plan/step_plan.h"
#include "headrace/report/step_report.h"
#include "tools/step_input.h"

namespace headrace::cli {

struct StepOptions {
  std::string goal = "latency";
  bool no_recompute = false;
  bool keep_order = false;
  std::vector<std::string> tiers;   // NAME=PATH[:BYTES]
  std::vector<std::string> codecs;  // CODEC=CLASS or CODEC=TENSOR
};
void add_step_options(CLI::App& verb, StepOptions* options);

// Everything that a StepRequest borrows, and the request.
struct StepSetup {
  Machine machine;
  std::shared_ptr<const Workload> workload;
  std::string name;  // for people
  StepRequest request;
  StepRequestFacts facts;
  // The request points into this object: it does not move.
  StepSetup() = default;
  StepSetup(const StepSetup&) = delete;
  StepSetup& operator=(const StepSetup&) = delete;
};

// What a step is planned on. `machine` as in read_step_machine; empty: the last probe's, else
// a quick one of this folder's filesystem (session/quick_probe.h).
Result<Machine> machine_for_step(const std::string& machine);

// Reads `path` (already looked at: `kind` and `text`) and the options into `setup`. `memory` is a
// size, or "auto": what the machine's device has. kUsage, kBadFile, kIo.
Status read_step_setup(const std::string& path, FileKind kind, const std::string& text,
                       const std::string& memory, const std::string& machine,
                       const StepOptions& options, StepSetup* setup);

}  // namespace headrace::cli
