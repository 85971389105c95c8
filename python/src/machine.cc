#include "headrace/base/safe_file.h"
#include "headrace/base/system.h"
#include "headrace/cost/profiles.h"
#include "headrace/session/quick_probe.h"
#include "python/src/common.h"

namespace headrace::python {
namespace {

constexpr Bytes kMostMachineFile = 16 * kMiB;

// The tier that a plan in a folder takes its rates from.
TierInfo& first_tier(Machine& m) { return m.tiers[1]; }

Machine with_rates(const Machine& m, double load, double store, double latency) {
  Machine out = m;
  first_tier(out).load_bytes_per_s = load;
  first_tier(out).store_bytes_per_s = store;
  first_tier(out).latency_ns = static_cast<Nanos>(latency * 1e9);
  out.name += ", rates of its disk as given";
  check(verify(out));
  return out;
}

}  // namespace

void bind_machine(nb::module_& m) {
  nb::class_<Machine>(m, "Machine", "A computer as the planner sees it: rates, in bytes a second.")
      .def_static(
          "from_profile", [](const std::string& name) { return check(machine_by_name(name)); },
          nb::arg("name"), "A machine that comes with headrace, \"a100-pcie3\" for instance.")
      .def_static("profiles", [] {
            std::vector<std::string> names;
            for (const MachineProfile& p : machine_profiles()) names.push_back(p.name);
            return names;
          }, "The names that from_profile() knows.")
      .def_static("from_file", [](const std::string& path) {
            return check(machine_from_json(check(read_text(path, kMostMachineFile))));
          }, nb::arg("path"), "A machine file, as `headrace probe` writes them.")
      .def_static("probe", [](const std::optional<std::string>& folder, int threads) {
            return quick_machine(folder.value_or(scratch_folder()),
                                 threads > 0 ? threads : default_threads());
          }, nb::arg("folder") = nb::none(), nb::arg("threads") = 0, Unlocked(),
          "This machine, with the disk of `folder`: measured in at most half a second, once for "
          "each filesystem, and kept under $XDG_CACHE_HOME/headrace. threads 0: all processors.")
      .def("with_disk", with_rates, nb::arg("load_bytes_per_s"), nb::arg("store_bytes_per_s"),
           nb::arg("latency_seconds") = 0.0001, "The same machine with another disk.")
      .def_ro("name", &Machine::name)
      .def_ro("threads", &Machine::threads)
      .def_prop_ro("load_bytes_per_s",
                   [](Machine& m) { return first_tier(m).load_bytes_per_s; }, "Of its disk.")
      .def_prop_ro("store_bytes_per_s",
                   [](Machine& m) { return first_tier(m).store_bytes_per_s; }, "Of its disk.")
      .def("text", [](const Machine& m) { return to_json(m); }, "The machine file, JSON.")
      .def("__repr__", [](Machine& m) {
        const TierInfo& t = first_tier(m);
        return text_of("<headrace.Machine %s: %s reads %s/s, writes %s/s>", m.name.c_str(),
                       t.name.c_str(), human_bytes(static_cast<Bytes>(t.load_bytes_per_s)).c_str(),
                       human_bytes(static_cast<Bytes>(t.store_bytes_per_s)).c_str());
      });
}

}  // namespace headrace::python
