// headrace offsets: static allocation as a tool of its own.
#include <algorithm>
#include <map>

#include "headrace/model/tokenizer_stream.h"
#include "headrace/plan/allocation.h"
#include "headrace/report/json_writer.h"
#include "tools/commands.h"
#include "tools/console.h"
#include "tools/options.h"

namespace headrace::cli {
namespace {

struct OffsetsOptions {
  std::string problem;
  std::string output;
  Bytes capacity = -1;
  Bytes alignment = 1;
  int64_t nodes = 20'000'000;
  bool json = false;
};

struct Work {
  AllocProblem problem;
  std::vector<std::string> ids;
  AllocSolution solution;
  Bytes load = 0;
};

long long ll(int64_t n) { return static_cast<long long>(n); }

std::string gap_of(const AllocSolution& s) {
  if (s.height <= s.lower_bound) return "none: proven optimal";
  return text_of("%.3f %%", 100.0 * static_cast<double>(s.height - s.lower_bound) /
                                static_cast<double>(std::max<Bytes>(1, s.lower_bound)));
}

std::string as_text(const Work& w, const OffsetsOptions& o) {
  std::string out;
  const auto row = [&](const char* name, const std::string& value) {
    out += "  " + pad_right(name, 14) + value + "\n";
  };
  out += text_of("%zu buffers\n", w.problem.buffers.size());
  row("height", text_of("%lld bytes", ll(w.solution.height)));
  row("lower bound", text_of("%lld bytes", ll(w.solution.lower_bound)));
  row("gap", gap_of(w.solution));
  row("method", w.solution.method);
  if (w.solution.nodes > 0) row("search nodes", text_of("%lld", ll(w.solution.nodes)));
  if (o.capacity >= 0) row("capacity", text_of("%lld bytes", ll(o.capacity)));
  if (!o.output.empty() && w.solution.fits) row("written", o.output);
  return out;
}

std::string as_json(const Work& w, const OffsetsOptions& o) {
  JsonWriter json;
  json.begin_object();
  json.field("problem", o.problem);
  json.field("buffers", static_cast<int64_t>(w.problem.buffers.size()));
  json.field("alignment", o.alignment);
  json.key("capacity");
  if (o.capacity >= 0) json.value(o.capacity);
  if (o.capacity < 0) json.null();
  json.field("fits", w.solution.fits).field("height", w.solution.height);
  json.field("load", w.load).field("lower_bound", w.solution.lower_bound);
  json.field("optimal", w.solution.height <= w.solution.lower_bound);
  json.field("method", w.solution.method).field("search_nodes", w.solution.nodes);
  json.key("worst_time");
  if (w.solution.fits) json.null();
  if (!w.solution.fits) json.value(static_cast<int64_t>(w.solution.worst_time));
  json.end_object();
  return json.take();
}

// A time at which the most bytes are alive.
int32_t fullest_time(const AllocProblem& p) {
  std::map<int32_t, Bytes> change;
  for (const AllocBuffer& b : p.buffers) {
    change[b.lower] += b.size;
    change[b.upper] -= b.size;
  }
  Bytes load = 0, most = -1;
  int32_t fullest = 0;
  for (const auto& [time, by] : change) {
    load += by;
    if (load <= most) continue;
    most = load;
    fullest = time;
  }
  return fullest;
}

// By how much, when, and the largest buffers of that time.
Status does_not_fit(const Work& w, const OffsetsOptions& o) {
  const bool impossible = w.solution.lower_bound > o.capacity;
  const int32_t when = w.load > o.capacity ? fullest_time(w.problem) : w.solution.worst_time;
  std::vector<size_t> alive;
  Bytes bytes = 0;
  for (size_t i = 0; i < w.problem.buffers.size(); ++i) {
    const AllocBuffer& b = w.problem.buffers[i];
    if (b.lower > when || when >= b.upper) continue;
    alive.push_back(i);
    bytes += b.size;
  }
  std::stable_sort(alive.begin(), alive.end(), [&](size_t a, size_t b) {
    return w.problem.buffers[a].size > w.problem.buffers[b].size;
  });
  std::string text =
      impossible
          ? text_of("%s does not fit %lld bytes: at least %lld are needed, %lld more",
                    o.problem.c_str(), ll(o.capacity), ll(w.solution.lower_bound),
                    ll(w.solution.lower_bound - o.capacity))
          : text_of("%s does not fit %lld bytes: the best packing found needs %lld, %lld more (no "
                    "packing needs fewer than %lld)",
                    o.problem.c_str(), ll(o.capacity), ll(w.solution.height),
                    ll(w.solution.height - o.capacity), ll(w.solution.lower_bound));
  text += text_of("\nat time %d %zu buffers of %lld bytes are alive; the largest:\n", when,
                  alive.size(), ll(bytes));
  for (size_t k = 0; k < std::min<size_t>(5, alive.size()); ++k) {
    const AllocBuffer& b = w.problem.buffers[alive[k]];
    text += text_of("  %s: %lld bytes, alive in [%d, %d)\n",
                    valid_utf8(w.ids[alive[k]]).c_str(), ll(b.size), b.lower, b.upper);
  }
  return Status(Code::kDoesNotFit, text);
}

Status offsets(const OffsetsOptions& o) {
  stop_flag();
  if (!o.output.empty()) HR_TRY(check_writable(o.output));
  HR_ASSIGN(const std::string text, read_file(o.problem));
  Work w;
  Result<AllocProblem> parsed = parse_alloc_csv(text, &w.ids);
  if (!parsed.ok()) return parsed.status().within(o.problem);
  w.problem = std::move(*parsed);
  w.problem.alignment = o.alignment;
  AllocOptions options;
  options.capacity = o.capacity;
  options.search_nodes = o.nodes;
  options.greedy_work = 4'000'000'000;
  Result<AllocSolution> solved = allocate(w.problem, options);
  if (!solved.ok()) return solved.status().within(o.problem);
  w.solution = std::move(*solved);
  w.load = max_load(w.problem);
  const Status valid = validate(w.problem, w.solution.offsets, w.solution.height);
  HR_CHECK(valid.ok(), valid.message().c_str());
  if (o.json) HR_TRY(print_output(as_json(w, o)));
  if (!w.solution.fits) return does_not_fit(w, o);
  if (!o.output.empty()) {
    HR_TRY(write_file(o.output, to_csv(w.problem, w.ids, w.solution.offsets)));
  }
  return o.json ? Status() : print_output(as_text(w, o));
}

}  // namespace

void add_offsets(CLI::App& app, Action* action) {
  auto o = std::make_shared<OffsetsOptions>();
  CLI::App* verb = app.add_subcommand(
      "offsets", "Give buffers of known size and lifetime their places in one arena");
  verb->add_option("problem", o->problem, "CSV: id,lower,upper,size; alive in [lower, upper)")
      ->required();
  verb->add_option("--capacity", o->capacity,
                   "Bytes of the arena; without it, as few as can be found")
      ->check(CLI::Range(int64_t{0}, INT64_MAX));
  verb->add_option("-o,--output", o->output, "CSV to write: id,lower,upper,size,offset");
  verb->add_option("--alignment", o->alignment, "Of every offset, in bytes")
      ->check(CLI::Range(int64_t{1}, INT64_MAX));
  verb->add_option("--nodes", o->nodes, "Most nodes of exact search; 0: heuristics alone")
      ->check(CLI::Range(int64_t{0}, INT64_MAX));
  verb->add_flag("--json", o->json, "As JSON");
  verb->callback([o, action] { *action = [o] { return offsets(*o); }; });
}

}  // namespace headrace::cli
