#include "headrace/train/train_plan.h"

#include <malloc.h>

#include <algorithm>
#include <cerrno>

#include "headrace/base/system.h"
#include "headrace/base/system_memory.h"
#include "headrace/report/step_report.h"
#include "headrace/report/text_style.h"
#include "headrace/session/session_plan.h"
#include "headrace/session/workload_plan.h"
#include "headrace/tier/checksum_tier.h"
#include "headrace/train/checkpoint.h"
#include "headrace/train/profile.h"

namespace headrace {
namespace {

// What the process may still grow by beside the arena: kernel code paged in on first use, stacks,
// metrics, text. Measured at 3 MiB for 300 ops.
constexpr Bytes kGrowth = 3 * kMiB;
constexpr Bytes kGrowthPerThread = 64 * kKiB;
// A Program, prepared, and its Trace.
constexpr Bytes kGrowthPerOp = 8 * kKiB;
// Queues of file tiers.
constexpr Bytes kTransfers = 1 * kMiB;
constexpr Bytes kProcessUnit = kMiB;
// Planned in seconds; more accumulation than that has no use on a machine of this size.
constexpr size_t kMostOps = 20'000;

// A group that no parameter is in was meant for another model, or is a typing error.
Status check_groups(const TrainConfig& config, const std::vector<Parameter>& parameters) {
  const auto& groups = config.optimizer.groups;
  for (size_t i = 0; i < groups.size(); ++i) {
    const auto in_group = [&](const Parameter& p) {
      return p.name.find(groups[i].match) != std::string::npos;
    };
    if (std::any_of(parameters.begin(), parameters.end(), in_group)) continue;
    return error(Code::kUsage,
                 "optimizer: group %zu: no parameter of the model has '%s' in its name (one is "
                 "'%s')",
                 i, groups[i].match.c_str(), parameters.front().name.c_str());
  }
  return {};
}

class Planner {
 public:
  Planner(const TrainOptions& options, std::vector<std::shared_ptr<TrainStep>> steps,
          TrainRefusal* refusal)
      : steps_(std::move(steps)), refusal_(refusal) {
    plan_.options = options;
    plan_.ledger = BudgetLedger(options.memory_bytes);
    process_ = grown();
  }

  Result<TrainPlan> run() {
    for (const auto& step : steps_) {
      Graph& g = step->workload.graph;
      if (g.ops.size() > kMostOps) {
        return error(Code::kUnsupported,
                     "a step of %zu ops; at most %zu are planned: choose larger batches and less "
                     "accumulation",
                     g.ops.size(), kMostOps);
      }
      align_for_disks(&g);
    }
    HR_TRY(choose_tiers());
    HR_TRY(reserve());
    HR_TRY(measure());
    HR_TRY(plan_all());
    // Planning itself takes memory, of which the allocator keeps some.
    ::malloc_trim(0);
    if (const Bytes now = grown(); now > process_) {
      process_ = now;
      HR_TRY(reserve());
      if (plan_.plan.program.arena_bytes > room()) HR_TRY(plan_all());
    }
    plan_.arena_bytes = plan_.plan.program.arena_bytes;
    plan_.full_arena_bytes = plan_.plan.unconstrained_peak_bytes;
    HR_TRY(plan_.ledger.reserve("arena", plan_.arena_bytes));
    return std::move(plan_);
  }

 private:
  // What of the process the budget counts, as it is now.
  Bytes grown() const {
    const TrainOptions& o = plan_.options;
    const Bytes base = o.budget_of == BudgetOf::kGrowth ? o.baseline_bytes : 0;
    return std::max<Bytes>(0, process_memory().rss - base);
  }

  // The device, the file of frozen parameters if there is one, and where state goes.
  Status choose_tiers() {
    const TrainOptions& o = plan_.options;
    Machine& m = plan_.machine;
    m = o.machine;
    m.threads = o.threads;
    const TierInfo disk = m.tiers[1];
    m.tiers.resize(1);
    if (frozen_bytes(steps_[0]->parameters) > 0) {
      plan_.frozen_file = o.config.out + "/frozen.weights";
      TierInfo file = disk;
      file.name = "file";
      file.capacity = 1;  // nothing is stored there
      file.group = 0;
      m.tiers.push_back(file);
    }
    std::vector<StateTier> tiers = o.tiers;
    if (tiers.empty()) tiers.push_back({"scratch", o.config.out, 0});
    for (StateTier& tier : tiers) {
      TierInfo t = disk;
      t.name = tier.name;
      t.capacity = tier.capacity;
      if (!tier.folder.empty()) {
        HR_ASSIGN(const Bytes room, free_on_disk(tier.folder));
        t.capacity = tier.capacity > 0 ? std::min(tier.capacity, room) : room;
        t.alignment = kPage;
      }
      t.group = plan_.frozen_file.empty() ? -1 : 0;  // one disk
      m.tiers.push_back(t);
    }
    plan_.options.tiers = std::move(tiers);
    return verify(m);
  }

