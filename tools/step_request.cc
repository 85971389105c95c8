#include "tools/step_request.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "headrace/base/system.h"
#include "headrace/base/system_memory.h"
#include "headrace/cost/predictor.h"
#include "headrace/report/text_style.h"
#include "headrace/session/quick_probe.h"
#include "tools/console.h"
#include "tools/disk_folder.h"
#include "tools/options.h"

namespace headrace::cli {
namespace {

// "--tier NAME=PATH[:BYTES]": a tier in a folder, with the rates of the machine's file tier.
Status add_tier(const std::string& text, Machine* machine) {
  HR_ASSIGN(const TierOption option, parse_tier_option(text, "PATH"));
  const std::string& name = option.name;
  const auto facts = look_at_folder(option.folder);
  if (!facts.ok()) return facts.status().within("--tier " + name);
  if (facts->in_memory) return refuse_memory("--tier " + name, option.folder);
  const Bytes capacity = option.bytes > 0 ? option.bytes : facts->free_bytes;
  if (capacity > facts->free_bytes) {
    return error(Code::kUsage, "--tier %s: %s has %s free, not %s", name.c_str(),
                 option.folder.c_str(), human_bytes(facts->free_bytes).c_str(),
                 human_bytes(capacity).c_str());
  }
  TierInfo tier = machine->tiers[1];
  const auto file = std::find_if(machine->tiers.begin(), machine->tiers.end(),
                                 [](const TierInfo& t) { return t.name == "file"; });
  if (file != machine->tiers.end()) tier = *file;
  tier.name = name;
  tier.capacity = capacity;
  tier.group = -1;
  const auto same = std::find_if(machine->tiers.begin(), machine->tiers.end(),
                                 [&](const TierInfo& t) { return t.name == name; });
  if (same == machine->tiers.begin()) {
    return error(Code::kUsage, "--tier %s: that is the device, whose room --memory gives; choose "
                 "another name", name.c_str());
  }
  if (same != machine->tiers.end()) {
    same->capacity = capacity;
    return {};
  }
  machine->tiers.push_back(tier);
  return {};
}

PlacementRule& rule_of(TensorId tensor, Workload* w) {
  const auto same = std::find_if(w->rules.begin(), w->rules.end(),
                                 [&](const PlacementRule& r) { return r.tensor == tensor; });
  if (same != w->rules.end()) return *same;
  w->rules.emplace_back().tensor = tensor;
  return w->rules.back();
}

// "--codec CODEC=WHAT": for one tensor by name, or for all of a class that the codec can encode.
Status allow_codec(const std::string& text, Workload* w) {
  const size_t equals = text.find('=');
  if (equals == std::string::npos || equals + 1 == text.size())
    return error(Code::kUsage, "--codec %s: write CODEC=CLASS or CODEC=TENSOR", text.c_str());
  const auto codec = codec_from_name(text.substr(0, equals));
  if (!codec.ok()) return codec.status().within("--codec");
  const std::string what = text.substr(equals + 1);
  bool is_class = false;
  int64_t allowed = 0;
  for (int c = 0; c < kDataClassCount; ++c)
    is_class = is_class || what == name_of(static_cast<DataClass>(c));
  if (is_class && *codec == Codec::kMask) {
    return error(Code::kUsage, "--codec %s: a mask keeps nothing but signs; allow it tensor by "
                 "tensor, where nothing else is read", text.c_str());
  }
  for (size_t t = 0; t < w->graph.tensors.size(); ++t) {
    const Tensor& tensor = w->graph.tensors[t];
    if (is_class ? what != name_of(shown_class(tensor)) : what != tensor.name) continue;
    const bool made = tensor.role == Role::kActivation || tensor.role == Role::kState ||
                      tensor.role == Role::kOutput;
    if (!made || *codec == Codec::kNone || encoded_bytes(*codec, tensor) == 0) {
      if (is_class) continue;
      return error(Code::kUsage, "--codec %s: that tensor is %s, and lies %s; codecs are for f32 that "
                   "the step computes or keeps", text.c_str(), name_of(tensor.dtype),
                   made ? "in memory" : "in a file or in the graph");
    }
    std::vector<Codec>& codecs = rule_of(TensorId(static_cast<int64_t>(t)), w).codecs;
    if (std::count(codecs.begin(), codecs.end(), *codec) == 0) codecs.push_back(*codec);
    ++allowed;
  }
  if (allowed > 0) return {};
  return error(Code::kUsage, "--codec %s: no tensor and no class of f32 tensors of this step is "
               "called '%s'", text.c_str(), what.c_str());
}

Status read_goal(const std::string& text, Goal* goal) {
  for (Goal g : {Goal::kFit, Goal::kLatency, Goal::kThroughput}) {
    if (text != name_of(g)) continue;
    *goal = g;
    return {};
  }
  return error(Code::kUsage, "--goal %s: the goals are fit, latency and throughput", text.c_str());
}

Status read_memory(const std::string& text, const Machine& machine, StepSetup* setup) {
  const Bytes device = machine.tiers[0].capacity;
  if (text != "auto") {
    const auto size = parse_size(text, device);
    if (!size.ok()) return size.status().within("--memory");
    setup->request.budget = *size;
    setup->facts.budget_source = "set by --memory";
    return {};
  }
  if (device <= 0) {
    return error(Code::kUsage, "'%s' does not say how much memory its device has: give --memory",
                 machine.name.c_str());
  }
  setup->request.budget = device;
  setup->facts.budget_source = "all of the machine's device";
  return {};
}

// A file that states no workspace at all says nothing about them: what the machine has learned counts.
void fill_unstated_workspaces(const Machine& machine, Graph* graph) {
  for (const Op& op : graph->ops)
    if (op.workspace != 0) return;
  const int64_t filled = fill_workspaces(machine, graph);
  if (filled > 0) {
    notice("the file states no workspaces: those of %s ops are what '%s' has learned",
           grouped(filled).c_str(), machine.name.c_str());
  }
}

}  // namespace

void add_step_options(CLI::App& verb, StepOptions* o) {
  verb.add_option("--goal", o->goal,
                  "Steps alone: fit (the first plan), latency, throughput (the step repeats)")
      ->capture_default_str();
  verb.add_flag("--no-recompute", o->no_recompute, "Steps alone: no op runs twice");
  verb.add_flag("--keep-order", o->keep_order, "Steps alone: ops run in the order of the file");
  verb.add_option("--tier", o->tiers,
                  "Steps alone: NAME=PATH[:BYTES] adds a tier in a folder (not tmpfs)");
  verb.add_option("--codec", o->codecs,
                  "Steps alone: CODEC=CLASS or CODEC=TENSOR allows bf16, int8_block or mask for what "
                  "is idle (bf16=activation)");
}

Result<Machine> machine_for_step(const std::string& machine) {
  if (!machine.empty()) return read_step_machine(machine);
  const std::string cached = cached_machine_path();
  if (!cached.empty() && ::access(cached.c_str(), F_OK) == 0) return read_step_machine(cached);
  return quick_machine(".", default_threads());
}

Status read_step_setup(const std::string& path, FileKind kind, const std::string& text,
                       const std::string& memory, const std::string& machine,
                       const StepOptions& o, StepSetup* setup) {
  HR_TRY(read_goal(o.goal, &setup->request.goal));
  HR_ASSIGN(setup->machine, machine_for_step(machine));
  for (const std::string& tier : o.tiers) HR_TRY(add_tier(tier, &setup->machine));
  HR_TRY(verify(setup->machine).within("--machine"));
  HR_TRY(read_memory(memory, setup->machine, setup));
  HR_ASSIGN(Workload workload, read_workload(path, kind, text));
  fill_unstated_workspaces(setup->machine, &workload.graph);
  for (const std::string& codec : o.codecs) HR_TRY(allow_codec(codec, &workload));
  setup->name = workload.graph.name.empty() ? std::filesystem::path(path).filename().string()
                                            : workload.graph.name;
  setup->workload = std::make_shared<const Workload>(std::move(workload));
  StepRequest& r = setup->request;
  r.name = setup->name;
  r.workload = setup->workload;
  r.machine = &setup->machine;
  r.cost.rows = setup->workload->graph.max_rows;
  r.reorder = !o.keep_order;
  r.recompute = !o.no_recompute;
  setup->facts.workload = setup->name;
  setup->facts.machine = setup->machine.name;
  setup->facts.budget = r.budget;
  setup->facts.goal = name_of(r.goal);
  return {};
}

}  // namespace headrace::cli
