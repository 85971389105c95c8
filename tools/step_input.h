// Files about steps: what kind one is, and how it is read.
#pragma once

#include <memory>
#include <string>

#include "headrace/cost/machine.h"
#include "headrace/ir/rules.h"
#include "headrace/ir/trace.h"

namespace headrace::cli {

enum class FileKind {
  kModel,     // GGUF, safetensors or a folder
  kProgram,   // text
  kGraph,     // text
  kTrace,     // Chrome / Perfetto JSON
  kWorkload,  // JSON, a step config included
  kMachine,   // JSON
  kTraining,  // JSON: the config of a training run
  kUnknown,
};
// "a Program", "a machine file": for messages.
const char* kind_text(FileKind kind);

// By the first bytes and, of JSON, by the keys of the outermost object. `text` receives the file
// unless it is kModel. kIo.
Result<FileKind> look_at_file(const std::string& path, std::string* text);
// The kind of a text that has been read.
FileKind kind_of_text(std::string_view text);

// A Program and one run of it.
struct Played {
  std::unique_ptr<const Program> program;
  Trace trace;
  bool simulated = false;  // the file was a Program; else it was the Trace of a run
};
// A Program, verified, and played by the simulator; or a Trace as recorded. kBadFile names what else
// the file is.
Result<Played> read_played(const std::string& path);
// A Program alone. The same errors.
Result<Program> read_program(const std::string& path);

// A workload, a step config, or a graph (every rule at its default). kBadFile. `text` is the file's.
Result<Workload> read_workload(const std::string& path, FileKind kind, const std::string& text);

// "--machine": the name of a shipped profile, or a machine file. kUsage lists the names; kIo,
// kBadFile.
Result<Machine> read_step_machine(const std::string& name_or_path);

}  // namespace headrace::cli