  const char* process_item() const {
    return plan_.options.budget_of == BudgetOf::kProcess ? "code, tokenizer, graph"
                                                         : "graph, and growth so far";
  }

  // What is not the arena. When that alone is too much, a plan in no room says what is missing.
  Status reserve() {
    std::vector<BudgetLedger::Item> items = {
        {process_item(), round_up(process_, kProcessUnit)},
        {"plans, transfers, checkpoints, growth",
         train_overhead(*steps_[0], plan_.options.threads)}};
    if (plan_.options.paranoid) items.push_back({"checksums", checksums()});
    Bytes tables = page_tables_of(plan_.options.memory_bytes);
    if (plan_.options.budget_of == BudgetOf::kProcess) {
      tables += round_up(process_memory().page_tables, kProcessUnit / 4);
    }
    items.push_back({"page tables", tables});
    beside_ = 0;
    for (const BudgetLedger::Item& item : items) beside_ += item.bytes;
    plan_.ledger = BudgetLedger(plan_.options.memory_bytes);
    if (beside_ >= plan_.options.memory_bytes) {
      HR_ASSIGN(const StepResult none, plan_step(train_request(plan_, steps_[0], kPage)));
      const Infeasible* no = std::get_if<Infeasible>(&none);
      HR_CHECK(no != nullptr, "a step needs more than a page");
      return refusal(*no, steps_[0]->workload.graph);
    }
    for (const BudgetLedger::Item& i : items) HR_TRY(plan_.ledger.reserve(i.name, i.bytes));
    return {};
  }

  Bytes room() const {
    const Bytes asked = plan_.options.arena_bytes;
    return asked > 0 ? std::min(asked, plan_.ledger.available()) : plan_.ledger.available();
  }

  // If every tensor had a copy in every tier.
  Bytes checksums() const {
    Bytes sum = 0;
    for (const Tensor& t : steps_[0]->workload.graph.tensors) sum += device_bytes(t);
    return checksum_memory(sum) * static_cast<Bytes>(plan_.options.tiers.size());
  }

  Status measure() {
    if (!plan_.options.profile) return {};
    std::vector<Graph*> graphs;
    for (const auto& step : steps_) graphs.push_back(&step->workload.graph);
    return measure_ops(graphs, room(), plan_.options.threads);
  }

  Status plan_all() {
    bool have = false;
    Status refused;
    for (const auto& step : steps_) {
      HR_ASSIGN(StepResult result, plan_step(train_request(plan_, step, room())));
      if (const Infeasible* no = std::get_if<Infeasible>(&result)) {
        if (refused.ok()) refused = refusal(*no, step->workload.graph);
        continue;
      }
      StepPlan& plan = std::get<StepPlan>(result);
      if (have && plan.predicted.total_ns >= plan_.plan.predicted.total_ns) continue;
      have = true;
      plan_.plan = std::move(plan);
      plan_.step = step;
    }
    return have ? Status() : refused;
  }

  // In the terms of a training run: the whole process, and what its config can do about it.
  Status refusal(const Infeasible& no, const Graph& graph) const {
    constexpr size_t kShown = 6;
    const TrainConfig& c = plan_.options.config;
    // What this plan has grown the process by, the next one will.
    const Bytes more = round_up(std::max<Bytes>(0, grown() - process_), kProcessUnit);
    const Bytes least = round_up(budget_around(beside_ + more + no.needed_bytes), kMiB);
    if (refusal_ != nullptr) {
      *refusal_ = {least, {budget_words(plan_.options, least), "smaller micro-batches",
                           "shorter sequences"}};
    }
    std::string text = text_of(
        "%s are not enough for '%s': it takes at least %s (%s for the process itself, %s for op "
        "'%s')\nwhile that op runs, these are in memory together:\n",
        human_bytes(plan_.options.memory_bytes).c_str(), c.name.c_str(),
        budget_words(plan_.options, least).c_str(), human_bytes(beside_ + more).c_str(),
        human_bytes(no.needed_bytes).c_str(), graph.at(no.op).name.c_str());
    Bytes others = no.needed_bytes - no.workspace;
    for (size_t i = 0; i < std::min(kShown, no.live.size()); ++i) {
      const Tensor& t = graph.at(no.live[i]);
      others -= device_bytes(t);
      text += "  " + pad_left(human_bytes(device_bytes(t)), 12) + "  " + t.name + "\n";
    }
    const auto line = [&](Bytes bytes, const char* what) {
      if (bytes > 0) text += "  " + pad_left(human_bytes(bytes), 12) + "  " + what + "\n";
    };
    line(others, "smaller ones");
    line(no.workspace, "the op's workspace");
    if (plan_.options.budget_of == BudgetOf::kGrowth) {
      return Status(Code::kDoesNotFit,
                    text + "smaller micro-batches or shorter sequences take less");
    }
    if (c.batch > 1) {
      text += text_of(
          "\"batch\": 1 with \"accumulation\": %lld takes less and has the same losses; ",
          static_cast<long long>(c.batch * c.accumulation));
    }
    return Status(Code::kDoesNotFit, text + "a shorter \"sequence\" takes less");
  }

