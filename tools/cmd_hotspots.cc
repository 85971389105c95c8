// headrace hotspots: what holds the peak, what the stalls wait for, what would help.
#include "headrace/report/hotspots.h"

#include "tools/commands.h"
#include "tools/console.h"
#include "tools/step_input.h"

namespace headrace::cli {
namespace {

struct HotspotsOptions {
  std::string input;
  int limit = 10;
  bool json = false;
};

Status hotspots(const HotspotsOptions& o) {
  const Console console = look_at_console();
  stop_flag();
  HR_ASSIGN(const Played played, read_played(o.input));
  const Hotspots h = find_hotspots(make_timeline(*played.program, played.trace));
  const auto limit = static_cast<size_t>(o.limit);
  return print_output(o.json ? hotspots_json(h, limit)
                             : hotspots_text(h, limit, console.output_style));
}

}  // namespace

void add_hotspots(CLI::App& app, Action* action) {
  auto o = std::make_shared<HotspotsOptions>();
  CLI::App* verb = app.add_subcommand(
      "hotspots", "Rank what holds the peak of memory and what the stalls wait for");
  verb->add_option("input", o->input, "Program (it is simulated) or Trace")->required();
  verb->add_option("--limit", o->limit, "Rows of each list")
      ->check(CLI::Range(1, 1 << 30))
      ->capture_default_str();
  verb->add_flag("--json", o->json, "As JSON");
  verb->callback([o, action] { *action = [o] { return hotspots(*o); }; });
}

}  // namespace headrace::cli
