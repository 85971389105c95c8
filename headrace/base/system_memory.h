// What the system says about memory: of this process (/proc/self/status), of the machine
// (/proc/meminfo) and of the control groups the process is in (cgroup v1 and v2).
#pragma once

#include <string>

#include "headrace/base/status.h"
#include "headrace/base/types.h"

namespace headrace {

struct ProcessMemory {
  Bytes rss = 0;        // VmRSS: resident now
  Bytes peak_rss = 0;   // VmHWM: the most it has been
  Bytes anonymous = 0;  // RssAnon
  Bytes shared = 0;     // RssShmem
  Bytes swapped = 0;    // VmSwap
  Bytes page_tables = 0; // VmPTE
};
ProcessMemory process_memory();
// peak_rss counts from now on. kIo when the system refuses (/proc/self/clear_refs).
Status reset_peak_memory();
// From now on the allocator maps blocks of 64 KiB and more one by one, gives them back as soon as
// they are freed, and keeps at most 64 KiB at the end of its heap: what the process holds is then
// what it uses. The price is a page fault for each page of a new block (mallopt(3)).
void tune_malloc();

// Bytes that the process may still take before a limit stops it.
struct MemoryRoom {
  Bytes available = 0;     // the smallest of the limits below
  Bytes mem_available = 0; // MemAvailable of the machine; -1: it does not say
  Bytes cgroup_left = -1;  // of the tightest control group on the way up; -1: no limit
  std::string limited_by;  // "MemAvailable" or the control group's path
  Bytes cgroup_limit = -1; // the smallest limit on the way up; -1: none
};
// `root` is prefixed to every path that is read, so that tests can lay out a tree. Page cache that
// a control group could drop counts as free. The limit of a v2 group is the lower of memory.max and
// memory.high: beyond it nobody is killed, but without swap hardly anything moves. kIo when neither
// /proc/meminfo nor a group says anything.
Result<MemoryRoom> memory_room(const std::string& root = "");

// kDoesNotFit, with both numbers, where a process that will hold `bytes` is beyond that limit.
Status check_group_limit(Bytes bytes, const MemoryRoom& room);

// "512MiB", "2GB", "1.5GiB", "800M" (= MiB), "4096" (bytes), "60%" (of `whole`). kUsage, naming the
// text, for anything else, zero and negative sizes included.
Result<Bytes> parse_size(const std::string& text, Bytes whole);

}  // namespace headrace
