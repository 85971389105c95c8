#include "headrace/train/replan.h"

#include <algorithm>

#include "headrace/sim/simulate.h"

namespace headrace {
namespace {

constexpr double kGain = 0.97;
constexpr Bytes kEnoughToTell = 256 * kKiB;

using Interval = std::pair<Nanos, Nanos>;

Nanos covered(std::vector<Interval> intervals) {
  std::sort(intervals.begin(), intervals.end());
  Nanos sum = 0, end = 0;
  for (const auto& [from, to] : intervals) {
    sum += std::max<Nanos>(0, to - std::max(from, end));
    end = std::max(end, to);
  }
  return sum;
}

// Of the first time that each op ran.
std::vector<Nanos> op_times(const Program& program, const Trace& trace) {
  std::vector<Nanos> times(program.graph->ops.size(), 0);
  for (size_t i = 0; i < program.instrs.size(); ++i) {
    const Instr& instr = program.instrs[i];
    if (instr.kind != InstrKind::kCompute || times[instr.op.index()] > 0) continue;
    times[instr.op.index()] = std::max<Nanos>(1, trace.records[i].end_ns - trace.records[i].begin_ns);
  }
  return times;
}

}  // namespace

Machine measured_machine(const Machine& machine, const Program& program, const Trace& trace) {
  Machine out = machine;
  for (size_t t = 1; t < out.tiers.size(); ++t) {
    for (const InstrKind kind : {InstrKind::kLoad, InstrKind::kStore}) {
      std::vector<Interval> busy;
      Bytes bytes = 0;
      for (size_t i = 0; i < program.instrs.size(); ++i) {
        if (program.instrs[i].kind != kind || program.instrs[i].tier.index() != t) continue;
        const TraceRecord& r = trace.records[i];
        busy.emplace_back(r.begin_ns, r.end_ns);
        bytes += r.bytes;
      }
      const Nanos ns = covered(std::move(busy));
      if (bytes < kEnoughToTell || ns <= 0) continue;
      const double rate = static_cast<double>(bytes) * 1e9 / static_cast<double>(ns);
      (kind == InstrKind::kLoad ? out.tiers[t].load_bytes_per_s
                                : out.tiers[t].store_bytes_per_s) = rate;
    }
  }
  return out;
}

Result<std::optional<Replan>> plan_again(const TrainPlan& plan, const Trace& trace) {
  const Program& program = plan.plan.program;
  const std::vector<Nanos> times = op_times(program, trace);
  const Machine machine = measured_machine(plan.machine, program, trace);
  Program now = program;
  for (Instr& i : now.instrs) {
    if (i.kind == InstrKind::kCompute) i.cost_ns = times[i.op.index()];
  }
  for (size_t t = 1; t < now.tiers.size(); ++t) {
    now.tiers[t].load_bytes_per_s = machine.tiers[t].load_bytes_per_s;
    now.tiers[t].store_bytes_per_s = machine.tiers[t].store_bytes_per_s;
  }
  auto step = std::make_shared<TrainStep>(*plan.step);
  for (size_t o = 0; o < times.size(); ++o) {
    step->workload.graph.ops[o].attrs[Attr::kSeconds] = static_cast<double>(times[o]) * 1e-9;
  }
  Replan again;
  again.now_ns = simulate(now).total_ns;
  again.plan = plan;
  again.plan.machine = machine;
  again.plan.step = step;
  HR_ASSIGN(StepResult result, plan_step(train_request(again.plan, step, plan.arena_bytes)));
  StepPlan* better = std::get_if<StepPlan>(&result);
  if (better == nullptr) return std::optional<Replan>();
  again.then_ns = better->predicted.total_ns;
  if (static_cast<double>(again.then_ns) > kGain * static_cast<double>(again.now_ns)) {
    return std::optional<Replan>();
  }
  again.plan.plan = std::move(*better);
  return std::optional<Replan>(std::move(again));
}

}  // namespace headrace
