#include "headrace/train/captured_step.h"

#include <algorithm>
#include <cmath>

#include "headrace/base/json_text.h"
#include "headrace/ir/train_ops.h"
#include "headrace/train/captured_graph.h"
#include "headrace/train/train_report.h"

namespace headrace {
namespace {

// Rows [begin, end) of a step index a table of `size` rows; targets may be below zero.
struct IndexRange {
  std::string op;
  int64_t begin, end, size;
};

struct IndexRanges {
  std::vector<IndexRange> tokens, targets;
};

IndexRanges ranges_of(const Graph& g) {
  IndexRanges out;
  for (const Op& op : g.ops) {
    const bool embed = op.kernel == "hr.embed";
    if (!embed && op.kernel != "hr.loss") continue;
    const int64_t begin = op.iattr(Attr::kRowBegin);
    IndexRange range{op.name, begin, begin + g.at(op.outputs[0]).rows, 0};
    const size_t first = embed ? 0 : 1;
    const size_t last = embed ? op.inputs.size() - (op.iattr(Attr::kPositions) > 0 ? 1 : 0)
                              : 1 + loss_tiles(op);
    for (size_t i = first; i < last; ++i) range.size += g.at(op.inputs[i]).rows;
    (embed ? out.tokens : out.targets).push_back(std::move(range));
  }
  return out;
}

Status check_indices(std::span<const int32_t> values, const std::vector<IndexRange>& ranges,
                     const char* what, int32_t least) {
  for (const IndexRange& range : ranges) {
    for (int64_t row = range.begin; row < range.end; ++row) {
      const int32_t value = values[static_cast<size_t>(row)];
      if (value >= least && value < range.size) continue;
      return error(Code::kUsage, "op '%s': %s %d of row %lld is not from %d to below %lld",
                   range.op.c_str(), what, value, static_cast<long long>(row), least,
                   static_cast<long long>(range.size));
    }
  }
  return {};
}

TrainOptions train_options(const CapturedForward& forward, const CapturedOptions& o) {
  TrainOptions t;
  t.config.name = forward.name.empty() ? "captured step" : forward.name;
  t.config.out = o.folder;
  t.config.precision = forward.precision;
  t.config.batch = forward.sequences;
  t.config.sequence = forward.rows / forward.sequences;
  t.memory_bytes = o.memory_bytes;
  t.budget_of = BudgetOf::kGrowth;
  t.baseline_bytes = o.baseline_bytes;
  t.threads = o.threads;
  t.machine = o.machine;
  t.tiers = o.tiers;
  t.profile = o.profile;
  t.paranoid = o.paranoid;
  t.arena_bytes = o.arena_bytes;
  return t;
}

}  // namespace

struct CapturedStep::State {
  CapturedForward forward;
  size_t groups = 0;
  bool clips = false;
  bool paranoid = false;
  decltype(CapturedOptions::wrap) wrap;
  TrainPlan plan;
  IndexRanges ranges;
  std::unique_ptr<CapturedState> parameters;
  std::unique_ptr<TrainEngine> engine;
  StepRows rows;
  Trace trace;
  int64_t done = 0;

