#include "headrace/base/system.h"

#include <sched.h>
#include <sys/statfs.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>

namespace headrace {
namespace {

constexpr long kTmpfs = 0x01021994, kRamfs = 0x858458f6;

}  // namespace

Nanos monotonic_ns() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<Nanos>(t.tv_sec) * 1'000'000'000 + t.tv_nsec;
}

std::vector<int> allowed_cpus() {
  std::vector<int> cpus;
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) != 0) return cpus;
  for (int i = 0; i < CPU_SETSIZE; ++i) {
    if (CPU_ISSET(i, &set)) cpus.push_back(i);
  }
  return cpus;
}

int default_threads() {
  return static_cast<int>(std::max<size_t>(1, allowed_cpus().size()));
}

Result<Bytes> free_on_disk(const std::string& folder) {
  struct statvfs info = {};
  if (::statvfs(folder.c_str(), &info) != 0) {
    return error(Code::kIo, "cannot look at %s: %s", folder.c_str(), std::strerror(errno));
  }
  return static_cast<Bytes>(info.f_bavail) * static_cast<Bytes>(info.f_frsize);
}

Result<FolderFacts> look_at_folder(const std::string& folder) {
  struct statfs info = {};
  if (::statfs(folder.c_str(), &info) != 0) {
    return error(Code::kIo, "cannot look at %s: %s", folder.c_str(), std::strerror(errno));
  }
  HR_ASSIGN(const Bytes free_bytes, free_on_disk(folder));
  return FolderFacts{info.f_type == kTmpfs || info.f_type == kRamfs, free_bytes};
}

std::string scratch_folder() {
  const char* temporary = std::getenv("TMPDIR");
  for (const char* folder : {temporary, "/var/tmp", "."}) {
    if (folder == nullptr || folder[0] == '\0' || ::access(folder, W_OK | X_OK) != 0) continue;
    const auto facts = look_at_folder(folder);
    if (facts.ok() && !facts->in_memory) return folder;
  }
  return "";
}

}  // namespace headrace
