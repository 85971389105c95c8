// headrace probe: measures this machine and writes machine.json; or teaches a machine kernels.
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <vector>

#include "headrace/base/system.h"
#include "headrace/base/system_memory.h"
#include "headrace/cost/predictor.h"
#include "headrace/session/probe_rates.h"
#include "headrace/session/quick_probe.h"
#include "headrace/tier/probe.h"
#include "tools/commands.h"
#include "tools/console.h"
#include "tools/options.h"
#include "tools/step_request.h"

namespace headrace::cli {
namespace {

constexpr Bytes kProbeFile = 256 * kMiB;
constexpr int kDiskRepeats = 3;

struct ProbeVerbOptions {
  std::string output;
  std::string file;
  int threads = 0;
  std::vector<std::string> learn;  // workloads with measured times
  std::string machine;             // that is to know them
};

// A file of incompressible bytes that is removed again.
class TemporaryFile {
 public:
  ~TemporaryFile() {
    if (!path_.empty()) ::unlink(path_.c_str());
  }
  // Writes `bytes` through to the disk; the nanoseconds that took. kIo; kCancelled.
  Result<Nanos> write(Bytes bytes) {
    const char* folder = std::getenv("TMPDIR");
    // /var/tmp outlives a reboot, so it is on a disk; /tmp may be memory.
    path_ = std::string(folder != nullptr && folder[0] != '\0' ? folder : "/var/tmp") +
            "/headrace-probe-XXXXXX";
    const int descriptor = ::mkostemp(path_.data(), O_CLOEXEC);
    if (descriptor < 0) {
      const std::string wanted = std::exchange(path_, "");
      return error(Code::kIo, "cannot create %s: %s", wanted.c_str(),
                   std::strerror(errno));
    }
    const Nanos begin = since_start();
    Status status = fill(descriptor, bytes);
    if (status.ok() && ::fsync(descriptor) != 0) status = failed();
    ::close(descriptor);
    HR_TRY(status);
    return since_start() - begin;
  }
  const std::string& path() const { return path_; }

 private:
  Status failed() const {
    return error(Code::kIo, "cannot write %s: %s (--file names another to measure)",
                 path_.c_str(), std::strerror(errno));
  }
  Status fill(int descriptor, Bytes bytes) {
    std::vector<uint64_t> block(static_cast<size_t>(kMiB) / 8);
    uint64_t state = 88172645463325252ull;
    for (Bytes at = 0; at < bytes; at += kMiB) {
      for (uint64_t& word : block) {  // xorshift64 (Marsaglia, 2003)
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        word = state;
      }
      if (::write(descriptor, block.data(), static_cast<size_t>(kMiB)) != kMiB)
        return failed();
      if (stop_flag()->load()) return error(Code::kCancelled, "stopped on request");
    }
    return {};
  }