  Status started() const {
    return engine != nullptr ? Status() : error(Code::kUsage, "the step has not been started");
  }
  std::vector<double> micro_losses() const;
};

CapturedStep::CapturedStep(std::unique_ptr<State> state) : state_(std::move(state)) {}
CapturedStep::~CapturedStep() = default;

Result<std::unique_ptr<CapturedStep>> CapturedStep::plan(std::string_view forward_json,
                                                         std::string_view optimizer_json,
                                                         const CapturedOptions& options,
                                                         TrainRefusal* refusal) {
  auto s = std::make_unique<State>();
  HR_ASSIGN(s->forward, parse_captured_forward(forward_json));
  HR_ASSIGN(const CapturedOptimizer optimizer, parse_captured_optimizer(optimizer_json));
  s->groups = optimizer.groups.size();
  s->clips = optimizer.clip_norm > 0;
  s->paranoid = options.paranoid;
  s->wrap = options.wrap;
  StepOptions o;
  o.threads = options.threads;
  o.guard = true;
  HR_ASSIGN(std::vector<std::shared_ptr<TrainStep>> steps,
            build_captured_steps(s->forward, optimizer, o));
  HR_ASSIGN(s->plan, plan_steps(train_options(s->forward, options), std::move(steps), refusal));
  s->ranges = ranges_of(s->plan.step->workload.graph);
  s->parameters = std::make_unique<CapturedState>(s->forward, *s->plan.step);
  return std::unique_ptr<CapturedStep>(new CapturedStep(std::move(s)));
}

const TrainPlan& CapturedStep::train_plan() const { return state_->plan; }

std::string CapturedStep::plan_text(bool color) const {
  TextStyle style;
  style.color = color;
  return train_plan_table(state_->plan, style);
}

Status CapturedStep::start() {
  State& s = *state_;
  if (s.engine != nullptr) return error(Code::kUsage, "the step has been started before");
  EngineOptions options;
  options.threads = s.plan.options.threads;
  options.paranoid = s.paranoid;
  options.wrap = s.wrap;
  options.tiers.resize(1);
  for (const StateTier& tier : s.plan.options.tiers) options.tiers.push_back({tier.folder, ""});
  HR_ASSIGN(s.engine, TrainEngine::start(s.plan.plan.program, options));
  return {};
}

Result<Bytes> CapturedStep::bytes_of(std::string_view name, ParameterState state) const {
  return state_->parameters->bytes_of(name, state);
}

Status CapturedStep::write(std::string_view name, ParameterState state, Bytes begin,
                           std::span<const std::byte> bytes) {
  HR_TRY(state_->started());
  return state_->parameters->write(state_->engine.get(), name, state, begin, bytes);
}

Status CapturedStep::read(std::string_view name, ParameterState state, Bytes begin,
                          std::span<std::byte> out) {
  HR_TRY(state_->started());
  return state_->parameters->read(state_->engine.get(), name, state, begin, out);
}

Status CapturedStep::write_input(std::string_view name, int64_t i,
                                 std::span<const std::byte> bytes) {
  HR_TRY(state_->started());
  for (const CapturedInput& input : state_->forward.inputs) {
    if (input.value.name != name) continue;
    const Bytes size = input.value.rows * row_bytes(input.value.dtype, input.value.cols);
    if (i < 0 || i >= input.count || static_cast<Bytes>(bytes.size()) != size) {
      return error(Code::kUsage, "input '%s': number %lld of %lld, %zu bytes of %lld",
                   input.value.name.c_str(), static_cast<long long>(i),
                   static_cast<long long>(input.count), bytes.size(),
                   static_cast<long long>(size));
    }
    return state_->engine->write(input_tensor(input, i), 0, bytes);
  }
  return error(Code::kUsage, "the step has no input '%s'", printable(std::string(name)).c_str());
}

int64_t CapturedStep::done() const { return state_->done; }
void CapturedStep::set_done(int64_t steps) { state_->done = std::max<int64_t>(0, steps); }

// Outputs have the sum of a micro-batch's losses over the step's counted targets.
std::vector<double> CapturedStep::State::micro_losses() const {
  const int64_t n = micro_batches_of(forward);
  if (n == 1) return {static_cast<double>(engine->output("loss")[0])};
  const auto counted = [&](int64_t begin, int64_t end) {
    return static_cast<double>(std::count_if(rows.targets.begin() + begin,
                                             rows.targets.begin() + end,
                                             [](int32_t t) { return t >= 0; }));
  };
  const double all = counted(0, forward.rows);
  std::vector<double> losses;
  for (int64_t m = 0; m < n; ++m) {
    const IndexRange& range = ranges.targets[static_cast<size_t>(m)];
    const double own = counted(range.begin, range.end);
    const double share = static_cast<double>(engine->output(loss_output(m))[0]);
    losses.push_back(own > 0 ? share * all / own : 0);
  }
  return losses;
}

Result<CapturedResult> CapturedStep::run(const CapturedRows& given) {
  State& s = *state_;
  HR_TRY(s.started());
  const auto n = static_cast<size_t>(s.forward.rows);
  if (given.tokens.size() != n || given.targets.size() != n || given.rates.size() != s.groups) {
    return error(Code::kUsage,
                 "a step takes %zu tokens, %zu targets and %zu rates, not %zu, %zu and %zu", n, n,
                 s.groups, given.tokens.size(), given.targets.size(), given.rates.size());
  }
  HR_TRY(check_indices(given.tokens, s.ranges.tokens, "token", 0));
  HR_TRY(check_indices(given.targets, s.ranges.targets, "target", -1));
  for (const double rate : given.rates) {
    if (!(rate >= 0 && rate < 1e9)) return error(Code::kUsage, "a rate is %g", rate);
  }
  s.rows.tokens.assign(given.tokens.begin(), given.tokens.end());
  s.rows.targets.assign(given.targets.begin(), given.targets.end());
  s.rows.rates.assign(given.rates.begin(), given.rates.end());
  s.rows.seed = given.seed;
  s.rows.step = s.done + 1;
  HR_TRY(s.engine->run(s.rows, &s.trace));
  CapturedResult out;
  out.loss = static_cast<double>(s.engine->output("loss")[0]);
  out.losses = s.micro_losses();
  const std::span<const float> clip = s.engine->output("clip");
  HR_CHECK(clip.size() == 2, "a captured step has a guard");
  out.skipped = clip[0] == 0;
  if (s.clips) out.gradient_norm = static_cast<double>(clip[1]);
  if (!out.skipped) ++s.done;
  return out;
}

const Trace& CapturedStep::trace() const { return state_->trace; }
TrainEngine& CapturedStep::engine() { return *state_->engine; }

}  // namespace headrace
