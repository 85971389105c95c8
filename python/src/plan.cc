#include <algorithm>
#include <set>

#include "headrace/model/workload.h"
#include "headrace/report/hotspots.h"
#include "headrace/report/timeline.h"
#include "headrace/snapshot/program_snapshot.h"
#include "python/src/common.h"

namespace headrace::python {
namespace {

constexpr size_t kExplainedInPage = 100;
constexpr size_t kExplainedInNotebook = 10;

double seconds(Nanos ns) { return static_cast<double>(ns) * 1e-9; }

// An instruction of a Program, with its names.
struct InstrView {
  std::string kind;   // "compute", "load", "store", "detach", "encode", "decode", "gather"
  std::string name;   // of the op, or of the tensor
  std::string tier;   // where a load comes from, a store goes to; else empty
  Bytes begin = 0, bytes = 0;  // of the tensor; 0 of a compute
  double seconds = 0;          // predicted
  std::string codec;  // empty: the plain bytes
  std::vector<int32_t> waits;  // indices of the instructions that must have ended
};

struct ChoiceView {
  std::string tensor, way, tier;
  Bytes freed_bytes = 0;
  double added_seconds = 0;
};

const Program& program(const Plan& p) { return p.planned.plan.program; }
const Graph& graph(const Plan& p) { return *program(p).graph; }

InstrView view(const Plan& p, size_t index) {
  const Instr& i = program(p).instrs[index];
  const TraceRecord& r = p.planned.plan.predicted.records[index];
  InstrView v;
  v.kind = name_of(i.kind);
  v.name = subject_of(program(p), i);
  if (i.kind != InstrKind::kCompute) {
    v.begin = i.range.begin;
    v.bytes = range_bytes(graph(p).at(i.tensor), i.range, i.codec);
    if (i.codec != Codec::kNone) v.codec = name_of(i.codec);
  }
  if (is_transfer(i.kind)) v.tier = program(p).tiers[i.tier.index()].name;
  v.seconds = seconds(r.end_ns - r.begin_ns);
  for (Step wait : i.waits) v.waits.push_back(wait.value);
  return v;
}

std::vector<InstrView> instructions(const Plan& p) {
  std::vector<InstrView> out;
  for (size_t i = 0; i < program(p).instrs.size(); ++i) out.push_back(view(p, i));
  return out;
}

std::vector<ChoiceView> choices(const Plan& p) {
  std::vector<ChoiceView> out;
  for (const Choice& c : p.planned.plan.choices) {
    // A move without a tier: its bytes are given up, as nobody reads them again.
    const bool moves = (c.way == Way::kMove || c.way == Way::kMoveCompressed) && c.tier.valid();
    out.push_back({graph(p).at(c.tensor).name, name_of(c.way),
                   moves ? program(p).tiers[c.tier.index()].name : "", c.freed_bytes,
                   seconds(c.added_ns)});
  }
  return out;
}

int64_t recomputed_ops(const Plan& p) {
  const auto& instrs = program(p).instrs;
  const auto runs = std::count_if(instrs.begin(), instrs.end(), [](const Instr& i) {
    return i.kind == InstrKind::kCompute;
  });
  return runs - static_cast<int64_t>(graph(p).ops.size());
}

Timeline timeline(const Run& r) { return make_timeline(program(*r.plan), r.trace); }

Run predicted(std::shared_ptr<const Plan> p) {
  Trace trace = p->planned.plan.predicted;
  return {std::move(p), std::move(trace)};
}

void write_timeline(const Run& r, const std::string& path) {
  const WorkloadPlan& w = r.plan->planned;
  write_text(path, timeline_html(timeline(r), step_plan_html(w.plan, w.facts, kExplainedInPage)));
}

// The table that is printed, and folded below it why the largest choices are as they are.
std::string notebook_html(const Plan& p) {
  const WorkloadPlan& w = p.planned;
  std::string out = "<pre style=\"line-height: 1.25; overflow-x: auto\">" +
                    html_text(step_plan_text(w.plan, w.facts, {})) + "</pre>\n";
  const size_t all = w.plan.choices.size(), n = std::min(kExplainedInNotebook, all);
  if (n == 0) return out;
  const std::vector<Bytes> over = over_by_choice(w.plan, w.facts.budget);
  out += "<details><summary>Why, the first " + std::to_string(n) + " of " + std::to_string(all) +
         " choices</summary>\n<ol>\n";
  for (size_t i = 0; i < n; ++i)
    out += "<li>" + html_text(explain_choice(w.plan.program, w.plan.choices[i], over[i])) +
           "</li>\n";
  return out + "</ol></details>\n";
}

std::string hotspots(const Run& r, int limit, bool color) {
  return hotspots_text(find_hotspots(timeline(r)), static_cast<size_t>(std::max(1, limit)),
                       {false, color});
}

Goal goal_of(const std::string& text) {
  for (Goal g : {Goal::kFit, Goal::kLatency, Goal::kThroughput}) {
    if (text == name_of(g)) return g;
  }
  throw Raised{error(Code::kUsage, "goal '%s': the goals are fit, latency and throughput",
                     text.c_str()), nullptr};
}

// A graph's text form has no rules and does not repeat.
Workload read(const std::string& text) {
  if (text.rfind("graph ", 0) != 0) return check(parse_workload(text));
  Workload w;
  w.graph = check(parse_graph(text));
  check(verify(w.graph));
  return w;
}

std::shared_ptr<Plan> make_plan(const std::string& text, int64_t memory,
                                const std::optional<std::string>& folder, const Machine* machine,
                                bool recompute, bool reorder, const std::string& goal) {
  WorkloadPlanOptions o;
  if (memory <= 0)
    throw Raised{error(Code::kUsage, "memory of %s", human_bytes(memory).c_str()), nullptr};
  o.budget = memory;
  o.folder = folder.value_or("");
  o.machine = machine;
  o.recompute = recompute;
  o.reorder = reorder;
  o.goal = goal_of(goal);
  WorkloadResult result = check(plan_workload(read(text), o));
  if (const auto* no = std::get_if<WorkloadRefusal>(&result)) {
    throw Raised{Status(Code::kDoesNotFit, no->text), std::make_shared<Infeasible>(no->why)};
  }
  return std::make_shared<Plan>(Plan{std::get<WorkloadPlan>(std::move(result))});
}

void bind_views(nb::module_& m) {
  nb::class_<InstrView>(m, "Instr", "An instruction of a plan: what happens, and to what.")
      .def_ro("kind", &InstrView::kind, "compute, load, store, detach, encode, decode or gather.")
      .def_ro("name", &InstrView::name, "Of the op, or of the tensor.")
      .def_ro("tier", &InstrView::tier, "Where a load comes from and a store goes to; else empty.")
      .def_ro("begin", &InstrView::begin, "First byte of the tensor.")
      .def_ro("bytes", &InstrView::bytes, "How many; 0 of a compute.")
      .def_ro("seconds", &InstrView::seconds, "Predicted.")
      .def_ro("codec", &InstrView::codec, "Form of the bytes; empty: the plain ones.")
      .def_ro("waits", &InstrView::waits,
              "Indices of the instructions that must have ended before.")
      .def("__repr__", [](const InstrView& v) {
        return text_of("<%s %s%s%s>", v.kind.c_str(), v.name.c_str(), v.tier.empty() ? "" : " ",
                       v.tier.c_str());
      });
  nb::class_<ChoiceView>(m, "Choice", "How an idle time of a tensor is spent.")
      .def_ro("tensor", &ChoiceView::tensor)
      .def_ro("way", &ChoiceView::way, "keep, move, recompute, compress, move compressed.")
      .def_ro("tier", &ChoiceView::tier,
              "Where it is moved to; empty: its bytes are given up, or it is not moved.")
      .def_ro("freed_bytes", &ChoiceView::freed_bytes)
      .def_ro("added_seconds", &ChoiceView::added_seconds, "That the step takes longer for it.");
}

void bind_run(nb::module_& m) {
  nb::class_<Run>(m, "Run", "A run of a plan: as predicted, or as recorded by an Engine.")
      .def_prop_ro("seconds", [](const Run& r) { return seconds(r.trace.total_ns); })
      .def_prop_ro("stall_seconds", [](const Run& r) { return seconds(r.trace.stall_ns); },
                   "Compute stood still for transfers.")
      .def_prop_ro("loaded_bytes", [](const Run& r) { return r.trace.loaded_bytes; })
      .def_prop_ro("stored_bytes", [](const Run& r) { return r.trace.stored_bytes; })
      .def("timeline_html", write_timeline, nb::arg("path"), Unlocked(),
           "Writes the picture of the run: one HTML file that needs no network.")
      .def("hotspots_text", hotspots, nb::arg("limit") = 10, nb::arg("color") = false, Unlocked(),
           "What holds the peak and what the stalls wait for, ranked; at most 100 columns.")
      .def("save", [](const Run& r, const std::string& path) {
             write_text(path, to_chrome_json(program(*r.plan), r.trace));
           }, nb::arg("path"), Unlocked(),
           "Writes the Trace for Perfetto and for `headrace timeline`.")
      .def("save_snapshot", [](const Run& r, const std::string& path) {
             write_text(path, to_pickle(snapshot_of(timeline(r))));
           }, nb::arg("path"), Unlocked(),
           "Writes it as a memory snapshot for PyTorch's viewers (pytorch.org/memory_viz).");
}

}  // namespace

void bind_plan(nb::module_& m) {
  bind_views(m);
  bind_run(m);
  nb::class_<Plan>(m, "Plan", "What a step will do with its memory. Times are seconds.")
      .def_prop_ro("name", [](const Plan& p) { return program(p).name; })
      .def_prop_ro("machine", [](const Plan& p) { return p.planned.facts.machine; })
      .def_prop_ro("folder", [](const Plan& p) { return p.planned.folder; },
                   "Of the scratch file; empty when it was planned for another machine's tiers.")
      .def_prop_ro("cyclic", [](const Plan& p) { return program(p).cyclic; })
      .def_prop_ro("budget_bytes", [](const Plan& p) { return p.planned.facts.budget; })
      .def_prop_ro("arena_bytes", [](const Plan& p) { return program(p).arena_bytes; },
                   "What the plan takes of the budget.")
      .def_prop_ro("peak_bytes",
                   [](const Plan& p) { return p.planned.plan.unconstrained_peak_bytes; },
                   "Alive at the same time when everything is kept.")
      .def_prop_ro("predicted_seconds",
                   [](const Plan& p) { return seconds(p.planned.plan.predicted.total_ns); })
      .def_prop_ro("compute_seconds",
                   [](const Plan& p) { return seconds(p.planned.plan.bound.compute_ns); },
                   "Of every op once.")
      .def_prop_ro("loaded_bytes",
                   [](const Plan& p) { return p.planned.plan.predicted.loaded_bytes; })
      .def_prop_ro("stored_bytes",
                   [](const Plan& p) { return p.planned.plan.predicted.stored_bytes; })
      .def_prop_ro("recomputed_ops", recomputed_ops)
      .def_prop_ro("ops", [](const Plan& p) {
             std::vector<std::string> names;
             for (const Op& op : graph(p).ops) names.push_back(op.name);
             return names;
           }, "Their names, in the order of the workload.")
      .def("text", [](const Plan& p, bool color) {
             return step_plan_text(p.planned.plan, p.planned.facts, {false, color});
           }, nb::arg("color") = false, "The table for people, at most 100 columns.")
      .def("explain", [](const Plan& p, int limit, bool color) {
             return explain_text(p.planned.plan, p.planned.facts.budget,
                                 static_cast<size_t>(std::max(0, limit)), {false, color});
           }, nb::arg("limit") = 10, nb::arg("color") = false,
           "Why each tensor goes where it goes, the most significant first.")
      .def("html", notebook_html, "The table for notebooks and pages.")
      .def("to_json", [](const Plan& p) {
             return step_plan_json(p.planned.plan, p.planned.facts, p.planned.plan.choices.size());
           }, "All numbers and choices.")
      .def("instructions", instructions, "list[Instr], in the order in which they are issued.")
      .def("choices", choices, "list[Choice], the largest bytes x time first.")
      .def("predicted", [](std::shared_ptr<Plan> p) { return predicted(p); }, "The predicted Run.")
      .def("timeline_html", [](std::shared_ptr<Plan> p, const std::string& path) {
             write_timeline(predicted(p), path);
           }, nb::arg("path"), Unlocked(), "The picture of the predicted run.")
      .def("hotspots_text", [](std::shared_ptr<Plan> p, int limit, bool color) {
             return hotspots(predicted(p), limit, color);
           }, nb::arg("limit") = 10, nb::arg("color") = false, Unlocked(), "Of the predicted run.")
      .def("save", [](const Plan& p, const std::string& path) {
             write_text(path, to_text(program(p)));
           }, nb::arg("path"), Unlocked(), "Writes the Program, for the command line.")
      .def("__str__", [](const Plan& p) {
             return step_plan_text(p.planned.plan, p.planned.facts, {});
           })
      .def("_repr_html_", notebook_html);
  m.def("plan_workload", make_plan, nb::arg("workload"), nb::arg("memory"), nb::kw_only(),
        nb::arg("folder") = nb::none(), nb::arg("machine").none() = nb::none(),
        nb::arg("recompute") = true, nb::arg("reorder") = false, nb::arg("goal") = "throughput",
        Unlocked(),
        "Plans a workload (JSON, or the text of a graph) in an arena of `memory` bytes. With "
        "`folder`, or without a machine, on this machine with a scratch file there; else on the "
        "tiers of `machine`. Raises DoesNotFit with the numbers, HeadraceError for what cannot be "
        "planned.");
}

}  // namespace headrace::python
