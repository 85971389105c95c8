// headrace doctor: what a PyTorch memory snapshot says, and what a plan would have needed.
#include "headrace/cost/profiles.h"
#include "headrace/model/workload.h"
#include "headrace/snapshot/doctor.h"
#include "tools/commands.h"
#include "tools/console.h"
#include "tools/options.h"
#include "tools/step_input.h"

namespace headrace::cli {
namespace {

struct DoctorOptions {
  std::string input;
  std::string machine = "a100-pcie3";
  double slowdown = 3;  // %
  bool no_plan = false;
  std::string output;
  bool json = false;
};

Status write_first_replay(const MemorySnapshot& snapshot, const Diagnosis& diagnosis,
                          const std::string& path) {
  for (const DeviceReport& d : diagnosis.devices) {
    const auto replay = replay_workload(snapshot, d.device);
    if (replay.ok()) return write_file(path, to_workload_json(*replay));
  }
  return {};
}

Status doctor(const DoctorOptions& o) {
  const Console console = look_at_console();
  stop_flag();
  if (!o.output.empty()) HR_TRY(check_writable(o.output));
  HR_ASSIGN(const std::string bytes, read_file(o.input));
  if (!looks_like_pickle(bytes)) {
    return error(Code::kBadFile,
                 "%s is no pickle: write it with torch.cuda.memory._dump_snapshot(\"FILE\")",
                 o.input.c_str());
  }
  const auto snapshot = parse_snapshot(bytes);
  if (!snapshot.ok()) return snapshot.status().within(o.input);
  HR_ASSIGN(const Diagnosis diagnosis, diagnose(*snapshot));
  std::vector<ReplayAnswer> answers;
  HR_ASSIGN(const Machine machine, read_step_machine(o.machine));
  ProgressLine progress(console);
  progress.restart();
  int64_t plans = 0;
  if (!o.output.empty()) HR_TRY(write_first_replay(*snapshot, diagnosis, o.output));
  if (!o.no_plan) {
    auto found = replay_devices(*snapshot, diagnosis, machine, o.slowdown / 100, [&] {
      progress.update("plans", plans++, 12, "plans/s");
      return !stop_flag()->load();
    });
    progress.clear();
    HR_ASSIGN(answers, std::move(found));
  }
  return print_output(o.json ? diagnosis_json(diagnosis, answers)
                             : diagnosis_text(diagnosis, answers, console.output_style));
}

}  // namespace

void add_doctor(CLI::App& app, Action* action) {
  auto o = std::make_shared<DoctorOptions>();
  CLI::App* verb = app.add_subcommand(
      "doctor", "Why a PyTorch run needed its memory, from a memory snapshot, and what would help");
  verb->add_option("snapshot", o->input, "File of torch.cuda.memory._dump_snapshot()")->required();
  verb->add_option("--machine", o->machine, "Machine file or profile to plan the trace for")
      ->capture_default_str();
  verb->add_option("--slowdown", o->slowdown, "Percent that a plan may be slower")
      ->check(number_between(0, 1000))
      ->capture_default_str();
  verb->add_flag("--no-plan", o->no_plan, "Do not plan the trace");
  verb->add_option("-o,--output", o->output, "Write the trace as a workload, for headrace plan");
  verb->add_flag("--json", o->json, "As JSON");
  verb->callback([o, action] { *action = [o] { return doctor(*o); }; });
}

}  // namespace headrace::cli