  std::string path_;
};

std::string processor_name() {
  std::ifstream in("/proc/cpuinfo");
  for (std::string line; std::getline(in, line);) {
    const size_t colon = line.find(": ");
    if (line.rfind("model name", 0) == 0 && colon != std::string::npos) {
      return line.substr(colon + 2);
    }
  }
  return "unknown processor";
}

std::string today() {
  const std::time_t now = std::time(nullptr);
  std::tm local = {};
  localtime_r(&now, &local);
  char text[16];
  std::strftime(text, sizeof(text), "%Y-%m-%d", &local);
  return text;
}

Status measure_disk(const ProbeVerbOptions& o, Machine* machine) {
  TemporaryFile temporary;
  TierInfo& link = machine->tiers[1];
  std::string path = o.file;
  if (path.empty()) {
    print_error("disk: writing a file of 256 MiB\n");
    HR_ASSIGN(const Nanos ns, temporary.write(kProbeFile));
    path = temporary.path();
    link.store_bytes_per_s =
        static_cast<double>(kProbeFile) * 1e9 / static_cast<double>(ns);
  }
  std::vector<DiskRate> rates;
  for (int i = 0; i < kDiskRepeats; ++i) {
    if (stop_flag()->load()) return error(Code::kCancelled, "stopped on request");
    ProbeOptions options;
    options.bytes = kProbeFile;
    HR_ASSIGN(DiskRate rate, measure_read_rate(path, options));
    if (i == 0 && !rate.notice.empty()) notice("%s", rate.notice.c_str());
    rates.push_back(std::move(rate));
  }
  std::sort(rates.begin(), rates.end(), [](const DiskRate& a, const DiskRate& b) {
    return a.bytes_per_s < b.bytes_per_s;
  });
  link.load_bytes_per_s = rates[rates.size() / 2].bytes_per_s;
  std::sort(rates.begin(), rates.end(), [](const DiskRate& a, const DiskRate& b) {
    return a.latency_ns < b.latency_ns;
  });
  link.latency_ns = rates[rates.size() / 2].latency_ns;
  print_error(text_of("disk: %s/s, latency %s (%s)\n",
                      human_bytes(static_cast<Bytes>(link.load_bytes_per_s)).c_str(),
                      human_time(link.latency_ns).c_str(), rates[0].method.c_str()));
  return {};
}

// Large enough to leave the caches, small enough for the machine.
Result<Bytes> memory_to_read() {
  HR_ASSIGN(const MemoryRoom room, memory_room());
  const Bytes bytes = std::min<Bytes>(128 * kMiB, round_down(room.available / 4, kMiB));
  if (bytes >= 8 * kMiB) return bytes;
  return error(Code::kDoesNotFit, "%s of memory are too few to measure with",
               human_bytes(room.available).c_str());
}

std::string rates_table(const Machine& m, const TextStyle& style) {
  std::string out =
      "\n  " +
      dim(pad_right("weights", 10) + pad_left("one row", 14) + pad_left("many rows", 18),
          style) +
      "\n";
  for (int t = 0; t < kDTypeCount; ++t) {
    const size_t i = static_cast<size_t>(t);
    if (m.matmul_per_s[i] <= 0) continue;
    out += "  " + pad_right(name_of(static_cast<DType>(t)), 10) +
           pad_left(human_bytes(static_cast<Bytes>(m.matvec_bytes_per_s[i])) + "/s", 14) +
           pad_left(human_number(m.matmul_per_s[i] / 1e9) + " GMAC/s", 18) + "\n";
  }
  return out + text_of("\n  memory %s/s, vectors %s G/s, op overhead %s, %d thread%s\n",
                       human_bytes(static_cast<Bytes>(m.memory_bytes_per_s)).c_str(),
                       human_number(m.vector_per_s / 1e9).c_str(),
                       human_time(m.op_overhead_ns).c_str(), m.threads,
                       m.threads == 1 ? "" : "s");
}

Status probe(const ProbeVerbOptions& o) {
  const Console console = look_at_console();
  stop_flag();
  std::string output = o.output;
  if (output.empty()) {
    output = cached_machine_path();
    if (output.empty())
      return error(Code::kUsage, "no home folder to write to: give -o FILE");
    std::error_code failed;
    std::filesystem::create_directories(std::filesystem::path(output).parent_path(),
                                        failed);
  }
  HR_TRY(check_writable(output));
  const int threads = o.threads > 0 ? o.threads : default_threads();
  Machine machine = Machine::defaults(threads);
  machine.name = std::string(kMeasured) + today() + " on " + processor_name();
  HR_TRY(measure_disk(o, &machine));
  RateOptions rates;
  HR_ASSIGN(rates.memory_bytes, memory_to_read());
  rates.before = [&](const char*) { return !stop_flag()->load(); };
  print_error("memory and kernels: a few seconds\n");
  ThreadPool pool(threads);
  HR_TRY(measure_rates(rates, pool, &machine));
  print_error(rates_table(machine, console.error_style));
  HR_TRY(write_file(output, to_json(machine)));
  print_error("\nwritten to " + output + "\n");
  return {};
}

std::string score_line(const char* what, const PredictorScore& s) {
  return "  " + pad_right(what, 34) +
         pad_left(text_of("%lld", static_cast<long long>(s.kernels)), 8) +
         pad_left(text_of("%.1f %%", 100 * s.roofline_error), 12) +
         pad_left(text_of("%.1f %%", 100 * s.learned_error), 12) +
         pad_left(text_of("%.3f", s.roofline_total), 12) +
         pad_left(text_of("%.3f", s.learned_total), 12) + "\n";
}

// Trains the machine's kernels from measured workloads, and says how good that is on kernels that
// were left out.
Status learn(const ProbeVerbOptions& o) {
  if (o.output.empty()) return error(Code::kUsage, "--learn: give -o FILE for the machine file");
  HR_TRY(check_writable(o.output));
  HR_ASSIGN(Machine machine, machine_for_step(o.machine));
  std::vector<std::vector<KernelSample>> files;
  std::vector<KernelSample> all;
  std::string names;
  for (const std::string& path : o.learn) {
    std::string text;
    HR_ASSIGN(const FileKind kind, look_at_file(path, &text));
    HR_ASSIGN(const Workload workload, read_workload(path, kind, text));
    files.push_back(samples_of(workload.graph));
    if (files.back().empty())
      return error(Code::kBadFile, "%s: no op has a measured time", path.c_str());
    all.insert(all.end(), files.back().begin(), files.back().end());
    names += (names.empty() ? "" : ", ") + std::filesystem::path(path).filename().string();
  }
  std::string out = "  " + pad_right("mean error, and predicted / measured", 34) +
                    pad_left("kernels", 8) + pad_left("roofline", 12) + pad_left("learned", 12) +
                    pad_left("roofline", 12) + pad_left("learned", 12) + "\n" +
                    score_line("each shape left out in turn", cross_validate(machine, all));
  for (size_t i = 0; files.size() > 1 && i < files.size(); ++i) {
    std::vector<KernelSample> others;
    for (size_t k = 0; k < files.size(); ++k) {
      if (k != i) others.insert(others.end(), files[k].begin(), files[k].end());
    }
    const std::string left_out = std::filesystem::path(o.learn[i]).filename().string();
    out += score_line((left_out + " left out").c_str(), score_on(machine, others, files[i]));
  }
  machine.kernels = train_kernels(all);
  machine.sources["kernels"] = "learned from " + names;
  HR_TRY(write_file(o.output, to_json(machine)));
  return print_output(out);
}

}  // namespace

void add_probe(CLI::App& app, Action* action) {
  auto o = std::make_shared<ProbeVerbOptions>();
  CLI::App* verb = app.add_subcommand("probe", "Measure this machine for better plans");
  verb->add_option("-o,--output", o->output,
                   "Machine file to write (default: where run and plan look for it)");
  verb->add_option(
      "--file", o->file,
      "A large file on the disk to measure (default: a temporary one of 256 MiB)");
  verb->add_option("--threads", o->threads, "Worker threads (default: every CPU)")
      ->check(CLI::Range(1, 1024));
  verb->add_option("--learn", o->learn,
                   "Instead: learn kernels' times from workloads with measured ones");
  verb->add_option("--machine", o->machine,
                   "With --learn: the profile or machine file that is to know them");
  verb->callback([o, action] {
    *action = [o] { return o->learn.empty() ? probe(*o) : learn(*o); };
  });
}

}  // namespace headrace::cli
