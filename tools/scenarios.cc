#include "tools/scenarios.h"

#include <algorithm>
#include <memory>

#include "headrace/cost/profiles.h"
#include "headrace/model/step_graph.h"
#include "headrace/plan/step_plan.h"
#include "headrace/report/json_writer.h"

namespace headrace::cli {
namespace {

constexpr double kGB = 1e9;

std::string gigabytes(Bytes bytes) { return text_of("%.1f GB", static_cast<double>(bytes) / kGB); }
std::string milliseconds(Nanos ns) { return text_of("%.0f ms", static_cast<double>(ns) / 1e6); }
std::string percent(double part, double whole) {
  return text_of("%+.1f %%", 100 * (part / whole - 1));
}
double real(int64_t value) { return static_cast<double>(value); }

// The supernode's die with its pool alone: the published runs do not use the host's link.
Result<Machine> pool_machine(const char* profile, int64_t divide) {
  HR_ASSIGN(Machine m, machine_by_name(profile));
  m.tiers[0].capacity /= divide;
  std::erase_if(m.tiers, [](const TierInfo& t) { return t.name == "host"; });
  return m;
}

Result<StepConfig> model(const char* preset, int64_t divide) {
  HR_ASSIGN(StepConfig c, step_preset(preset));
  c.layers /= divide;
  c.vocab /= divide;
  return c;
}

Result<std::shared_ptr<const Workload>> shared_step(const StepConfig& config) {
  HR_ASSIGN(Workload w, build_step(config));
  return std::make_shared<const Workload>(std::move(w));
}

// More than everything at once.
Bytes everything(const Workload& w) {
  Bytes sum = 0, workspace = 0;
  for (const Tensor& t : w.graph.tensors) sum += device_bytes(t);
  for (const Op& op : w.graph.ops) workspace = std::max(workspace, op.workspace);
  return sum + workspace + kMiB;
}

struct Ask {
  bool recompute = true;
  Goal goal = Goal::kLatency;
};

Status plan_into(const StepRequest& request, ScenarioPlan* out) {
  HR_ASSIGN(StepResult result, plan_step(request));
  if (const auto* refusal = std::get_if<Infeasible>(&result)) {
    out->needed = refusal->needed_bytes;
    return {};
  }
  auto& plan = std::get<StepPlan>(result);
  out->fits = true;
  out->peak = plan.unconstrained_peak_bytes;
  out->total_ns = plan.predicted.total_ns;
  out->bound_ns = plan.bound.total_ns;
  out->compute_ns = plan.bound.compute_ns;
  out->portfolio = std::move(plan.portfolio);
  out->program = std::make_shared<const Program>(std::move(plan.program));
  return {};
}

// One plan, noted in `s`.
Result<ScenarioPlan> outcome(Scenario& s, const std::shared_ptr<const Workload>& workload,
                             const Machine& machine, Bytes budget, const Ask& ask = {}) {
  StepRequest request;
  request.name = workload->graph.name;
  request.workload = workload;
  request.machine = &machine;
  request.budget = round_down(budget, kPage);
  request.recompute = ask.recompute;
  request.goal = ask.goal;
  ScenarioPlan out;
  out.workload = workload;
  out.tiers = machine.tiers;
  out.budget = request.budget;
  HR_TRY(plan_into(request, &out));
  s.plans.push_back(out);
  return out;
}

std::string time_or_refusal(const ScenarioPlan& o) {
  if (o.fits) return milliseconds(o.total_ns);
  return "does not fit: needs " + gigabytes(o.needed);
}

// What recomputing every block takes when nothing waits: every op, and those before the loss again.
Nanos recomputing_ns(const Workload& w, const Machine& machine) {
  Nanos forward = 0, all = 0;
  bool before = true;
  for (const Op& op : w.graph.ops) {
    before = before && op.kernel != "CrossEntropy";
    const Nanos cost = op_cost(machine, w.graph, op, {});
    all += cost;
    forward += before ? cost : 0;
  }
  return all + forward;
}

// The fastest of the well-known policies that fit.
std::string best_policy(const ScenarioPlan& o) {
  const Considered* best = nullptr;
  for (const Considered& c : o.portfolio) {
    if (!c.fits || c.policy == "planner") continue;
    if (best == nullptr || c.predicted_ns < best->predicted_ns) best = &c;
  }
  return best == nullptr ? "none fits"
                         : milliseconds(best->predicted_ns) + " (" + best->policy + ")";
}

// The most bytes of one class on the device at any step.
Bytes most_of(const Program& p, DataClass data_class) {
  std::vector<Bytes> change(p.instrs.size() + 2, 0);
  for (const Residency& r : p.residencies) {
    if (r.tier != kDevice || !r.tensor.valid()) continue;
    if (p.graph->at(r.tensor).data_class != data_class) continue;
    change[static_cast<size_t>(r.begin.value + 1)] += r.bytes;
    change[static_cast<size_t>(r.end.value + 1)] -= r.bytes;
  }
  Bytes now = 0, most = 0;
  for (const Bytes c : change) most = std::max(most, now += c);
  return most;
}

Bytes total_of(const Graph& g, DataClass data_class) {
  Bytes sum = 0;
  for (const Tensor& t : g.tensors) sum += t.data_class == data_class ? t.bytes : 0;
  return sum;
}

// ---- LLaMA-8B, training -----------------------------------------------------------------------

Result<Scenario> llama_training(int64_t divide) {
  Scenario s;
  s.name = "LLaMA-8B training step";
  HR_ASSIGN(StepConfig c, model("llama-8b", divide));
  c.batch = 4;
  c.shards = 8;
  HR_ASSIGN(const auto step, shared_step(c));
  HR_ASSIGN(const Machine slow, pool_machine("ascend-910c-node", divide));
  HR_ASSIGN(const Machine fast, pool_machine("ascend-910c-node-70", divide));
  s.assumptions = {
      "profile ascend-910c-node: one die, 64 GB, 226 TFLOPS bf16 reached; pool 33.6 GB/s each way",
      "batch and sharding are not published: 4 sequences of 4096 tokens; weights, gradients and "
      "optimizer state (12 bytes a parameter) shared by 8 devices; communication left out",
      "flash attention; activations in bf16, saved as the backward formulas need them"};
  HR_ASSIGN(const ScenarioPlan whole,
            outcome(s, step, slow, everything(*step), {.goal = Goal::kFit}));
  const Bytes less = static_cast<Bytes>(0.58 * real(whole.peak));
  HR_ASSIGN(const ScenarioPlan moved, outcome(s, step, slow, less, {.recompute = false}));
  s.rows.push_back({"peak, everything kept", "", gigabytes(whole.peak)});
  s.rows.push_back(
      {"step at 42 % less memory, moving alone, against everything kept", "+1.3 %",
       moved.fits ? percent(real(moved.total_ns), real(whole.total_ns)) : time_or_refusal(moved)});
  // Both at the memory that the device has.
  const Bytes device = slow.tiers[0].capacity;
  HR_ASSIGN(const ScenarioPlan full, outcome(s, step, slow, device));
  const Nanos baseline = recomputing_ns(*step, slow);
  s.rows.push_back({"a baseline that recomputes every block and waits for nothing", "5200 ms",
                    milliseconds(baseline)});
  s.rows.push_back({"planned, in 64 GB", "4080 ms", time_or_refusal(full)});
  if (full.fits) {
    s.rows.push_back(
        {"planned against the baseline", "-21.5 %", percent(real(full.total_ns), real(baseline))});
  }
  s.rows.push_back({"the best of the well-known policies, in 64 GB", "", best_policy(full)});
  HR_ASSIGN(const ScenarioPlan faster, outcome(s, step, fast, device));
  s.rows.push_back({"the same with 70 instead of 33.6 GB/s", "-15.8 % more",
                    percent(real(faster.total_ns), real(full.total_ns))});
  const Bytes tight = static_cast<Bytes>(0.25 * real(whole.peak));
  HR_ASSIGN(const ScenarioPlan tight_slow, outcome(s, step, slow, tight));
  HR_ASSIGN(const ScenarioPlan tight_fast, outcome(s, step, fast, tight));
  s.rows.push_back({"in a quarter of the memory: 33.6 GB/s, then 70 GB/s", "",
                    time_or_refusal(tight_slow) + ", " + time_or_refusal(tight_fast)});
  s.remarks = {
      text_of("the step computes for %s whatever is planned; a plan that adds nothing to it leaves "
              "nothing for a faster link to gain, so +1.3 %% and 15.8 %% more by a faster link "
              "cannot both hold for the same step and memory unless the baseline of the second "
              "waits for its link",
              milliseconds(full.compute_ns).c_str()),
      "recomputing every block adds the forward pass again: a third of a step without attention's "
      "share; 5200 / 4080 = 1.27 agrees with that"};
  return s;
}

// ---- DeepSeek-V3, training --------------------------------------------------------------------

Result<Scenario> deepseek_training(int64_t divide) {
  Scenario s;
  s.name = "DeepSeek-V3 training step, optimizer state in the pool";
  HR_ASSIGN(StepConfig c, model("deepseek-v3", divide));
  c.shards = 256;
  HR_ASSIGN(Workload w, build_step(c));
  w.cyclic = true;  // optimizer state may rest in the pool between steps
  const Bytes optimizer = total_of(w.graph, DataClass::kOptimizer);
  for (size_t t = 0; t < w.graph.tensors.size(); ++t) {
    if (w.graph.tensors[t].data_class != DataClass::kOptimizer) continue;
    PlacementRule rule;
    rule.tensor = TensorId(static_cast<int64_t>(t));
    rule.remote = true;
    w.rules.push_back(std::move(rule));
  }
  const auto annotated = std::make_shared<const Workload>(w);
  w.rules.clear();
  const auto step = std::make_shared<const Workload>(std::move(w));
  HR_ASSIGN(const Machine machine, pool_machine("ascend-910c-node", divide));
  s.assumptions = {
      "profile ascend-910c-node with its pool alone; 61 layers, latent attention, 256 experts, "
      "without the multi-token prediction module",
      "not published: 1 sequence of 4096 tokens a device, 256 devices share everything persistent, "
      "12 bytes of optimizer state a parameter, balanced experts, no communication",
      "every optimizer state is annotated remote_memory; the step repeats"};
  HR_ASSIGN(const ScenarioPlan whole,
            outcome(s, step, machine, everything(*step), {.goal = Goal::kFit}));
  HR_ASSIGN(const ScenarioPlan moved,
            outcome(s, annotated, machine, everything(*step), {.goal = Goal::kFit}));
  s.rows.push_back({"optimizer state, share of the peak", "7 %",
                    text_of("%.1f %% (%s of %s)", 100 * real(optimizer) / real(whole.peak),
                            gigabytes(optimizer).c_str(), gigabytes(whole.peak).c_str())});
  if (moved.fits) {
    const Bytes most = most_of(*moved.program, DataClass::kOptimizer);
    s.rows.push_back({"most of it on the device at one time", "-89 %",
                      percent(real(most), real(optimizer)) + " (" + gigabytes(most) + ")"});
    s.rows.push_back({"step with it in the pool, against everything kept", "",
                      percent(real(moved.total_ns), real(whole.total_ns))});
  } else {
    s.rows.push_back({"most of it on the device at one time", "-89 %", time_or_refusal(moved)});
  }
  HR_ASSIGN(const ScenarioPlan full, outcome(s, step, machine, machine.tiers[0].capacity));
  s.rows.push_back({"a baseline that recomputes every block and waits for nothing", "2500 ms",
                    milliseconds(recomputing_ns(*step, machine))});
  s.rows.push_back({"planned, in 64 GB", "2190 ms", time_or_refusal(full)});
  s.rows.push_back({"the best of the well-known policies, in 64 GB", "", best_policy(full)});
  s.remarks = {
      "the share of the optimizer state follows from the number of devices, which is not "
      "published: at 256 devices it is larger than 7 %, and falls as more devices share it while "
      "activations stay",
      "moving 7 % of the peak to the pool frees 7 % at most: it cannot alone be what takes the "
      "step "
      "from 2500 to 2190 ms; that gain must come from recomputing less"};
  return s;
}

// ---- a long key-value cache -------------------------------------------------------------------

Result<std::shared_ptr<const Workload>> decode_step(int64_t batch, int64_t positions,
                                                    int64_t divide) {
  HR_ASSIGN(StepConfig c, model("llama-8b", divide));
  c.phase = StepPhase::kDecode;
  c.batch = batch;
  c.sequence = positions;
  return shared_step(c);
}

Result<Scenario> long_cache(int64_t divide) {
  Scenario s;
  s.name = "Key-value cache at long context";
  HR_ASSIGN(const Machine machine, pool_machine("ascend-910c-node", divide));
  constexpr int64_t kBatch = 5;
  HR_ASSIGN(const auto step, decode_step(kBatch, 71'000, divide));
  s.assumptions = {
      "profile ascend-910c-node with its pool alone",
      "the model is not published: LLaMA-8B (8 key-value heads), 5 sequences of 71,000 positions, "
      "which together with the weights takes about the published 61.2 GB",
      "full attention: each step reads all of the cache, segments of 4096 positions"};
  HR_ASSIGN(const ScenarioPlan whole,
            outcome(s, step, machine, everything(*step), {.goal = Goal::kFit}));
  const auto asked = static_cast<Bytes>(45.0 * kGB / real(divide));
  HR_ASSIGN(const ScenarioPlan less,
            outcome(s, step, machine, asked, {.goal = Goal::kThroughput}));
  s.rows.push_back({"memory, everything kept", "61.2 GB", gigabytes(whole.peak)});
  s.rows.push_back({"throughput in 45.0 GB", "99 %",
                    less.fits ? text_of("%.1f %%", 100 * real(whole.total_ns) / real(less.total_ns))
                              : time_or_refusal(less)});
  if (less.fits) {
    s.rows.push_back({"its lower bound on the step, and the plan's", "",
                      milliseconds(less.bound_ns) + ", " + milliseconds(less.total_ns)});
  }
  // The least memory at 99 %, to a hundredth of the range.
  Bytes low = asked, high = whole.peak;
  for (int i = 0; i < 6; ++i) {
    const Bytes middle = low + (high - low) / 2;
    HR_ASSIGN(const ScenarioPlan o, outcome(s, step, machine, middle, {.goal = Goal::kThroughput}));
    const bool good = o.fits && real(whole.total_ns) >= 0.99 * real(o.total_ns);
    (good ? high : low) = middle;
  }
  s.rows.push_back({"least memory at 99 % of the throughput", "45.0 GB", gigabytes(high)});
  // How long a context the device holds, and a longer one in the pool.
  const Bytes a_position = total_of(step->graph, DataClass::kKv) / 71'000;
  const Bytes rest = whole.peak - total_of(step->graph, DataClass::kKv);
  s.rows.push_back({"positions a sequence that fit the 64 GB device alone", "71K",
                    text_of("%lldK", static_cast<long long>((machine.tiers[0].capacity - rest) /
                                                            a_position / 1000))});
  HR_ASSIGN(const auto longer, decode_step(kBatch, 123'000, divide));
  HR_ASSIGN(const ScenarioPlan with_pool,
            outcome(s, longer, machine, machine.tiers[0].capacity, {.goal = Goal::kThroughput}));
  s.rows.push_back(
      {"a step at 123K positions, in 64 GB and the pool", "runs", time_or_refusal(with_pool)});
  const double link = machine.tiers[1].load_bytes_per_s;
  s.remarks = {
      text_of("a step of %s leaves time for %s over a link of 33.6 GB/s: with full attention no "
              "plan keeps 99 %% when 16 GB of the cache must pass in each step. 61.2 to 45.0 GB at "
              "99 %% needs attention that reads at most a tenth of the moved part a step (selected "
              "blocks), or steps that compute some ten times longer",
              milliseconds(whole.total_ns).c_str(),
              gigabytes(static_cast<Bytes>(link * real(whole.total_ns) * 1e-9)).c_str()),
      text_of(
          "\"32 layers, 32 heads, 128 dim, 1K tokens\" is %s in 16 bits at batch 1 (2 x 32 x 32 x "
          "128 x 1024 x 2 bytes), not 3.2 GB: that would be a batch of 6",
          gigabytes(Bytes{2} * 32 * 32 * 128 * 1024 * 2).c_str()),
      "33.6 GB/s is 1.07 x the 31.5 GB/s of PCIe 4.0 x16, not 2.8 x; 70 GB/s would be 2.2 x"};
  return s;
}

// ---- a long prefill ---------------------------------------------------------------------------

Result<Scenario> long_prefill(int64_t divide) {
  Scenario s;
  s.name = "Prefill of a long prompt";
  HR_ASSIGN(StepConfig c, model("llama-8b", divide));
  c.phase = StepPhase::kPrefill;
  c.sequence = 131'072;
  HR_ASSIGN(const auto step, shared_step(c));
  HR_ASSIGN(const Machine machine, pool_machine("ascend-910c-node", divide));
  s.assumptions = {"profile ascend-910c-node with its pool alone",
                   "model and length are not published: LLaMA-8B, one prompt of 131,072 tokens in "
                   "one piece, full attention, in half of what it would take with everything kept"};
  HR_ASSIGN(const ScenarioPlan whole,
            outcome(s, step, machine, everything(*step), {.goal = Goal::kFit}));
  HR_ASSIGN(const ScenarioPlan half,
            outcome(s, step, machine, whole.peak / 2, {.goal = Goal::kThroughput}));
  s.rows.push_back({"memory, everything kept", "", gigabytes(whole.peak)});
  s.rows.push_back(
      {"the best of the well-known policies, in half of it", "129.33 s", best_policy(half)});
  s.rows.push_back({"planned, in half of it", "99.41 s", time_or_refusal(half)});
  if (half.fits) {
    s.rows.push_back(
        {"planned against its lower bound", "", percent(real(half.total_ns), real(half.bound_ns))});
  }
  s.remarks = {
      "a prefill computes long and moves little: how much planning gains depends on the "
      "memory given, and on how much the compared system waits, neither of which is "
      "published"};
  return s;
}

// ---- activation memory ------------------------------------------------------------------------

// Nothing leaves the device: activations alone are recomputed or compressed.
std::shared_ptr<const Workload> inside(const Workload& from, bool codecs) {
  Workload w = from;
  for (size_t t = 0; t < w.graph.tensors.size(); ++t) {
    const Tensor& tensor = w.graph.tensors[t];
    PlacementRule rule;
    rule.tensor = TensorId(static_cast<int64_t>(t));
    rule.forbidden_tiers = {"remote"};
    const bool lossy = codecs && tensor.dtype == DType::kF32 &&
                       tensor.data_class == DataClass::kActivation &&
                       tensor.role == Role::kActivation;
    if (lossy) rule.codecs = {Codec::kBf16, Codec::kInt8Block};
    w.rules.push_back(std::move(rule));
  }
  return std::make_shared<const Workload>(std::move(w));
}

Result<Scenario> activation_memory(int64_t divide) {
  Scenario s;
  s.name = "Activation memory by recomputation, compression and order alone";
  HR_ASSIGN(StepConfig c, model("llama-8b", divide));
  c.shards = 8;
  c.activation_dtype = DType::kF32;
  HR_ASSIGN(const Workload built, build_step(c));
  HR_ASSIGN(const Machine machine, pool_machine("ascend-910c-node", divide));
  s.assumptions = {
      "LLaMA-8B as in the first scenario, but one sequence, activations in f32 (which is what the "
      "codecs are for), and nothing may leave the device",
      "compression: bf16 and blocks of int8 for saved activations, which lose precision",
      "activation memory: the peak less all that is persistent"};
  Bytes persistent = 0;
  for (const Tensor& t : built.graph.tensors) {
    persistent += t.role == Role::kState ? device_bytes(t) : 0;
  }
  const auto plain = inside(built, false), packed = inside(built, true);
  HR_ASSIGN(const ScenarioPlan whole,
            outcome(s, plain, machine, everything(built), {.goal = Goal::kFit}));
  const Bytes activations = whole.peak - persistent;
  s.rows.push_back({"activation memory, everything kept", "",
                    gigabytes(activations) + " beside " + gigabytes(persistent)});
  // What no plan can go below, and what it costs to go there.
  HR_ASSIGN(const ScenarioPlan none, outcome(s, packed, machine, persistent + kPage));
  HR_ASSIGN(const ScenarioPlan least, outcome(s, packed, machine, none.needed));
  s.rows.push_back(
      {"the least that any plan needs", "5 to 10 x less",
       text_of("%.1f x less (%s): ", real(activations) / real(none.needed - persistent),
               gigabytes(none.needed - persistent).c_str()) +
           (least.fits ? percent(real(least.total_ns), real(whole.total_ns)) + " time"
                       : time_or_refusal(least))});
  for (const int part : {2, 3, 5, 10}) {
    const Bytes budget = persistent + activations / part;
    HR_ASSIGN(const ScenarioPlan a, outcome(s, plain, machine, budget));
    HR_ASSIGN(const ScenarioPlan b, outcome(s, packed, machine, budget));
    const auto told = [&](const ScenarioPlan& o) {
      return o.fits ? percent(real(o.total_ns), real(whole.total_ns)) + " time"
                    : time_or_refusal(o);
    };
    s.rows.push_back(
        {text_of("a %s of it: recomputed; with compression as well", part == 2   ? "half"
                                                                     : part == 3 ? "third"
                                                                     : part == 5 ? "fifth"
                                                                                 : "tenth"),
         part >= 5 ? "5 to 10 x less" : "", told(a) + "; " + told(b)});
  }
  s.remarks = {
      "the least that any plan needs is what a single op has to hold at once: with a "
      "vocabulary of 128,256 the logits and their gradient alone, which no order and no "
      "recomputation divides (computing the loss in pieces would, but is another graph)"};
  return s;
}

}  // namespace

Result<std::vector<Scenario>> run_scenarios(
    const std::function<bool(const std::string& name)>& before, int64_t divide) {
  struct Entry {
    const char* name;
    Result<Scenario> (*run)(int64_t divide);
  };
  constexpr Entry kEntries[] = {{"LLaMA-8B training", llama_training},
                                {"DeepSeek-V3 training", deepseek_training},
                                {"long cache", long_cache},
                                {"long prefill", long_prefill},
                                {"activation memory", activation_memory}};
  std::vector<Scenario> out;
  for (const Entry& entry : kEntries) {
    if (before && !before(entry.name)) return error(Code::kCancelled, "stopped on request");
    auto scenario = entry.run(divide);
    if (!scenario.ok()) return scenario.status().within(entry.name);
    out.push_back(std::move(scenario).value());
  }
  return out;
}

std::string scenarios_text(const std::vector<Scenario>& scenarios) {
  std::string out;
  for (const Scenario& s : scenarios) {
    out += "## " + s.name + "\n\n";
    for (const std::string& a : s.assumptions) out += "- assumed: " + a + "\n";
    out += "\n| figure | published | ours, simulated |\n|---|---|---|\n";
    for (const ScenarioRow& r : s.rows) {
      out +=
          "| " + r.figure + " | " + (r.theirs.empty() ? "-" : r.theirs) + " | " + r.ours + " |\n";
    }
    out += "\n";
    for (const std::string& r : s.remarks) out += "- " + r + "\n";
    out += "\n";
  }
  return out;
}

std::string scenarios_json(const std::vector<Scenario>& scenarios) {
  JsonWriter json;
  const auto texts = [&](const char* key, const std::vector<std::string>& list) {
    json.key(key);
    json.begin_array();
    for (const std::string& text : list) json.value(text);
    json.end_array();
  };
  json.begin_array();
  for (const Scenario& s : scenarios) {
    json.begin_object();
    json.field("name", s.name);
    texts("assumptions", s.assumptions);
    json.key("rows");
    json.begin_array();
    for (const ScenarioRow& r : s.rows) {
      json.begin_object();
      json.field("figure", r.figure);
      json.field("theirs", r.theirs);
      json.field("ours", r.ours);
      json.end_object();
    }
    json.end_array();
    texts("remarks", s.remarks);
    json.end_object();
  }
  json.end_array();
  return json.take();
}

}  // namespace headrace::cli
