#include "headrace/snapshot/doctor.h"

#include "headrace/base/safe_file.h"
#include "headrace/cost/profiles.h"
#include "python/src/common.h"

namespace headrace::python {
namespace {

constexpr Bytes kMostSnapshot = 4 * kGiB;

std::string doctor(const std::string& path, const Machine* machine, double slowdown, bool plan,
                   bool json, bool color) {
  const std::string bytes = check(read_text(path, kMostSnapshot));
  if (!looks_like_pickle(bytes)) {
    throw Raised{error(Code::kBadFile, "%s is no pickle: write it with "
                       "torch.cuda.memory._dump_snapshot(\"FILE\")", path.c_str()), nullptr};
  }
  const auto snapshot = parse_snapshot(bytes);
  check(snapshot.status().within(path));
  const Diagnosis diagnosis = check(diagnose(*snapshot));
  std::vector<ReplayAnswer> answers;
  if (plan) {
    const auto go_on = [] {  // Ctrl-C between two plans
      const nb::gil_scoped_acquire locked;
      return PyErr_CheckSignals() == 0;
    };
    const Machine where = machine != nullptr ? *machine : check(machine_by_name("a100-pcie3"));
    auto found = replay_devices(*snapshot, diagnosis, where, slowdown, go_on);
    if (!found.ok() && found.status().code() == Code::kCancelled) {
      const nb::gil_scoped_acquire locked;
      throw nb::python_error();
    }
    answers = check(std::move(found));
  }
  return json ? diagnosis_json(diagnosis, answers)
              : diagnosis_text(diagnosis, answers, {false, color});
}

}  // namespace

void bind_doctor(nb::module_& m) {
  m.def("doctor", doctor, nb::arg("path"), nb::kw_only(), nb::arg("machine").none() = nb::none(),
        nb::arg("slowdown") = 0.03, nb::arg("plan") = true, nb::arg("json") = false,
        nb::arg("color") = false, Unlocked(),
        "What a PyTorch memory snapshot says, and with `plan` what a plan on `machine` "
        "(a100-pcie3) would have needed at most `slowdown` slower (0.03: 3 %). Nothing in the "
        "file is executed.");
}

}  // namespace headrace::python
