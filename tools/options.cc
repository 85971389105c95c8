#include "tools/options.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "headrace/base/system.h"
#include "headrace/base/system_memory.h"
#include "headrace/session/quick_probe.h"
#include "tools/disk_folder.h"

namespace headrace::cli {
namespace {

// Kept back from `--memory auto`: for the rest of the machine, an eighth, at least 256
// MiB; in a control group only what its own bookkeeping needs.
Bytes auto_reserve(const MemoryRoom& room) {
  const bool group = room.limited_by != "MemAvailable";
  return group ? std::max<Bytes>(room.available / 32, 4 * kMiB)
               : std::max<Bytes>(room.available / 8, 256 * kMiB);
}

Status read_budget(const std::string& text, Setup* setup) {
  const auto known = memory_room();
  const bool relative = text == "auto" || (!text.empty() && text.back() == '%');
  if (relative) HR_TRY(known.status());
  // A size needs no number of the system's: a sandbox may hide them (ProcSubset of systemd).
  const MemoryRoom room = known.ok() ? *known : MemoryRoom();
  const Bytes reserve = auto_reserve(room);
  const Bytes automatic = std::max<Bytes>(room.available - reserve, kMiB);
  const std::string source = text_of(
      "%s of %s less %s",
      room.limited_by == "MemAvailable" ? "available memory" : "control group's room",
      human_bytes(room.available).c_str(), human_bytes(reserve).c_str());
  if (text == "auto") {
    setup->session.memory_bytes = automatic;
    setup->budget_source = "auto: " + source;
    return {};
  }
  const auto size = parse_size(text, automatic);
  if (!size.ok()) {
    const bool told = size.status().message().find("512MiB") != std::string::npos;
    return told ? size.status()
                : error(Code::kUsage,
                        "%s; write it like 512MiB, 2GB, 4096 (bytes), 60%% or auto",
                        size.status().message().c_str());
  }
  setup->session.memory_bytes = *size;
  setup->budget_source = relative ? text + " of auto" : "set by --memory";
  return {};
}

Status read_machine(const BudgetOptions& o, Setup* setup) {
  std::string path = o.machine_file;
  if (path.empty()) {
    path = cached_machine_path();
    if (path.empty() || ::access(path.c_str(), F_OK) != 0) path.clear();
  }
  if (path.empty()) {
    setup->session.machine = Machine::defaults(setup->session.threads);
    setup->machine_source = "built-in defaults (measure yours: headrace probe)";
    return {};
  }
  HR_ASSIGN(const std::string text, read_file(path));
  auto machine = machine_from_json(text);
  if (!machine.ok()) return machine.status().within(path);
  setup->session.machine = std::move(machine).value();
  setup->machine_source = setup->session.machine.name;
  setup->machine_measured = setup->machine_source.rfind(kMeasured, 0) == 0;
  return {};
}

Result<std::string> read_descriptor(int descriptor, const std::string& name) {
  std::string text;
  char piece[16384];
  for (;;) {
    const ssize_t n = ::read(descriptor, piece, sizeof(piece));
    if (n > 0) {
      text.append(piece, static_cast<size_t>(n));
    } else if (n == 0) {
      return text;
    } else if (errno != EINTR) {
      return error(Code::kIo, "cannot read %s: %s", name.c_str(), std::strerror(errno));
    } else {
      return error(Code::kCancelled, "stopped while reading %s", name.c_str());
    }
  }
}

Status cannot_write(const std::string& path, int reason) {
  return error(Code::kIo, "cannot write %s: %s", path.c_str(), std::strerror(reason));
}

// Where KV goes that does not fit: as asked, or the first folder on a disk that can be written to;
// none at all where there is no such folder.
Result<std::string> kv_folder(const std::string& asked) {
  if (asked == "none") return std::string();
  if (!asked.empty()) {
    HR_ASSIGN(const FolderFacts facts, look_at_folder(asked));
    if (facts.in_memory) return refuse_memory("--kv-dir", asked);
    if (::access(asked.c_str(), W_OK | X_OK) != 0) return cannot_write(asked, errno);
    return asked;
  }
  return scratch_folder();
}

}  // namespace

CLI::Validator number_between(double least, double most) {
  const std::string range = text_of("%g to %g", least, most);
  return CLI::Validator(
      [=](const std::string& text) {
        double x = 0;
        if (CLI::detail::lexical_cast(text, x) && x >= least && x <= most) return std::string();
        return "'" + text + "' is not a number from " + range;
      },
      range);
}

void add_process_options(CLI::App& verb, BudgetOptions* o) {
  verb.add_option("model", o->model,
                  "GGUF file (any part of a split one) or Hugging Face folder")
      ->required();
  verb.add_option("--memory", o->memory,
                  "Budget of the whole process: 512MiB, 2GB, 60% (of auto), auto")
      ->capture_default_str();
  verb.add_option("--context", o->context,
                  "Positions to make room for (default: prompt + tokens)")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 24));
  verb.add_option("--threads", o->threads, "Worker threads (default: every CPU)")
      ->check(CLI::Range(1, 1024));
  verb.add_option("--kv", o->kv,
                  "How keys and values of past tokens are held: f16, bf16, q8, q4")
      ->capture_default_str();
  verb.add_option("--kv-dir", o->kv_folder,
                  "Folder on a disk for keys and values that do not fit the budget (default: "
                  "$TMPDIR, /var/tmp or the current one; none: they stay in memory)");
  verb.add_option(
      "--machine", o->machine_file,
      "Rates of this machine, from `headrace probe` (default: the last probe's)");
}

