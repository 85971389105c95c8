#include "headrace/session/quick_probe.h"

#include <fcntl.h>
#include <sys/statfs.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <vector>

#include "headrace/base/safe_file.h"
#include "headrace/base/system.h"
#include "headrace/base/thread_pool.h"
#include "headrace/session/probe_rates.h"
#include "headrace/tier/arena.h"
#include "headrace/tier/file_tier.h"
#include "headrace/tier/probe.h"

namespace headrace {
namespace {

constexpr Bytes kMostFile = 32 * kMiB, kForced = 4 * kMiB;
constexpr Nanos kSecond = 1'000'000'000;
// Of the half second: for the processor; to write the file. Reading back what was written takes no
// longer than writing it did.
constexpr Nanos kRatesNs = kSecond / 5, kWriteNs = kSecond / 10;

// A file in `folder` that is gone as soon as this is.
class ShortFile {
 public:
  ~ShortFile() {
    if (descriptor_ >= 0) ::close(descriptor_);
    if (!path_.empty()) ::unlink(path_.c_str());
  }
  // Writes until the time is over; bytes a second. 0: could not.
  double write(const std::string& folder) {
    path_ = folder + "/.headrace-quick-XXXXXX";
    descriptor_ = ::mkostemp(path_.data(), O_CLOEXEC);
    if (descriptor_ < 0) {
      path_.clear();
      return 0;
    }
    std::vector<uint64_t> block(static_cast<size_t>(kMiB) / 8);
    uint64_t state = 88172645463325252ull;
    for (uint64_t& word : block) {  // xorshift64 (Marsaglia, 2003): nothing for a disk to compress
      state ^= state << 13;
      state ^= state >> 7;
      state ^= state << 17;
      word = state;
    }
    const Nanos begin = monotonic_ns();
    while (bytes_ < kMostFile && monotonic_ns() - begin < kWriteNs) {
      // Forced out every few MiB, so that the time is the disk's and has an end.
      for (Bytes part = 0; part < kForced; part += kMiB) {
        block[0] = static_cast<uint64_t>(bytes_);
        if (::write(descriptor_, block.data(), static_cast<size_t>(kMiB)) != kMiB) return 0;
        bytes_ += kMiB;
      }
      if (::fdatasync(descriptor_) != 0) return 0;
    }
    return static_cast<double>(bytes_) * 1e9 /
           static_cast<double>(std::max<Nanos>(1, monotonic_ns() - begin));
  }
  Bytes bytes() const { return bytes_; }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  int descriptor_ = -1;
  Bytes bytes_ = 0;
};

// Bytes a second at which what has room on the disk already is written again, past the page cache and
// with several transfers under way: what a step's stores do. 0: could not. A new file's first writes,
// which find the room as well, took 7 times as long here.
double rewrite_rate(const std::string& folder) {
  constexpr Bytes kPiece = 4 * kMiB, kFile = 32 * kMiB;
  constexpr int kPieces = static_cast<int>(kFile / kPiece);
  auto arena = Arena::create(2 * kPiece);
  if (!arena.ok()) return 0;
  FileTierOptions options;
  options.access = FileAccess::kScratch;
  options.scratch_bytes = kFile;
  auto tier = open_file_tier({folder + "/.headrace-quick"}, &*arena, options);
  if (!tier.ok()) return 0;
  Nanos begin = 0;
  for (int round = 0; round < 2; ++round) {  // the first finds the room
    begin = monotonic_ns();
    std::vector<Ticket> tickets;
    for (int i = 0; i < kPieces; ++i) {
      const std::span<std::byte> from = arena->at(i % 2 * kPiece, kPiece);
      const auto ticket = (*tier)->store(from, {0, i * kPiece, kPiece});
      if (!ticket.ok()) break;
      tickets.push_back(*ticket);
    }
    bool ok = tickets.size() == static_cast<size_t>(kPieces);
    for (Ticket ticket : tickets) ok = (*tier)->wait(ticket).ok() && ok;
    if (!ok) return 0;
  }
  return static_cast<double>(kFile) * 1e9 /
         static_cast<double>(std::max<Nanos>(1, monotonic_ns() - begin));
}

void measure_processor(Machine* m) {
  ThreadPool pool(m->threads);
  const Nanos begin = monotonic_ns();
  RateOptions options;
  options.memory_bytes = 16 * kMiB;
  options.repeats = 1;
  std::string done;
  options.before = [&](const char* what) {
    const bool time_left = monotonic_ns() - begin < kRatesNs;
    if (time_left) done += std::string(done.empty() ? "" : ", ") + what;
    return time_left;
  };
  const Machine defaults = *m;
  const Status status = measure_rates(options, pool, m);
  if (!status.ok() && status.code() != Code::kCancelled) *m = defaults;
  for (size_t i = 0; i < static_cast<size_t>(kDTypeCount); ++i) {
    if (m->matmul_per_s[i] <= 0) m->matmul_per_s[i] = defaults.matmul_per_s[i];
    if (m->matvec_bytes_per_s[i] <= 0) m->matvec_bytes_per_s[i] = defaults.matvec_bytes_per_s[i];
  }
  m->sources["rates"] =
      "measured: " + (done.empty() ? "nothing" : done) + "; others: built-in defaults";
}

void measure_disk(const std::string& folder, Machine* m) {
  TierInfo& disk = m->tiers[1];
  m->sources["tiers.file"] = "built-in defaults: " + folder + " cannot be measured";
  const auto facts = look_at_folder(folder);
  if (!facts.ok()) return;
  if (facts->in_memory) {
    m->sources["tiers.file"] = "built-in defaults: " + folder + " is in memory";
    return;
  }
  ShortFile file;
  const double written = file.write(folder);
  if (written <= 0) return;
  ProbeOptions options;
  options.bytes = file.bytes();
  options.latency_reads = 8;
  const auto rate = measure_read_rate(file.path(), options);
  if (!rate.ok() || !(rate->bytes_per_s > 0)) return;
  disk.load_bytes_per_s = rate->bytes_per_s;
  // So short a burst may end in the disk's own cache: not more than it reads.
  disk.store_bytes_per_s = std::clamp(rewrite_rate(folder), std::min(written, rate->bytes_per_s),
                                      rate->bytes_per_s);
  disk.latency_ns = std::max<Nanos>(0, rate->latency_ns);
  m->sources["tiers.file"] =
      "measured with a file of " + human_bytes(file.bytes()) + " in " + folder;
}

}  // namespace

std::string cached_machine_path() {
  const char* cache = std::getenv("XDG_CACHE_HOME");
  if (cache != nullptr && cache[0] == '/')
    return std::string(cache) + "/headrace/machine.json";
  const char* home = std::getenv("HOME");
  if (home == nullptr || home[0] == '\0') return "";
  return std::string(home) + "/.cache/headrace/machine.json";
}

std::string quick_probe_path(const std::string& folder, int threads) {
  const std::string full = cached_machine_path();
  struct statfs info = {};
  if (full.empty() || ::statfs(folder.c_str(), &info) != 0) return "";
  int id[2] = {};
  static_assert(sizeof(info.f_fsid) == sizeof(id));
  std::memcpy(id, &info.f_fsid, sizeof(id));
  return std::filesystem::path(full).parent_path().string() +
         text_of("/quick-%08x%08x-%d.json", static_cast<unsigned>(id[0]),
                 static_cast<unsigned>(id[1]), threads);
}

Machine quick_machine(const std::string& folder, int threads) {
  const std::string path = quick_probe_path(folder, threads);
  if (!path.empty() && ::access(path.c_str(), R_OK) == 0) {
    const auto text = read_text(path, kMiB);
    if (text.ok()) {
      auto kept = machine_from_json(*text);
      if (kept.ok()) return std::move(kept).value();
    }
  }
  Machine m = Machine::defaults(threads);
  m.name = "quick probe (measure in full: headrace probe)";
  measure_processor(&m);
  measure_disk(folder, &m);
  if (!path.empty()) {
    std::error_code ignored;
    std::filesystem::create_directories(std::filesystem::path(path).parent_path(), ignored);
    (void)write_atomically(path, to_json(m)).ok();  // a cache: whole or not at all
  }
  return m;
}

}  // namespace headrace
