// headrace timeline: a run as a picture.
#include "headrace/report/timeline.h"

#include "headrace/snapshot/program_snapshot.h"
#include "tools/commands.h"
#include "tools/console.h"
#include "tools/options.h"
#include "tools/step_input.h"

namespace headrace::cli {
namespace {

struct TimelineOptions {
  std::string input;
  std::string output;
};

Status timeline(const TimelineOptions& o) {
  stop_flag();
  HR_TRY(check_writable(o.output));
  HR_ASSIGN(const Played played, read_played(o.input));
  const Timeline t = make_timeline(*played.program, played.trace);
  const bool pickle = o.output.ends_with(".pickle");
  const std::string page = pickle ? to_pickle(snapshot_of(t)) : timeline_html(t);
  HR_TRY(write_file(o.output, page));
  notice("%s: %s events, %s, written to %s", played.simulated ? "simulated" : "recorded",
         grouped(static_cast<int64_t>(t.events.size())).c_str(),
         human_bytes(static_cast<Bytes>(page.size())).c_str(), o.output.c_str());
  return {};
}

}  // namespace

void add_timeline(CLI::App& app, Action* action) {
  auto o = std::make_shared<TimelineOptions>();
  CLI::App* verb = app.add_subcommand(
      "timeline", "Draw a run: every tier's bytes, the streams, the stalls");
  verb->add_option("input", o->input, "Program (it is simulated) or Trace")->required();
  verb->add_option("-o,--output", o->output,
                   "HTML file to write, it needs no network; or .pickle, a memory snapshot for "
                   "PyTorch's viewer")
      ->required();
  verb->callback([o, action] { *action = [o] { return timeline(*o); }; });
}

}  // namespace headrace::cli
