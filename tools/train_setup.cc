#include "tools/train_setup.h"

#include <filesystem>
#include <nlohmann/json.hpp>

#include "headrace/base/safe_file.h"
#include "headrace/base/system.h"
#include "headrace/base/system_memory.h"
#include "headrace/session/quick_probe.h"
#include "tools/disk_folder.h"
#include "tools/step_input.h"

namespace headrace::cli {
namespace {

// The folder, or the nearest above it that is there.
std::string nearest(const std::string& folder) {
  std::filesystem::path p = std::filesystem::absolute(folder).lexically_normal();
  std::error_code ignored;
  while (!std::filesystem::exists(p, ignored) && p.has_relative_path()) p = p.parent_path();
  return p;
}

// On a disk, whether it is there or will be made.
Status check_folder(const std::string& name, const std::string& folder) {
  HR_ASSIGN(const FolderFacts facts, look_at_folder(nearest(folder)));
  return facts.in_memory ? refuse_memory(name, folder) : Status();
}

// "NAME=FOLDER[:BYTES]".
Result<StateTier> read_tier(const std::string& text) {
  HR_ASSIGN(const TierOption option, parse_tier_option(text, "FOLDER"));
  const StateTier tier{option.name, option.folder, option.bytes};
  if (tier.name == "device" || tier.name == "file") {
    return error(Code::kUsage, "--tier %s: that name is taken; choose another", tier.name.c_str());
  }
  HR_TRY(check_folder("--tier " + tier.name, tier.folder));
  HR_TRY(make_folders(tier.folder));
  return tier;
}

Result<Bytes> read_memory(const TrainCliOptions& o) {
  BudgetOptions b;
  b.memory = o.memory;
  HR_ASSIGN(const Setup setup, read_setup(b));
  return setup.session.memory_bytes;
}

}  // namespace

Result<std::unique_ptr<RunFolder>> RunFolder::make(const std::string& folder) {
  std::unique_ptr<RunFolder> out(new RunFolder);
  const std::filesystem::path there = nearest(folder);
  std::filesystem::path p = std::filesystem::absolute(folder).lexically_normal();
  for (; p != there && p.has_relative_path(); p = p.parent_path()) out->made_.push_back(p);
  HR_TRY(make_folders(folder));
  return out;
}

RunFolder::~RunFolder() {
  if (kept_ || made_.empty()) return;
  // Not what another process may have begun there meanwhile.
  std::error_code ignored;
  for (const char* begun : {"metrics.jsonl", "checkpoints"}) {
    if (std::filesystem::exists(made_[0] / begun, ignored)) return;
  }
  std::filesystem::remove_all(made_[0], ignored);
  for (const std::filesystem::path& p : made_) std::filesystem::remove(p, ignored);  // when empty
}

std::string changed_since(const std::string& config_then, const TrainConfig& now) {
  const auto then = nlohmann::json::parse(config_then, nullptr, false);
  const auto here = nlohmann::json::parse(to_json(now), nullptr, false);
  if (!then.is_object() || !here.is_object()) return "";
  std::string out;
  for (const auto& [key, value] : here.items()) {
    const bool of_samples_or_sums = key != "name" && key != "out" && key != "steps" &&
                                    key != "checkpoint_every" && key != "keep_checkpoints" &&
                                    key != "eval_every" && key != "recompute";
    if (!of_samples_or_sums || (then.contains(key) && then[key] == value)) continue;
    out += (out.empty() ? "" : ", ") + key;
  }
  return out;
}

void add_train_options(CLI::App& verb, TrainCliOptions* o) {
  verb.add_option("config", o->config, "What to train: a JSON file, see docs/guide/training.md")
      ->required();
  verb.add_option("--memory", o->memory,
                  "Budget of the whole process: 512MiB, 2GB, 60% (of auto), auto")
      ->capture_default_str();
  verb.add_option("--threads", o->threads, "Worker threads (default: every CPU)")
      ->check(CLI::Range(1, 1024));
  verb.add_option("--steps", o->steps, "Optimizer steps, instead of the config's")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 40));
  verb.add_option("--tier", o->tiers,
                  "NAME=FOLDER[:BYTES]: state may go there (default: the run's folder); not tmpfs");
  verb.add_option("--machine", o->machine,
                  "Rates of this machine (default: the run's disk is probed once)");
  verb.add_flag("--no-profile", o->no_profile,
                "Predict how long ops take instead of measuring each once");
  verb.add_flag("--paranoid", o->paranoid,
                "Check what comes back from files, fill freed memory with NaN");
}

Result<TrainSetup> read_train_setup(const TrainCliOptions& o) {
  TrainSetup setup;
  TrainOptions& t = setup.options;
  HR_ASSIGN(const TrainConfig config, read_train_config(o.config));
  t.config = with_absolute_paths(config);
  if (o.steps > 0) t.config.steps = o.steps;
  t.threads = o.threads > 0 ? o.threads : default_threads();
  HR_ASSIGN(t.memory_bytes, read_memory(o));
  HR_TRY(check_folder("\"out\"", t.config.out));
  HR_ASSIGN(setup.folder, RunFolder::make(t.config.out));
  for (const std::string& tier : o.tiers) {
    HR_ASSIGN(StateTier read, read_tier(tier));
    t.tiers.push_back(std::move(read));
  }
  t.profile = !o.no_profile;
  t.paranoid = o.paranoid;
  if (o.machine.empty()) {
    t.machine = quick_machine(t.config.out, t.threads);
  } else {
    HR_ASSIGN(t.machine, read_step_machine(o.machine));
  }
  HR_ASSIGN(setup.initial, InitialWeights::open(t.config));
  setup.model = setup.initial->model();
  return setup;
}

}  // namespace headrace::cli
