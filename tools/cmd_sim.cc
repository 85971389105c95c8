// headrace sim: plays a Program on a machine.
#include <algorithm>

#include "headrace/report/json_writer.h"
#include "headrace/report/timeline.h"
#include "headrace/sim/simulate.h"
#include "tools/commands.h"
#include "tools/console.h"
#include "tools/options.h"
#include "tools/step_input.h"

namespace headrace::cli {
namespace {

struct SimVerbOptions {
  std::string program;
  std::string machine;
  double noise = 0;
  uint64_t seed = 1;
  int64_t repeats = 1;
  std::string output;
  bool json = false;
};

// The Program's tiers with the rates that `machine` gives for tiers of the same names; its own
// capacities, which its extents rely on, stay.
Result<std::vector<TierInfo>> tiers_on(const Program& program, const Machine& machine) {
  std::vector<TierInfo> tiers = program.tiers;
  for (size_t i = 1; i < tiers.size(); ++i) {
    const auto same = [&](const TierInfo& t) { return t.name == tiers[i].name; };
    const auto it = std::find_if(machine.tiers.begin(), machine.tiers.end(), same);
    if (it == machine.tiers.end()) {
      return error(Code::kUsage, "--machine: '%s' has no tier '%s', which the Program uses",
                   machine.name.c_str(), tiers[i].name.c_str());
    }
    const Bytes capacity = tiers[i].capacity;
    if (it->duplex != tiers[i].duplex) {
      return error(Code::kUsage,
                   "--machine: the link of '%s' is %s there and %s in the Program; plan it anew",
                   it->name.c_str(), it->duplex ? "duplex" : "shared",
                   tiers[i].duplex ? "duplex" : "shared");
    }
    const int32_t group = tiers[i].group;
    tiers[i] = *it;
    tiers[i].capacity = capacity;
    tiers[i].group = group;  // streams are those that it was planned with
  }
  return tiers;
}

struct Runs {
  Trace first;
  Nanos least = 0, most = 0, sum = 0;
};

Runs play(const Program& program, const SimVerbOptions& o, SimOptions options) {
  Runs runs;
  for (int64_t i = 0; i < o.repeats; ++i) {
    options.seed = o.seed + static_cast<uint64_t>(i);
    Trace trace = simulate(program, options);
    runs.least = i == 0 ? trace.total_ns : std::min(runs.least, trace.total_ns);
    runs.most = std::max(runs.most, trace.total_ns);
    runs.sum += trace.total_ns;
    if (i == 0) runs.first = std::move(trace);
  }
  return runs;
}

std::string percent_of(Nanos part, Nanos whole) {
  if (whole <= 0) return "-";
  return text_of("%.1f %%", 100 * static_cast<double>(part) / static_cast<double>(whole));
}

std::string fact(const char* label, const std::string& text, const TextStyle& style) {
  return "  " + dim(pad_right(label, 26), style) + text + "\n";
}

std::string as_text(const Timeline& t, const Runs& runs, const SimVerbOptions& o, Nanos planned,
                    const TextStyle& style) {
  const Program& p = *t.program;
  std::string out = bold(terminal_text(p.name), style) + "\n";
  out += fact("step", human_time(t.total_ns) + (p.cyclic ? ", repeating" : ""), style);
  if (planned != t.total_ns) out += fact("as planned", human_time(planned), style);
  out += fact("compute", human_time(t.compute_ns) + ", " + percent_of(t.compute_ns, t.total_ns) +
                             (t.again_ns > 0 ? ", of it again " + human_time(t.again_ns) : ""),
              style);
  out += fact("stalls", human_time(t.stall_ns) + ", " + percent_of(t.stall_ns, t.total_ns), style);
  for (const TimelineTier& tier : t.tiers) {
    if (tier.peak == 0) continue;
    std::string text = human_bytes(tier.peak) + " at the peak";
    if (tier.capacity > 0) text += " of " + human_bytes(tier.capacity);
    out += fact(terminal_text(tier.name).c_str(), text, style);
  }
  for (const TimelineLane& lane : t.lanes) {
    if (lane.stream == kComputeStream) continue;
    out += fact(terminal_text(lane.name).c_str(),
                human_bytes(lane.bytes) + ", busy " + percent_of(lane.busy_ns, t.total_ns), style);
  }
  if (o.repeats > 1) {
    out += fact("runs", text_of("%s, %s to %s, mean %s", grouped(o.repeats).c_str(),
                                human_time(runs.least).c_str(), human_time(runs.most).c_str(),
                                human_time(runs.sum / o.repeats).c_str()),
                style);
  }
  return out;
}

std::string as_json(const Timeline& t, const Runs& runs, const SimVerbOptions& o, Nanos planned) {
  const auto s = [](Nanos ns) { return static_cast<double>(ns) / 1e9; };
  JsonWriter json;
  json.begin_object().field("program", t.program->name).field("cyclic", t.program->cyclic);
  json.field("total_s", s(t.total_ns)).field("planned_s", s(planned));
  json.field("compute_s", s(t.compute_ns)).field("again_s", s(t.again_ns));
  json.field("stall_s", s(t.stall_ns)).field("loaded_bytes", t.loaded_bytes);
  json.field("gathered_bytes", t.gathered_bytes).field("stored_bytes", t.stored_bytes);
  json.key("tiers").begin_array();
  for (const TimelineTier& tier : t.tiers) {
    json.begin_object().field("name", tier.name).field("peak_bytes", tier.peak);
    json.field("capacity_bytes", tier.capacity).end_object();
  }
  json.end_array().key("links").begin_array();
  for (const TimelineLane& lane : t.lanes) {
    if (lane.stream == kComputeStream) continue;
    json.begin_object().field("name", lane.name).field("bytes", lane.bytes);
    json.field("busy_s", s(lane.busy_ns)).end_object();
  }
  json.end_array();
  json.field("noise", o.noise).field("seed", static_cast<int64_t>(o.seed));
  json.field("runs", o.repeats).field("least_s", s(runs.least)).field("most_s", s(runs.most));
  json.field("mean_s", s(runs.sum) / static_cast<double>(o.repeats));
  json.end_object();
  return json.take();
}

Status sim(const SimVerbOptions& o) {
  const Console console = look_at_console();
  stop_flag();
  if (!o.output.empty()) HR_TRY(check_writable(o.output));
  HR_ASSIGN(const Program program, read_program(o.program));
  SimOptions options;
  options.noise = o.noise;
  if (!o.machine.empty()) {
    HR_ASSIGN(const Machine machine, read_step_machine(o.machine));
    HR_ASSIGN(options.tiers, tiers_on(program, machine));
  }
  const Runs runs = play(program, o, options);
  const bool changed = o.noise > 0 || !o.machine.empty();
  const Nanos planned = changed ? simulate(program).total_ns : runs.first.total_ns;
  if (!o.output.empty()) {
    HR_TRY(write_file(o.output, to_chrome_json(program, runs.first)));
    notice("trace written to %s", o.output.c_str());
  }
  const Timeline t = make_timeline(program, runs.first);
  return print_output(o.json ? as_json(t, runs, o, planned)
                             : as_text(t, runs, o, planned, console.output_style));
}

}  // namespace

void add_sim(CLI::App& app, Action* action) {
  auto o = std::make_shared<SimVerbOptions>();
  CLI::App* verb = app.add_subcommand("sim", "Play a Program on a described machine");
  verb->add_option("program", o->program, "Program, as `headrace plan -o` writes it")->required();
  verb->add_option("--machine", o->machine,
                   "Machine file or name of a profile, for the rates of links (default: those it "
                   "was planned for)");
  verb->add_option("--noise", o->noise, "Spread of compute times: 0.25 is 25 % either way")
      ->check(number_between(0, 0.999))
      ->capture_default_str();
  verb->add_option("--seed", o->seed, "Of the noise")->capture_default_str();
  verb->add_option("--runs", o->repeats, "Runs, each with the next seed")
      ->check(CLI::Range(int64_t{1}, int64_t{100000}))
      ->capture_default_str();
  verb->add_option("-o,--output", o->output, "Trace of the first run, for Perfetto and `timeline`");
  verb->add_flag("--json", o->json, "As JSON");
  verb->callback([o, action] { *action = [o] { return sim(*o); }; });
}

}  // namespace headrace::cli