void add_budget_options(CLI::App& verb, BudgetOptions* o) {
  add_process_options(verb, o);
  verb.add_option("--chunk", o->chunk,
                  "Prompt tokens a step (default: chosen by the planner)")
      ->check(CLI::Range(int64_t{1}, int64_t{8192}));
  verb.add_option("--kv-sparse", o->sparse_tokens,
                  "An approximation: each decoded token attends N positions of the past, chosen by "
                  "bounds of their keys, and loads no others (0: attend all, exactly)")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 24))
      ->capture_default_str();
}

Result<Setup> read_setup(const BudgetOptions& o) {
  Setup setup;
  HR_TRY(read_budget(o.memory, &setup).within("--memory"));
  setup.session.threads = o.threads > 0 ? o.threads : default_threads();
  setup.session.context = o.context;
  setup.session.chunk = o.chunk;
  HR_ASSIGN(setup.session.kv_format, kv_format_from_name(o.kv));
  HR_ASSIGN(setup.session.kv_folder, kv_folder(o.kv_folder));
  setup.session.sparse_tokens = o.sparse_tokens;
  HR_TRY(read_machine(o, &setup));
  return setup;
}

Result<std::string> read_file(const std::string& path) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) {
    return error(Code::kIo, "cannot read %s: %s", path.c_str(), std::strerror(errno));
  }
  auto text = read_descriptor(descriptor, path);
  ::close(descriptor);
  return text;
}

Result<std::string> read_stdin() {
  return read_descriptor(STDIN_FILENO, "standard input");
}

Status write_file(const std::string& path, const std::string& content) {
  struct stat info = {};
  const bool direct = ::stat(path.c_str(), &info) == 0 && !S_ISREG(info.st_mode);
  const std::string target = direct ? path : path + ".partial";
  std::FILE* out = std::fopen(target.c_str(), "wb");
  if (out == nullptr) return cannot_write(path, errno);
  errno = 0;
  const bool written =
      std::fwrite(content.data(), 1, content.size(), out) == content.size();
  // Delayed allocation reports a full disk only when the bytes are forced out.
  const bool flushed = std::fflush(out) == 0 && (direct || ::fsync(fileno(out)) == 0);
  int reason = errno;
  const bool closed = std::fclose(out) == 0;
  if (written && flushed && !closed) reason = errno;
  if (written && flushed && closed) {
    if (direct || std::rename(target.c_str(), path.c_str()) == 0) return {};
    reason = errno;
  }
  if (!direct) std::remove(target.c_str());
  return cannot_write(path, reason);
}

Status check_writable(const std::string& path) {
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) return cannot_write(path, EISDIR);
  std::filesystem::path folder = std::filesystem::path(path).parent_path();
  if (folder.empty()) folder = ".";
  if (::access(folder.c_str(), W_OK | X_OK) != 0) return cannot_write(path, errno);
  return {};
}

}  // namespace headrace::cli
