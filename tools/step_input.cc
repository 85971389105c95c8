#include "tools/step_input.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <set>

#include "headrace/cost/profiles.h"
#include "headrace/model/workload.h"
#include "headrace/sim/simulate.h"
#include "tools/options.h"

namespace headrace::cli {
namespace {

bool starts_with(std::string_view text, std::string_view begin) {
  return text.substr(0, begin.size()) == begin;
}

// The first bytes of a file; empty when there are none.
std::string first_bytes(const std::string& path, size_t n) {
  std::string bytes(n, '\0');
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor < 0) return "";
  const ssize_t got = ::pread(descriptor, bytes.data(), n, 0);  // a pipe gives nothing, and keeps it
  ::close(descriptor);
  bytes.resize(got > 0 ? static_cast<size_t>(got) : 0);
  return bytes;
}

// The keys of the outermost object, as far as one of `decisive` comes. No JSON is checked: what the
// file is for is all that is asked.
std::set<std::string> outer_keys(std::string_view text, const std::set<std::string>& decisive) {
  std::set<std::string> keys;
  int depth = 0;
  std::string last;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '{' || c == '[') ++depth;
    if (c == '}' || c == ']') --depth;
    if (c == ':' && depth == 1) {
      keys.insert(last);
      if (decisive.count(last) > 0) return keys;
    }
    if (c != '"') continue;
    const size_t begin = ++i;
    while (i < text.size() && text[i] != '"') i += text[i] == '\\' ? 2 : 1;
    if (depth == 1) last = std::string(text.substr(begin, std::min(i, text.size()) - begin));
  }
  return keys;
}

FileKind kind_of_json(std::string_view text) {
  static const std::set<std::string> kDecisive = {"headrace_workload", "kernels", "step",
                                                  "traceEvents", "tiers", "data"};
  const std::set<std::string> keys = outer_keys(text, kDecisive);
  if (keys.count("traceEvents") > 0) return FileKind::kTrace;
  if (keys.count("headrace_workload") + keys.count("kernels") + keys.count("step") > 0)
    return FileKind::kWorkload;
  if (keys.count("tiers") > 0) return FileKind::kMachine;
  if (keys.count("data") > 0) return FileKind::kTraining;
  return FileKind::kUnknown;
}

Status is_another(const std::string& path, FileKind kind, const char* wanted) {
  return error(Code::kBadFile, "%s is %s; this wants %s", path.c_str(), kind_text(kind), wanted);
}

constexpr const char* kWanted = "a Program (headrace plan -o writes one) or a Trace of one";

Result<Program> program_of(const std::string& path, const std::string& text) {
  auto program = parse_program(text);
  if (!program.ok()) return program.status().within(path);
  HR_TRY(verify(*program).within(path));
  return program;
}

}  // namespace

const char* kind_text(FileKind kind) {
  switch (kind) {
    case FileKind::kModel: return "a model";
    case FileKind::kProgram: return "a Program";
    case FileKind::kGraph: return "a graph";
    case FileKind::kTrace: return "a Trace";
    case FileKind::kWorkload: return "a workload or a step config";
    case FileKind::kMachine: return "a machine file";
    case FileKind::kTraining: return "a training config";
    case FileKind::kUnknown: return "none of the files that headrace knows";
  }
  return "";
}

FileKind kind_of_text(std::string_view text) {
  size_t at = 0;
  for (;;) {  // blank lines and comments
    while (at < text.size() && std::string_view(" \t\r\n").find(text[at]) != std::string_view::npos)
      ++at;
    if (at >= text.size() || text[at] != '#') break;
    at = std::min(text.find('\n', at), text.size());
  }
  text.remove_prefix(at);
  if (starts_with(text, "program ")) return FileKind::kProgram;
  if (starts_with(text, "graph ")) return FileKind::kGraph;
  return starts_with(text, "{") ? kind_of_json(text) : FileKind::kUnknown;
}

Result<FileKind> look_at_file(const std::string& path, std::string* text) {
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) return FileKind::kModel;
  const std::string magic = first_bytes(path, 9);
  if (starts_with(magic, "GGUF")) return FileKind::kModel;
  // A safetensors file: eight bytes of length, then JSON.
  if (magic.size() == 9 && magic[8] == '{' && magic[7] == '\0') return FileKind::kModel;
  HR_ASSIGN(*text, read_file(path));
  return kind_of_text(*text);
}

Result<Program> read_program(const std::string& path) {
  std::string text;
  HR_ASSIGN(const FileKind kind, look_at_file(path, &text));
  if (kind != FileKind::kProgram)
    return is_another(path, kind, "a Program (headrace plan -o writes one)");
  return program_of(path, text);
}

Result<Played> read_played(const std::string& path) {
  std::string text;
  HR_ASSIGN(const FileKind kind, look_at_file(path, &text));
  Played played;
  if (kind == FileKind::kTrace) {
    auto file = parse_chrome_json(text);
    if (!file.ok()) return file.status().within(path);
    played.program = std::make_unique<const Program>(std::move(file->program));
    played.trace = std::move(file->trace);
    return played;
  }
  if (kind != FileKind::kProgram) return is_another(path, kind, kWanted);
  HR_ASSIGN(Program program, program_of(path, text));
  played.program = std::make_unique<const Program>(std::move(program));
  played.trace = simulate(*played.program);
  played.simulated = true;
  return played;
}

Result<Workload> read_workload(const std::string& path, FileKind kind, const std::string& text) {
  if (kind == FileKind::kGraph) {
    Workload w;
    auto graph = parse_graph(text);
    if (!graph.ok()) return graph.status().within(path);
    w.graph = std::move(graph).value();
    HR_TRY(verify(w.graph).within(path));
    return w;
  }
  if (kind != FileKind::kWorkload) {
    return is_another(path, kind, "a workload, a step config or a graph");
  }
  auto workload = parse_workload(text);
  if (!workload.ok()) return workload.status().within(path);
  return workload;
}

Result<Machine> read_step_machine(const std::string& path) {
  // What cannot be a profile's name is a file's.
  if (path.find('/') == std::string::npos && ::access(path.c_str(), F_OK) != 0)
    return machine_by_name(path);
  std::string text;
  HR_ASSIGN(const FileKind kind, look_at_file(path, &text));
  if (kind != FileKind::kMachine && kind != FileKind::kUnknown)
    return is_another(path, kind, "a machine file");
  auto machine = machine_from_json(text);
  if (!machine.ok()) return machine.status().within(path);
  return machine;
}

}  // namespace headrace::cli
