#include "headrace/report/step_report.h"

#include <algorithm>
#include <map>
#include <set>

#include "headrace/model/tokenizer_stream.h"
#include "headrace/report/timeline.h"

namespace headrace {
namespace {

constexpr int kWidth = 100;
constexpr int kLabel = 20;

std::string shown(const std::string& name) { return terminal_text(valid_utf8(name)); }

std::string percent(double part, double whole, int digits = 1) {
  return whole > 0 ? text_of("%.*f %%", digits, 100 * part / whole) : "-";
}
std::string percent(int64_t part, int64_t whole) {
  return percent(static_cast<double>(part), static_cast<double>(whole));
}

std::string line(const char* label, const std::string& text, const TextStyle& style) {
  const std::string lines = wrapped(text, kWidth, 2 + kLabel);
  return "  " + dim(pad_right(label, kLabel), style) + lines.substr(2 + kLabel);
}

std::string time_lines(const StepPlan& plan, const Timeline& t, const TextStyle& style) {
  const Nanos total = t.total_ns;
  std::string out = "  " + bold(pad_right("step", kLabel) + precise_time(total), style) +
                    (plan.program.cyclic ? ", repeating" : "") + "\n";
  std::string compute = human_time(t.compute_ns) + ", " + percent(t.compute_ns, total);
  if (t.again_ns > 0)
    compute += "; " + human_time(t.again_ns) + " of it are ops that run again";
  out += line("compute", compute, style);
  out += line("stalls", human_time(t.stall_ns) + ", " + percent(t.stall_ns, total), style);
  if (plan.bound.total_ns <= 0) return out;
  std::string bound = precise_time(plan.bound.total_ns) + "; this plan is " +
                      text_of("%.2f %%", 100 * gap_to_bound(plan)) + " above it";
  if (!plan.bound.reason.empty()) bound += " (" + shown(plan.bound.reason) + ")";
  return out + line("no plan is below", bound, style);
}

std::string memory_lines(const StepPlan& plan, const Timeline& t, const TextStyle& style) {
  std::string out = "\n  " + dim(pad_right("memory", kLabel) + pad_left("peak", 12) +
                                     pad_left("room", 12), style) + "\n";
  for (const TimelineTier& tier : t.tiers) {
    if (tier.peak == 0) continue;
    out += "  " + pad_right(shown(tier.name), kLabel) + pad_left(human_bytes(tier.peak), 12) +
           pad_left(tier.capacity > 0 ? human_bytes(tier.capacity) : "-", 12);
    if (tier.capacity > 0) {
      const double part = static_cast<double>(tier.peak) / static_cast<double>(tier.capacity);
      out += "  " + bar(part, 20, style) + " " + percent(part, 1.0, 1);
    }
    out += "\n";
    std::string classes;
    for (int c = 0; c < kMemoryClassCount; ++c) {
      const Bytes bytes = tier.at_peak[static_cast<size_t>(c)];
      if (bytes == 0) continue;
      classes += (classes.empty() ? "" : ", ") + std::string(memory_class_name(c)) + " " +
                 human_bytes(bytes);
    }
    out += dim(wrapped(classes, kWidth, 4), style);
  }
  if (plan.unconstrained_peak_bytes > 0) {
    out += line("everything kept", human_bytes(plan.unconstrained_peak_bytes) + " at the peak",
                style);
  }
  return out;
}

// Choices summed up by way, tier and codec.
struct WaySum {
  std::string what;
  std::set<int32_t> tensors;
  int64_t gaps = 0;
  Bytes freed = 0;
  Nanos added = 0;
};

std::string way_text(const Program& p, const Choice& c) {
  const std::string tier = c.tier.valid() ? shown(p.tiers[c.tier.index()].name) : "?";
  switch (c.way) {
    case Way::kKeep: return "kept";
    case Way::kMove: return c.tier.valid() ? "moved to " + tier : "given up";
    case Way::kRecompute: return "computed again";
    case Way::kCompress: return std::string("compressed (") + name_of(c.codec) + ")";
    case Way::kMoveCompressed: return "moved to " + tier + " (" + name_of(c.codec) + ")";
  }
  return "";
}

std::vector<WaySum> ways(const StepPlan& plan) {
  std::map<std::tuple<int, int, int>, WaySum> sums;
  for (const Choice& c : plan.choices) {
    WaySum& sum = sums[{static_cast<int>(c.way), c.tier.value, static_cast<int>(c.codec)}];
    sum.what = way_text(plan.program, c);
    sum.tensors.insert(c.tensor.value);
    ++sum.gaps;
    sum.freed += c.freed_bytes;
    sum.added += c.added_ns;
  }
  std::vector<WaySum> out;
  for (auto& [key, sum] : sums) out.push_back(std::move(sum));
  return out;
}

std::string way_lines(const StepPlan& plan, const TextStyle& style) {
  const std::vector<WaySum> sums = ways(plan);
  if (sums.empty()) return "\n  everything stays on the device\n";
  std::string out = "\n  " + dim(pad_right("idle gaps", kLabel + 8) + pad_left("gaps", 8) +
                                     pad_left("tensors", 10) + pad_left("bytes freed", 14) +
                                     pad_left("time added", 13), style) + "\n";
  for (const WaySum& s : sums) {
    out += "  " + pad_right(s.what, kLabel + 8) + pad_left(grouped(s.gaps), 8) +
           pad_left(grouped(static_cast<int64_t>(s.tensors.size())), 10) +
           pad_left(human_bytes(s.freed), 14) +
           pad_left(s.added > 0 ? human_time(s.added) : "none", 13) + "\n";
  }
  return out;
}

std::string link_lines(const Timeline& t, const TextStyle& style) {
  std::string out;
  for (const TimelineLane& lane : t.lanes) {
    if (lane.stream == kComputeStream) continue;
    out += "  " + pad_right(shown(lane.name), kLabel + 8) + pad_left(grouped(lane.events), 8) +
           pad_left(human_bytes(lane.bytes), 24) +
           pad_left(percent(lane.busy_ns, t.total_ns), 13) + "\n";
  }
  if (out.empty()) return out;
  return "\n  " + dim(pad_right("links", kLabel + 8) + pad_left("copies", 8) +
                          pad_left("bytes", 24) + pad_left("busy", 13), style) + "\n" + out;
}

std::string portfolio_lines(const StepPlan& plan, const TextStyle& style) {
  if (plan.portfolio.empty()) return "";
  std::string out = "\n  " + dim(pad_right("policies compared", kLabel + 22) +
                                     pad_left("step", 12) + pad_left("against it", 12) +
                                     pad_left("peak", 13), style) + "\n";
  const Nanos ours = plan.predicted.total_ns;
  bool found = false;
  for (const Considered& c : plan.portfolio) {
    std::string row = "  " + pad_right(shown(c.policy), kLabel + 22);
    if (c.fits) {
      const double over = ours > 0 ? static_cast<double>(c.predicted_ns - ours) /
                                         static_cast<double>(ours) : 0;
      row += pad_left(precise_time(c.predicted_ns), 12) +
             pad_left(text_of("%+.2f %%", 100 * over), 12) +
             pad_left(human_bytes(c.peak_bytes), 13);
    } else {
      row += pad_left("does not fit", 12) +
             (c.peak_bytes > 0 ? pad_left("", 12) + pad_left(human_bytes(c.peak_bytes), 13) : "");
    }
    const bool chosen = !found && c.fits && c.predicted_ns == ours;
    found = found || chosen;
    out += (chosen ? bold(row + "  chosen", style) : row) + "\n";
  }
  return out;
}

std::string pass_line(const StepPlan& plan, const TextStyle& style) {
  if (plan.passes.empty()) return "";
  std::string text;
  for (const PassTime& pass : plan.passes)
    text += (text.empty() ? "" : ", ") + shown(pass.pass) + " " + grouped(pass.work);
  return "\n" + line("passes, work", text, style);
}

double seconds(Nanos ns) { return static_cast<double>(ns) / 1e9; }

void write_facts(const StepRequestFacts& f, JsonWriter& json) {
  json.field("workload", valid_utf8(f.workload)).field("machine", valid_utf8(f.machine));
  json.field("budget_bytes", f.budget).field("budget_source", valid_utf8(f.budget_source));
  json.field("goal", valid_utf8(f.goal));
}

void write_choice(const Program& p, const Choice& c, JsonWriter& json) {
  const auto time = [&](const char* key, Nanos ns) {
    json.key(key);
    if (ns == Choice::kNever) {
      json.null();
    } else {
      json.value(seconds(ns));
    }
  };
  const auto op = [&](const char* key, OpId id) {
    json.key(key);
    if (id.valid()) {
      json.value(valid_utf8(p.graph->at(id).name));
    } else {
      json.null();
    }
  };
  json.begin_object().field("tensor", valid_utf8(p.graph->at(c.tensor).name));
  json.field("way", name_of(c.way));
  if (c.tier.valid()) json.field("tier", valid_utf8(p.tiers[c.tier.index()].name));
  if (c.codec != Codec::kNone) json.field("codec", name_of(c.codec));
  if (!c.range.whole())
    json.field("range_begin", c.range.begin).field("range_bytes", c.range.bytes);
  op("after", c.after);
  op("before", c.before);
  json.field("freed_bytes", c.freed_bytes).field("gap_s", seconds(c.gap_ns));
  json.field("lead_s", seconds(c.lead_ns)).field("added_s", seconds(c.added_ns));
  time("move_s", c.move_ns);
  time("recompute_s", c.recompute_ns);
  time("compress_s", c.compress_ns);
  json.end_object();
}

void write_figures(const StepPlan& plan, const Timeline& t, JsonWriter& json) {
  json.field("cyclic", plan.program.cyclic).field("predicted_s", seconds(t.total_ns));
  json.field("compute_s", seconds(t.compute_ns)).field("again_s", seconds(t.again_ns));
  json.field("stall_s", seconds(t.stall_ns));
  json.key("bound").begin_object().field("total_s", seconds(plan.bound.total_ns));
  json.field("compute_s", seconds(plan.bound.compute_ns));
  json.field("link_s", seconds(plan.bound.link_ns));
  json.field("reason", valid_utf8(plan.bound.reason)).field("gap", gap_to_bound(plan));
  json.end_object();
  json.field("unconstrained_peak_bytes", plan.unconstrained_peak_bytes);
  json.field("arena_bytes", plan.program.arena_bytes);
  json.field("loaded_bytes", t.loaded_bytes).field("stored_bytes", t.stored_bytes);
  json.key("tiers").begin_array();
  for (const TimelineTier& tier : t.tiers) {
    json.begin_object().field("name", valid_utf8(tier.name)).field("peak_bytes", tier.peak);
    json.field("capacity_bytes", tier.capacity).key("at_peak").begin_object();
    for (int c = 0; c < kMemoryClassCount; ++c)
      json.field(memory_class_name(c), tier.at_peak[static_cast<size_t>(c)]);
    json.end_object().end_object();
  }
  json.end_array();
}

}  // namespace

const char* name_of(Goal goal) {
  switch (goal) {
    case Goal::kFit: return "fit";
    case Goal::kLatency: return "latency";
    case Goal::kThroughput: return "throughput";
  }
  return "";
}

double gap_to_bound(const StepPlan& plan) {
  if (plan.bound.total_ns <= 0) return 0;
  return static_cast<double>(plan.predicted.total_ns - plan.bound.total_ns) /
         static_cast<double>(plan.bound.total_ns);
}

std::string step_plan_text(const StepPlan& plan, const StepRequestFacts& f,
                           const TextStyle& style) {
  const Timeline t = make_timeline(plan.program, plan.predicted);
  const Graph& g = *plan.program.graph;
  std::string out = bold(shown(f.workload), style) + "\n";
  out += wrapped(text_of("%s ops, %s tensors; on %s, in %s (%s), for %s",
                         grouped(static_cast<int64_t>(g.ops.size())).c_str(),
                         grouped(static_cast<int64_t>(g.tensors.size())).c_str(),
                         shown(f.machine).c_str(), human_bytes(f.budget).c_str(),
                         shown(f.budget_source).c_str(), f.goal.c_str()),
                 kWidth, 0) + "\n";
  return out + time_lines(plan, t, style) + memory_lines(plan, t, style) +
         way_lines(plan, style) + link_lines(t, style) + portfolio_lines(plan, style) +
         pass_line(plan, style);
}

std::string step_plan_json(const StepPlan& plan, const StepRequestFacts& f, size_t choices) {
  JsonWriter json;
  json.begin_object().field("fits", true);
  write_facts(f, json);
  write_figures(plan, make_timeline(plan.program, plan.predicted), json);
  json.key("ways").begin_array();
  for (const WaySum& s : ways(plan)) {
    json.begin_object().field("what", s.what).field("gaps", s.gaps);
    json.field("tensors", static_cast<int64_t>(s.tensors.size()));
    json.field("freed_bytes", s.freed).field("added_s", seconds(s.added)).end_object();
  }
  json.end_array().key("portfolio").begin_array();
  for (const Considered& c : plan.portfolio) {
    json.begin_object().field("policy", valid_utf8(c.policy)).field("fits", c.fits);
    if (c.fits) json.field("predicted_s", seconds(c.predicted_ns));
    json.field("peak_bytes", c.peak_bytes).end_object();
  }
  json.end_array().key("passes").begin_array();
  for (const PassTime& pass : plan.passes) {
    json.begin_object().field("pass", valid_utf8(pass.pass)).field("work", pass.work);
    json.end_object();
  }
  json.end_array().field("choice_count", static_cast<int64_t>(plan.choices.size()));
  json.key("choices").begin_array();
  for (size_t i = 0; i < std::min(choices, plan.choices.size()); ++i)
    write_choice(plan.program, plan.choices[i], json);
  json.end_array().end_object();
  return json.take();
}

std::string infeasible_json(const Infeasible& r, const Graph& g, const StepRequestFacts& f) {
  JsonWriter json;
  json.begin_object().field("fits", false);
  write_facts(f, json);
  json.field("needed_bytes", r.needed_bytes).field("reason", valid_utf8(r.reason));
  if (r.op.valid()) json.field("op", valid_utf8(g.at(r.op).name));
  json.field("workspace_bytes", r.workspace).key("live").begin_array();
  for (TensorId t : r.live) {
    json.begin_object().field("name", valid_utf8(g.at(t).name));
    json.field("bytes", device_bytes(g.at(t))).field("class", name_of(shown_class(g.at(t))));
    json.end_object();
  }
  json.end_array().key("options").begin_array();
  for (const std::string& option : r.options) json.value(valid_utf8(option));
  json.end_array().end_object();
  return json.take();
}

std::string step_plan_html(const StepPlan& plan, const StepRequestFacts& f, size_t choices) {
  const auto cell = [](const std::string& text) { return "<td>" + html_text(text) + "</td>"; };
  const auto row_head = [](const std::string& text) {
    return "<tr><th scope=\"row\">" + html_text(text) + "</th>";
  };
  std::string out = "<h2>Plan</h2>\n<p>" + html_text(f.workload) + " on " + html_text(f.machine) +
                    ", in " + html_text(human_bytes(f.budget)) + ", for " + html_text(f.goal) +
                    ".";
  if (plan.bound.total_ns > 0) {
    out += " No plan is below " + precise_time(plan.bound.total_ns) + "; this one is " +
           text_of("%.2f %%", 100 * gap_to_bound(plan)) + " above that" +
           (plan.bound.reason.empty() ? "" : " (" + html_text(plan.bound.reason) + ")") + ".";
  }
  out += "</p>\n<table><caption>Policies compared</caption><thead><tr><th scope=\"col\">policy</th>"
         "<th scope=\"col\">step</th><th scope=\"col\">peak</th></tr></thead>\n";
  for (const Considered& c : plan.portfolio) {
    out += row_head(c.policy) + cell(c.fits ? precise_time(c.predicted_ns) : "does not fit") +
           cell(human_bytes(c.peak_bytes)) + "</tr>\n";
  }
  out += "</table>\n";
  const std::vector<Bytes> over = over_by_choice(plan, f.budget);
  const size_t n = std::min(choices, plan.choices.size());
  if (n == 0) return out;
  out += text_of("<h2>Why, the first %zu of %zu choices</h2>\n<ol>\n", n, plan.choices.size());
  for (size_t i = 0; i < n; ++i)
    out += "<li>" + html_text(explain_choice(plan.program, plan.choices[i], over[i])) + "</li>\n";
  return out + "</ol>\n";
}

}  // namespace headrace
