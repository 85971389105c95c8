#include "headrace/base/system_memory.h"

#include <fcntl.h>
#include <malloc.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <sstream>

namespace headrace {
namespace {

// "Key:   123 kB" lines as bytes.
std::map<std::string, Bytes> kilobyte_lines(const std::string& path) {
  std::map<std::string, Bytes> out;
  std::ifstream in(path);
  for (std::string line; std::getline(in, line);) {
    const size_t colon = line.find(':');
    if (colon == std::string::npos) continue;
    char* end = nullptr;
    const long long n = std::strtoll(line.c_str() + colon + 1, &end, 10);
    if (end != nullptr && std::string(end).find("kB") != std::string::npos) {
      out[line.substr(0, colon)] = n * kKiB;
    }
  }
  return out;
}

// A file holding one number; -1 when absent, "max", or no number.
Bytes number_in(const std::string& path) {
  std::ifstream in(path);
  long long value = -1;
  return in >> value ? value : -1;
}

// Page cache on the inactive list: the group drops it before it kills anybody.
Bytes droppable_cache(const std::string& stat_path, const char* key) {
  std::ifstream in(stat_path);
  std::string word;
  long long value = 0;
  while (in >> word >> value) {
    if (word == key) return value;
  }
  return 0;
}

struct GroupFiles {
  const char* limit;
  const char* soft_limit;  // v1's is a wish: nobody is held up at it
  const char* usage;
  const char* cache_key;
};
constexpr GroupFiles kV1 = {"memory.limit_in_bytes", nullptr, "memory.usage_in_bytes",
                            "total_inactive_file"};
constexpr GroupFiles kV2 = {"memory.max", "memory.high", "memory.current", "inactive_file"};

// -1: none. A limit beyond 2^60 is v1's "none".
Bytes limit_of(const std::string& folder, const GroupFiles& files) {
  Bytes least = -1;
  for (const char* name : {files.limit, files.soft_limit}) {
    const Bytes limit = name != nullptr ? number_in(folder + "/" + name) : -1;
    if (limit < 0 || limit >= (Bytes{1} << 60)) continue;
    least = least < 0 ? limit : std::min(least, limit);
  }
  return least;
}

// The tightest group from `path` up to the mount.
void tighten(const std::string& mount, std::string path, const GroupFiles& files,
             MemoryRoom& room) {
  for (;;) {
    const std::string folder = mount + path;
    const Bytes limit = limit_of(folder, files);
    const Bytes usage = number_in(folder + "/" + files.usage);
    if (limit >= 0 && usage >= 0) {
      room.cgroup_limit = room.cgroup_limit < 0 ? limit : std::min(room.cgroup_limit, limit);
      const Bytes cache = droppable_cache(folder + "/memory.stat", files.cache_key);
      const Bytes left = std::max<Bytes>(0, limit - std::max<Bytes>(0, usage - cache));
      if (room.cgroup_left < 0 || left < room.cgroup_left) {
        room.cgroup_left = left;
        if (room.available < 0 || left < room.available) {
          room.available = left;
          room.limited_by = path.empty() ? "/" : path;
        }
      }
    }
    if (path.empty() || path == "/") return;
    const size_t slash = path.rfind('/');
    path.resize(slash == std::string::npos ? 0 : slash);
  }
}

}  // namespace

ProcessMemory process_memory() {
  auto lines = kilobyte_lines("/proc/self/status");
  return {lines["VmRSS"],    lines["VmHWM"],  lines["RssAnon"],
          lines["RssShmem"], lines["VmSwap"], lines["VmPTE"]};
}

Status reset_peak_memory() {
  const int descriptor = ::open("/proc/self/clear_refs", O_WRONLY | O_CLOEXEC);
  // 5: VmHWM becomes VmRSS (proc(5)).
  const bool reset = descriptor >= 0 && ::write(descriptor, "5", 1) == 1;
  const int reason = errno;
  if (descriptor >= 0) ::close(descriptor);
  if (reset) return {};
  return error(Code::kIo, "cannot reset the peak (/proc/self/clear_refs): %s",
               std::strerror(reason));
}

void tune_malloc() {
  // Setting any of them also ends glibc's habit of raising the threshold with each freed block.
  constexpr int kThreshold = 64 * 1024;
  (void)::mallopt(M_MMAP_THRESHOLD, kThreshold);
  (void)::mallopt(M_TRIM_THRESHOLD, kThreshold);
  (void)::mallopt(M_TOP_PAD, kThreshold);
  (void)::malloc_trim(0);
}

Result<MemoryRoom> memory_room(const std::string& root) {
  auto meminfo = kilobyte_lines(root + "/proc/meminfo");
  MemoryRoom room;
  room.mem_available = room.available = -1;
  if (meminfo.count("MemAvailable")) {
    room.mem_available = room.available = meminfo["MemAvailable"];
    room.limited_by = "MemAvailable";
  }
  std::ifstream in(root + "/proc/self/cgroup");
  for (std::string line; std::getline(in, line);) {
    // "4:memory:/path" (v1) or "0::/path" (v2)
    const size_t first = line.find(':');
    const size_t second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const std::string path = line.substr(second + 1);
    std::istringstream names(controllers);
    bool memory_v1 = false;
    for (std::string name; std::getline(names, name, ',');) memory_v1 |= name == "memory";
    // Inside a container the group's own path may not be visible; its mount then shows the
    // container's limit at the top.
    if (memory_v1) tighten(root + "/sys/fs/cgroup/memory", path, kV1, room);
    if (controllers.empty()) tighten(root + "/sys/fs/cgroup", path, kV2, room);
  }
  if (room.available < 0) {
    return error(Code::kIo, "%s/proc/meminfo: no MemAvailable", root.c_str());
  }
  return room;
}

Status check_group_limit(Bytes bytes, const MemoryRoom& room) {
  if (room.cgroup_limit < 0 || bytes <= room.cgroup_limit) return {};
  return error(Code::kDoesNotFit,
               "the limit of this control group (or container) is %s (%lld bytes), and %s will be "
               "held: the system would end this process or hold it up; give --memory %lldMiB at "
               "most, or auto",
               human_bytes(room.cgroup_limit).c_str(), static_cast<long long>(room.cgroup_limit),
               human_bytes(bytes).c_str(), static_cast<long long>(room.cgroup_limit / kMiB));
}

Result<Bytes> parse_size(const std::string& source, Bytes whole) {
  double value = 0;
  const char* end = source.data() + source.size();
  const auto r = std::from_chars(source.data(), end, value);
  std::string unit(r.ptr, end);
  std::transform(unit.begin(), unit.end(), unit.begin(),
                 [](unsigned char c) { return std::tolower(c); });
  static const std::map<std::string, double> kUnits = {
      {"", 1},          {"b", 1},
      {"k", 1024},      {"kib", 1024},     {"kb", 1e3},
      {"m", 1 << 20},   {"mib", 1 << 20},  {"mb", 1e6},
      {"g", 1 << 30},   {"gib", 1 << 30},  {"gb", 1e9},
      {"t", 1ull << 40}, {"tib", 1ull << 40}, {"tb", 1e12}};
  const auto found = kUnits.find(unit);
  const bool percent = unit == "%";
  if (r.ec != std::errc() || (found == kUnits.end() && !percent)) {
    return error(Code::kUsage,
                 "'%s' is not a size; write it like 512MiB, 2GB, 4096 (bytes), 60%% or auto",
                 source.c_str());
  }
  const double bytes = value * (percent ? static_cast<double>(whole) / 100 : found->second);
  if (!(bytes >= 1)) {
    return error(Code::kUsage, "a memory budget of '%s' holds nothing", source.c_str());
  }
  if (bytes > 9e18) {
    return error(Code::kUsage, "a memory budget of '%s' is beyond 64 bits", source.c_str());
  }
  return static_cast<Bytes>(bytes);
}

}  // namespace headrace