  TrainPlan plan_;
  std::vector<std::shared_ptr<TrainStep>> steps_;
  Bytes process_ = 0;
  Bytes beside_ = 0;  // of the budget: what is not the arena
  TrainRefusal* refusal_;  // may be null
};

}  // namespace

StepRequest train_request(const TrainPlan& plan, const std::shared_ptr<const TrainStep>& step,
                       Bytes arena) {
  StepRequest r;
  r.name = plan.options.config.name;
  r.workload = std::shared_ptr<const Workload>(step, &step->workload);
  r.machine = &plan.machine;
  r.budget = arena;
  r.cost.rows = step->workload.graph.max_rows;
  r.goal = Goal::kThroughput;
  r.recompute = plan.options.config.recompute;
  r.reorder = false;  // the builder's order keeps gradients and activations short-lived
  return r;
}

Result<std::vector<TrainBudget>> other_budgets(const TrainPlan& plan) {
  std::vector<TrainBudget> out;
  const Bytes beside = plan.ledger.reserved() - plan.arena_bytes;
  for (double factor : {0.5, 0.7, 0.85, 1.25, 1.5, 2.0}) {
    TrainBudget b;
    b.memory_bytes = round_up(
        static_cast<Bytes>(factor * static_cast<double>(plan.options.memory_bytes)), kMiB);
    const Bytes arena = b.memory_bytes - beside;
    if (arena <= 0) continue;
    // More than all of it buys nothing.
    if (factor > 1 && plan.arena_bytes >= plan.full_arena_bytes) break;
    HR_ASSIGN(const StepResult result, plan_step(train_request(plan, plan.step, arena)));
    if (const StepPlan* p = std::get_if<StepPlan>(&result)) {
      b.fits = true;
      b.step_ns = p->predicted.total_ns;
      b.moved_bytes = p->predicted.loaded_bytes + p->predicted.stored_bytes;
    }
    out.push_back(b);
  }
  return out;
}

Bytes train_overhead(const TrainStep& step, int threads) {
  const Graph& g = step.workload.graph;
  return kGrowth + threads * kGrowthPerThread + static_cast<Bytes>(g.ops.size()) * kGrowthPerOp +
         kTransfers + 2 * kCheckpointBlock + g.max_rows * Bytes{2 * sizeof(int32_t)};
}

Result<TrainPlan> plan_steps(const TrainOptions& options,
                             std::vector<std::shared_ptr<TrainStep>> steps,
                             TrainRefusal* refusal) {
  HR_CHECK(!steps.empty(), "there is a step");
  return Planner(options, std::move(steps), refusal).run();
}

std::string budget_words(const TrainOptions& options, Bytes bytes) {
  const auto mib = static_cast<long long>(ceil_div(bytes, kMiB));
  return options.budget_of == BudgetOf::kProcess ? text_of("--memory %lldMiB", mib)
                                                 : text_of("memory=\"%lldMiB\"", mib);
}

Result<TrainPlan> plan_training(const TrainOptions& options, const StepModel& model) {
  const TrainConfig& c = options.config;
  StepOptions o;
  o.threads = options.threads;
  o.guard = true;
  o.recompute = c.recompute;
  OptimizerConfig optimizer = c.optimizer;
  // A norm that nothing reaches: all gradients are looked at before anything changes.
  if (c.on_nan == "skip" && optimizer.clip_norm == 0) optimizer.clip_norm = 1e29;
  std::vector<std::shared_ptr<TrainStep>> steps;
  for (const MicroOrder order : {MicroOrder::kLayerMajor, MicroOrder::kBatchMajor}) {
    const StepShape shape{c.batch * c.accumulation, c.sequence, c.accumulation, order};
    HR_ASSIGN(TrainStep step, build_train_step(model, shape, optimizer, o));
    steps.push_back(std::make_shared<TrainStep>(std::move(step)));
    if (c.accumulation == 1) break;  // the orders are the same
  }
  HR_TRY(check_groups(c, steps[0]->parameters));
  return plan_steps(options, std::move(steps));
}

}  // namespace headrace
