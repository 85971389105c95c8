#include <pthread.h>

#include <cstring>

#include "headrace/base/system.h"
#include "headrace/base/system_memory.h"
#include "headrace/tier/small_thread.h"
#include "python/src/common.h"

namespace headrace::python {
namespace {

// One thread copies 13 GB/s here and two 19; starting one takes about 20 us.
constexpr int64_t kTwoThreads = 4 * kMiB;

struct Half {
  void* to;
  const void* from;
  size_t bytes;
};
void* copy_half(void* half) {
  const Half& h = *static_cast<Half*>(half);
  std::memcpy(h.to, h.from, h.bytes);
  return nullptr;
}

void copy(uint64_t to_address, uint64_t from_address, int64_t bytes) {
  const std::span<std::byte> to = memory_at(to_address, bytes);
  const std::span<std::byte> from = memory_at(from_address, bytes);
  const size_t first = bytes < kTwoThreads ? to.size() : to.size() / 2 / kPage * kPage;
  Half rest{to.data() + first, from.data() + first, to.size() - first};
  pthread_t thread;
  const bool two = rest.bytes > 0 && start_small_thread(copy_half, &rest, &thread) == 0;
  if (first > 0) std::memcpy(to.data(), from.data(), first);
  if (two) {
    pthread_join(thread, nullptr);
  } else if (rest.bytes > 0) {
    copy_half(&rest);
  }
}

}  // namespace

void bind_process(nb::module_& m) {
  nb::class_<ProcessMemory>(m, "ProcessMemory",
                            "What the system says this process holds, in bytes.")
      .def_ro("rss", &ProcessMemory::rss, "Resident now (VmRSS).")
      .def_ro("peak", &ProcessMemory::peak_rss, "The most it has been (VmHWM).")
      .def_ro("anonymous", &ProcessMemory::anonymous, "Of rss, what is no file's (RssAnon).")
      .def_ro("swapped", &ProcessMemory::swapped)
      .def("__repr__", [](const ProcessMemory& p) {
        return text_of("<headrace.ProcessMemory rss %s, peak %s>", human_bytes(p.rss).c_str(),
                       human_bytes(p.peak_rss).c_str());
      });
  m.def("process_memory", process_memory);
  m.def("reset_peak", [] { check(reset_peak_memory()); },
        "The peak of process_memory() counts from now on.");
  m.def("tune_malloc", tune_malloc,
        "From now on the allocator gives freed blocks of 64 KiB and more back to the system at "
        "once.");
  m.def("copy_in", copy, nb::arg("to"), nb::arg("source"), nb::arg("bytes"), Unlocked(),
        "Copies bytes between two addresses that do not overlap; from 4 MiB on with two threads.");
  m.def("scratch_folder", scratch_folder,
        "Where scratch files go when nobody says: $TMPDIR, /var/tmp or the current folder, the "
        "first that is on a disk and can be written to; empty: none.");
  m.def("default_threads", default_threads, "Processors that this process may use.");
  m.def("free_on_disk", [](const std::string& folder) { return check(free_on_disk(folder)); },
        nb::arg("folder"), "Bytes that may still be written there.");
  m.def("human_bytes", human_bytes, nb::arg("bytes"), "\"1.50 GiB\", \"812 B\": as in the tables.");
  m.def("parse_size", [](const std::string& text, int64_t whole) {
          return check(parse_size(text, whole));
        }, nb::arg("text"), nb::arg("whole") = 0, "\"1.5GiB\", \"60%\" (of `whole`): bytes.");
}

}  // namespace headrace::python
