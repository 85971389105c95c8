#include "headrace/tier/spill.h"

#include "headrace/base/system.h"
#include "python/src/common.h"

namespace headrace::python {
namespace {

// Hooks of autograd may come from several threads.
struct SharedSpill {
  std::unique_ptr<Spill> spill;
  OwnersLock lock;
  ~SharedSpill() {
    if (!lock.mine()) (void)spill.release();
  }
};

std::unique_ptr<SharedSpill> open(const std::optional<std::string>& folder) {
  auto out = std::make_unique<SharedSpill>();
  const std::string where = folder.value_or(scratch_folder());
  if (where.empty())
    throw Raised{error(Code::kUsage, "no folder on a disk for the scratch file: name one"),
                 nullptr};
  out->spill = check(Spill::open(where));
  return out;
}

}  // namespace

void bind_spill(nb::module_& m) {
  using std::lock_guard;
  nb::class_<SharedSpill>(m, "Spill",
                          "Buffers put aside in scratch files that have no name, one by one. Holds "
                          "8 MiB of memory at most. Thread-safe.")
      .def(nb::new_(&open), nb::arg("folder") = nb::none())
      .def("put", [](SharedSpill& s, uint64_t address, int64_t bytes) {
             const lock_guard lock(s.lock);
             return check(s.spill->put(memory_at(address, bytes)));
           }, nb::arg("address"), nb::arg("bytes"), Unlocked(),
           "Copies the bytes to the disk; returns the buffer's number.")
      .def("get", [](SharedSpill& s, int64_t id, uint64_t address, int64_t bytes) {
             const lock_guard lock(s.lock);
             check(s.spill->get(id, memory_at(address, bytes)));
           }, nb::arg("id"), nb::arg("address"), nb::arg("bytes"), Unlocked(),
           "Copies the first `bytes` of a buffer to `address`.")
      .def("drop", [](SharedSpill& s, int64_t id) {
             if (!s.lock.mine()) return;  // who frees memory in a fork may not be bothered
             const lock_guard lock(s.lock);
             check(s.spill->drop(id));
           }, nb::arg("id"), "Its room may be used again. Nothing in a fork of the process.")
      .def_prop_ro("held_bytes", [](SharedSpill& s) {
             const lock_guard lock(s.lock);
             return s.spill->held_bytes();
           }, "Of the buffers that are there, in whole pages.")
      .def_prop_ro("bytes_on_disk", [](SharedSpill& s) {
             const lock_guard lock(s.lock);
             return s.spill->bytes_on_disk();
           }, "Of the scratch files.");
}

}  // namespace headrace::python
