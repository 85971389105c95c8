#include "tools/options.h"

#include <errno.h>
#include <sched.h>

#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "headrace/base/system_memory.h"

namespace headrace::cli {
namespace {

// Kept back from `--memory auto`: for the rest of the machine, an eighth, at least 256 MiB; in a
// control group only what its own bookkeeping needs.
Bytes auto_reserve(const MemoryRoom& room) {
  const bool group = room.limited_by != "MemAvailable";
  return group ? std::max<Bytes>(room.available / 32, 4 * kMiB)
               : std::max<Bytes>(room.available / 8, 256 * kMiB);
}

Result<Bytes> budget_of(const std::string& text) {
  HR_ASSIGN(const MemoryRoom room, memory_room());
  const Bytes automatic = std::max<Bytes>(room.available - auto_reserve(room), kMiB);
  if (text == "auto") return automatic;
  return parse_size(text, automatic);
}

int allowed_cpus() {
  cpu_set_t set;
  CPU_ZERO(&set);
  return sched_getaffinity(0, sizeof(set), &set) == 0 ? std::max(1, CPU_COUNT(&set)) : 1;
}

}  // namespace

void add_budget_options(CLI::App& verb, BudgetOptions* o) {
  verb.add_option("model", o->model, "GGUF file (any part of a split one) or Hugging Face folder")
      ->required();
  verb.add_option("--memory", o->memory,
                  "Budget of the whole process: 512MiB, 2GB, 60% (of auto), auto")
      ->capture_default_str();
  verb.add_option("--context", o->context, "Positions to make room for (default: prompt + tokens)")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 24));
  verb.add_option("--threads", o->threads, "Worker threads (default: every CPU)")
      ->check(CLI::Range(1, 1024));
  verb.add_option("--chunk", o->chunk, "Prompt tokens a step (default: chosen by the planner)")
      ->check(CLI::Range(int64_t{1}, int64_t{8192}));
  verb.add_option("--machine", o->machine_file, "Rates of this machine, from `headrace probe`");
}

Result<SessionOptions> session_options(const BudgetOptions& o) {
  SessionOptions s;
  HR_ASSIGN(s.memory_bytes, budget_of(o.memory));
  s.threads = o.threads > 0 ? o.threads : allowed_cpus();
  s.context = o.context;
  s.chunk = o.chunk;
  s.machine = Machine::defaults(s.threads);
  if (!o.machine_file.empty()) {
    HR_ASSIGN(const std::string text, read_file(o.machine_file));
    HR_ASSIGN(s.machine, machine_from_json(text));
  }
  return s;
}

Result<std::string> read_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream text;
  if (in) text << in.rdbuf();
  if (!in || std::filesystem::is_directory(path)) {
    return error(Code::kIo, "cannot read %s: %s", path.c_str(),
                 std::strerror(errno != 0 ? errno : EISDIR));
  }
  return text.str();
}

Status write_file(const std::string& path, const std::string& content) {
  const std::string temporary = path + ".partial";
  std::FILE* out = std::fopen(temporary.c_str(), "wb");
  if (out == nullptr) {
    return error(Code::kIo, "cannot write %s: %s", path.c_str(), std::strerror(errno));
  }
  const bool written = std::fwrite(content.data(), 1, content.size(), out) == content.size();
  const bool closed = std::fclose(out) == 0;
  if (!written || !closed || std::rename(temporary.c_str(), path.c_str()) != 0) {
    const int reason = errno;
    std::remove(temporary.c_str());
    return error(Code::kIo, "cannot write %s: %s", path.c_str(), std::strerror(reason));
  }
  return {};
}

}  // namespace headrace::cli
