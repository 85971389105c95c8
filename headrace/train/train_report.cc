#include "headrace/train/train_report.h"

#include <algorithm>

#include "headrace/base/system_memory.h"
#include "headrace/session/session_plan.h"

namespace headrace {
namespace {

constexpr int kNameWidth = 12;
constexpr int kColumn = 13;

double seconds(Nanos ns) { return static_cast<double>(ns) * 1e-9; }

const char* plain_name(size_t c) {
  switch (static_cast<DataClass>(c)) {
    case DataClass::kWeight: return "parameters";
    case DataClass::kOptimizer: return "optimizer";
    case DataClass::kGradient: return "gradients";
    case DataClass::kActivation: return "activations";
    default: return name_of(static_cast<DataClass>(c));
  }
}

std::string cell(Bytes bytes) {
  return pad_left(bytes == 0 ? "-" : human_bytes(bytes), kColumn);
}

Bytes tensor_bytes(const Graph& g, DataClass c) {
  Bytes sum = 0;
  for (const Tensor& t : g.tensors) {
    if (shown_class(t) == c) sum += device_bytes(t);
  }
  return sum;
}

// Classes that the step has, in the order that people ask for them.
std::vector<size_t> shown_classes(const TrainPlanFigures& f) {
  std::vector<size_t> out;
  for (DataClass c : {DataClass::kWeight, DataClass::kGradient, DataClass::kOptimizer,
                      DataClass::kActivation, DataClass::kKv, DataClass::kInput,
                      DataClass::kOther}) {
    if (f.classes[static_cast<size_t>(c)].total_bytes > 0) out.push_back(static_cast<size_t>(c));
  }
  return out;
}

}  // namespace

Bytes floor_of(const TrainPlan& plan) {
  const Graph& g = *plan.plan.program.graph;
  Bytes state = 0, largest = 0;
  for (const Tensor& t : g.tensors) {
    if (t.role == Role::kState) state += device_bytes(t);
  }
  // While an op runs, its operands that are not state and its workspace take room from state.
  for (const Op& op : g.ops) {
    Bytes others = op.workspace;
    for (const auto* ids : {&op.inputs, &op.outputs, &op.updates}) {
      for (TensorId t : *ids) {
        if (g.at(t).role != Role::kState) others += device_bytes(g.at(t));
      }
    }
    largest = std::max(largest, others);
  }
  // Every state tensor is written once a step, so what leaves must be stored and loaded again.
  return 2 * std::max<Bytes>(0, state + largest - plan.arena_bytes);
}

TrainPlanFigures train_plan_figures(const TrainPlan& plan) {
  const Program& p = plan.plan.program;
  const Graph& g = *p.graph;
  TrainPlanFigures f;
  for (int c = 0; c < kDataClassCount; ++c) {
    f.classes[static_cast<size_t>(c)].total_bytes = tensor_bytes(g, static_cast<DataClass>(c));
  }
  std::vector<int> runs(g.ops.size());
  for (const Instr& i : p.instrs) {
    if (i.kind == InstrKind::kCompute) {
      f.compute_ns += i.cost_ns;
      if (runs[i.op.index()]++ == 0) continue;
      f.recompute_ns += i.cost_ns;
      for (TensorId t : g.at(i.op).outputs) {
        f.classes[static_cast<size_t>(shown_class(g.at(t)))].recomputed_bytes += g.at(t).bytes;
      }
      continue;
    }
    ClassFigures& c = f.classes[static_cast<size_t>(shown_class(g.at(i.tensor)))];
    if (!is_transfer(i.kind)) {
      if (i.kind == InstrKind::kEncode) c.encoded_bytes += g.at(i.tensor).bytes;
      continue;
    }
    const Bytes bytes = range_bytes(g.at(i.tensor), i.range, i.codec);
    (i.kind == InstrKind::kStore ? c.stored_bytes : c.loaded_bytes) += bytes;
    (i.kind == InstrKind::kStore ? f.stored_bytes : f.loaded_bytes) += bytes;
  }
  ClassPoint peak;
  Bytes most = -1;
  for (const ClassPoint& point : class_curve(p)) {
    Bytes sum = 0;
    for (Bytes b : point.bytes) sum += b;
    if (sum <= most) continue;
    most = sum;
    peak = point;
  }
  for (size_t c = 0; c < f.classes.size(); ++c) f.classes[c].at_peak_bytes = peak.bytes[c];
  f.workspace_at_peak = peak.bytes[kWorkspaceSlot];
  f.device_peak_bytes = peak_bytes(p);
  for (size_t t = 0; t < p.tiers.size(); ++t) {
    f.tier_bytes.push_back(t == 0 ? 0 : peak_bytes(p, TierId(static_cast<int64_t>(t))));
  }
  f.step_ns = plan.plan.predicted.total_ns;
  f.stall_ns = plan.plan.predicted.stall_ns;
  f.floor_bytes = floor_of(plan);
  return f;
}

namespace {

std::string class_table(const TrainPlanFigures& f) {
  std::string out = pad_right("", kNameWidth);
  for (const char* head : {"all", "at peak", "stored", "loaded", "recomputed", "compressed"}) {
    out += pad_left(head, kColumn);
  }
  out += "\n";
  for (size_t k : shown_classes(f)) {
    const ClassFigures& x = f.classes[k];
    out += pad_right(plain_name(k), kNameWidth) + cell(x.total_bytes) + cell(x.at_peak_bytes) +
           cell(x.stored_bytes) + cell(x.loaded_bytes) + cell(x.recomputed_bytes) +
           cell(x.encoded_bytes) + "\n";
  }
  return out + pad_right("workspace", kNameWidth) + cell(0) + cell(f.workspace_at_peak) + "\n";
}

// Every byte of the budget.
std::string memory_table(const TrainPlan& plan) {
  std::string out = "memory\n";
  const auto line = [&](const std::string& name, Bytes bytes) {
    out += "  " + pad_right(name, 38) + pad_left(human_bytes(bytes), kColumn) + "\n";
  };
  for (const BudgetLedger::Item& item : plan.ledger.items()) line(item.name, item.bytes);
  if (plan.ledger.available() > 0) line("not needed", plan.ledger.available());
  line("budget", plan.options.memory_bytes);
  return out;
}

// What a budget would do that leaves nothing to move.
std::string enough_line(const TrainPlan& plan) {
  const Bytes more = plan.full_arena_bytes - plan.arena_bytes;
  if (more <= 0) return "";
  const Bytes enough = budget_around(plan.ledger.reserved() + more);
  return "with " + budget_words(plan.options, enough) + " nothing would move or run twice\n";
}

}  // namespace

std::string train_plan_table(const TrainPlan& plan, const TextStyle& style) {
  const TrainPlanFigures f = train_plan_figures(plan);
  const std::vector<Parameter>& parameters = plan.step->parameters;
  const TrainConfig& c = plan.options.config;
  std::string out = bold(terminal_text(c.name.empty() ? "training" : c.name), style);
  out += text_of(": %s parameters, %s of them trained, %s; %lld x %lld tokens a step\n\n",
                 human_count(static_cast<double>(element_count(parameters))).c_str(),
                 human_count(static_cast<double>(trainable_count(parameters))).c_str(),
                 name_of(c.precision), static_cast<long long>(c.batch * c.accumulation),
                 static_cast<long long>(c.sequence));
  out += class_table(f) + "\n" + memory_table(plan) + "\n";
  out += text_of("a step: %s predicted", human_time(f.step_ns).c_str());
  if (f.loaded_bytes + f.stored_bytes == 0 && f.recompute_ns == 0) {
    return out + "; nothing moves, nothing runs twice\n" + enough_line(plan);
  }
  out += text_of("; %s of compute", human_time(f.compute_ns).c_str());
  if (f.recompute_ns > 0) {
    out += text_of(", %s of it for the second time", human_time(f.recompute_ns).c_str());
  }
  out += text_of("; %s waiting\n", human_time(f.stall_ns).c_str());
  out += text_of("moves: %s loaded, %s stored a step", human_bytes(f.loaded_bytes).c_str(),
                 human_bytes(f.stored_bytes).c_str());
  if (f.floor_bytes > 0) {
    out += text_of("; persistent state takes at least %s of it",
                   human_bytes(f.floor_bytes).c_str());
  }
  return out + "\n" + enough_line(plan);
}

std::string train_budget_table(const TrainPlan& plan, const std::vector<TrainBudget>& budgets) {
  std::string out = "other budgets\n";
  const double now = seconds(plan.plan.predicted.total_ns);
  for (const TrainBudget& b : budgets) {
    out += "  " + pad_left(human_bytes(b.memory_bytes), 12);
    if (!b.fits) {
      out += "   too small\n";
      continue;
    }
    out += text_of("   %s a step (%+.0f %%), %s moved\n", human_time(b.step_ns).c_str(),
                   100 * (seconds(b.step_ns) / now - 1), human_bytes(b.moved_bytes).c_str());
  }
  return out;
}

void write_train_plan(const TrainPlan& plan, JsonWriter& json) {
  const TrainPlanFigures f = train_plan_figures(plan);
  const std::vector<Parameter>& parameters = plan.step->parameters;
  json.field("budget_bytes", plan.options.memory_bytes);
  json.field("threads", plan.options.threads);
  json.field("parameters", element_count(parameters));
  json.field("trained_parameters", trainable_count(parameters));
  json.field("precision", name_of(plan.options.config.precision));
  json.key("memory").begin_object();
  for (const BudgetLedger::Item& item : plan.ledger.items()) json.field(item.name, item.bytes);
  json.end_object();
  json.key("classes").begin_object();
  for (size_t k : shown_classes(f)) {
    const ClassFigures& x = f.classes[k];
    json.key(plain_name(k)).begin_object();
    json.field("bytes", x.total_bytes).field("at_peak_bytes", x.at_peak_bytes);
    json.field("stored_bytes", x.stored_bytes).field("loaded_bytes", x.loaded_bytes);
    json.field("recomputed_bytes", x.recomputed_bytes).field("encoded_bytes", x.encoded_bytes);
    json.end_object();
  }
  json.end_object();
  json.field("arena_bytes", plan.arena_bytes).field("full_arena_bytes", plan.full_arena_bytes);
  json.field("workspace_at_peak_bytes", f.workspace_at_peak);
  json.field("predicted_s_per_step", seconds(f.step_ns));
  json.field("predicted_compute_s", seconds(f.compute_ns));
  json.field("predicted_recompute_s", seconds(f.recompute_ns));
  json.field("predicted_stall_s", seconds(f.stall_ns));
  json.field("bound_s", seconds(plan.plan.bound.total_ns));
  json.field("loaded_bytes_per_step", f.loaded_bytes);
  json.field("stored_bytes_per_step", f.stored_bytes);
  json.field("floor_bytes_per_step", f.floor_bytes);
  json.key("tier_bytes").begin_object();
  for (size_t t = 1; t < f.tier_bytes.size(); ++t) {
    json.field(plan.machine.tiers[t].name, f.tier_bytes[t]);
  }
  json.end_object();
}

void TrainRunFigures::add(const TrainStepReport& step) {
  if (steps == 0) first_step = step.step;
  losses.push_back(step.loss);
  ++steps;
  wall_ns += step.wall_ns;
  cpu_ns += step.cpu_ns;
  stall_ns += step.stall_ns;
  loaded_bytes += step.loaded_bytes;
  stored_bytes += step.stored_bytes;
  if (steps > 1) {
    steady_wall_ns += step.wall_ns;
    steady_cpu_ns += step.cpu_ns;
  }
  peak_rss_bytes = process_memory().peak_rss;
}

namespace {

// Of steps after the first, where there are any.
double per_step(const TrainRunFigures& run, Nanos all, Nanos steady) {
  if (run.steps == 0) return 0;
  return run.steps > 1 ? seconds(steady) / static_cast<double>(run.steps - 1) : seconds(all);
}

}  // namespace

double seconds_per_step(const TrainRunFigures& run) {
  return per_step(run, run.wall_ns, run.steady_wall_ns);
}

double cpu_seconds_per_step(const TrainRunFigures& run) {
  return per_step(run, run.cpu_ns, run.steady_cpu_ns);
}

std::string train_report_json(const TrainPlan* plan, const TrainRunFigures& run) {
  JsonWriter json;
  json.begin_object();
  json.field("version", run.version);
  json.field("exit_reason", run.exit_reason).field("exit_code", run.exit_code);
  if (!run.error.empty()) json.field("error", run.error);
  json.field("peak_rss_bytes", run.peak_rss_bytes);
  json.field("first_step", run.first_step).field("steps", run.steps);
  json.field("s_per_step", seconds_per_step(run));
  json.field("cpu_s_per_step", cpu_seconds_per_step(run));
  const double steps = static_cast<double>(std::max<int64_t>(1, run.steps));
  json.field("loaded_bytes_per_step", static_cast<double>(run.loaded_bytes) / steps);
  json.field("stored_bytes_per_step", static_cast<double>(run.stored_bytes) / steps);
  json.field("stall_share", run.wall_ns == 0 ? 0.0
                                             : static_cast<double>(run.stall_ns) /
                                                   static_cast<double>(run.wall_ns));
  json.key("replanned").begin_object();
  json.field("swapped", run.replanned.swapped);
  json.field("before_s", seconds(run.replanned.before_ns));
  json.field("after_s", seconds(run.replanned.after_ns));
  json.end_object();
  json.key("losses").begin_array();
  for (double loss : run.losses) json.value(loss);
  json.end_array();
  if (plan != nullptr) {
    json.field("budget_bytes", plan->options.memory_bytes);
    json.key("plan").begin_object();
    write_train_plan(*plan, json);
    json.end_object();
  }
  json.end_object();
  return json.take();
}

std::string step_line(const TrainStepReport& step, const TrainRunFigures& run, int64_t steps) {
  const double each = seconds_per_step(run);
  std::string out = text_of("step %lld/%lld  loss %.4f", static_cast<long long>(step.step),
                            static_cast<long long>(steps), step.loss);
  if (step.skipped) out += "  skipped: not finite";
  if (step.gradient_norm) out += text_of("  norm %.3g", *step.gradient_norm);
  const double tokens_per_s = static_cast<double>(run.tokens_a_step) / seconds(step.wall_ns);
  out += text_of("  %s tok/s  peak %s  stall %.0f %%", human_number(tokens_per_s).c_str(),
                 human_bytes(run.peak_rss_bytes).c_str(),
                 100 * static_cast<double>(step.stall_ns) / static_cast<double>(step.wall_ns));
  if (step.step == steps) return out;
  const double left = each * static_cast<double>(steps - step.step);
  return out + text_of("  %s left", human_time(static_cast<Nanos>(left * 1e9)).c_str());
}

std::string run_line(const TrainPlan& plan, const TrainRunFigures& run) {
  const auto time = [](double s) { return human_time(static_cast<Nanos>(s * 1e9)); };
  return text_of("%lld step%s: %s each (%s predicted), %s of CPU; peak %s of %s; stall %.0f %%",
                 static_cast<long long>(run.steps), run.steps == 1 ? "" : "s",
                 time(seconds_per_step(run)).c_str(),
                 human_time(plan.plan.predicted.total_ns).c_str(),
                 time(cpu_seconds_per_step(run)).c_str(),
                 human_bytes(run.peak_rss_bytes).c_str(),
                 human_bytes(plan.options.memory_bytes).c_str(),
                 100 * seconds(run.stall_ns) / std::max(seconds(run.wall_ns), 1e-9));
}

}  // namespace headrace
