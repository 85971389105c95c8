#include "headrace/snapshot/replay.h"

#include <algorithm>
#include <cmath>

#include "headrace/plan/step_plan.h"
#include "headrace/snapshot/blame.h"

namespace headrace {
namespace {

class Replayer {
 public:
  Replayer(const MemorySnapshot& snapshot, int32_t device)
      : s_(snapshot), lives_(lifetimes_of(snapshot, device)) {
    const auto d = static_cast<size_t>(device);
    if (d < snapshot.traces.size()) events_ = &snapshot.traces[d];
  }

  Result<Workload> run() {
    if (events_ != nullptr) add_ops();
    if (w_.graph.ops.empty()) {
      return error(Code::kUsage, "the trace gives out no memory: nothing to replay");
    }
    for (const SnapshotBuffer& b : lives_.buffers) {
      if (b.size > 0) add_buffer(b);
    }
    for (Op& op : w_.graph.ops) {
      std::sort(op.inputs.begin(), op.inputs.end());
      op.inputs.erase(std::unique(op.inputs.begin(), op.inputs.end()), op.inputs.end());
    }
    return std::move(w_);
  }

 private:
  void add_ops() {
    w_.graph.name = "replay";
    op_at_.assign(events_->size() + 1, 0);
    int64_t since = 0;
    for (size_t i = 0; i < events_->size(); ++i) {
      const SnapshotEvent& e = (*events_)[i];
      if (e.kind == EventKind::kAlloc && e.size > 0) {
        if (!w_.graph.ops.empty()) set_time(e.time_us - since);
        since = e.time_us;
        Op op;
        op.kind = OpKind::kKernel;
        op.kernel = operator_of(s_, e.stack);
        if (op.kernel.empty()) op.kernel = "alloc";
        op.name = text_of("%s.%zu", op.kernel.c_str(), w_.graph.ops.size());
        w_.graph.ops.push_back(std::move(op));
      }
      op_at_[i] = last_op();
    }
    if (w_.graph.ops.empty()) return;
    op_at_[events_->size()] = last_op();
    set_time(events_->back().time_us - since);
  }
  size_t last_op() const { return w_.graph.ops.empty() ? 0 : w_.graph.ops.size() - 1; }
  // Of the last op. Clocks may step back, and events may have no time.
  void set_time(int64_t us) {
    const auto seconds = static_cast<double>(std::max<int64_t>(us, 0)) * 1e-6;
    w_.graph.ops.back().attrs[Attr::kSeconds] = seconds;
  }

  void add_buffer(const SnapshotBuffer& b) {
    const auto after = static_cast<int32_t>(events_->size());
    Tensor t;
    t.name = text_of("b%zu", w_.graph.tensors.size());
    t.dtype = DType::kI8;
    t.cols = t.bytes = b.size;
    const StepPart part = part_of(s_, b.stack);
    t.data_class = part == StepPart::kOptimizer  ? DataClass::kOptimizer
                   : part == StepPart::kGradient ? DataClass::kGradient
                                                 : DataClass::kActivation;
    PlacementRule rule;
    rule.recompute = false;
    const bool stays = b.end >= after;
    const size_t last = stays ? last_op() : op_at_[static_cast<size_t>(b.last)];
    if (b.begin < 0) {
      t.role = Role::kState;
      if (b.stack < 0) t.data_class = DataClass::kOther;
      rule.pinned = stays;
      rule.tensor = w_.graph.add(std::move(t));
      w_.graph.ops[0].inputs.push_back(rule.tensor);
    } else {
      rule.pinned = stays;
      rule.tensor = w_.graph.add(std::move(t));
      const size_t made = op_at_[static_cast<size_t>(b.begin)];
      w_.graph.ops[made].outputs.push_back(rule.tensor);
      for (size_t op = made + 1; op <= std::min(made + kSettleOps, last); ++op) {
        w_.graph.ops[op].inputs.push_back(rule.tensor);
      }
      if (last <= made) {
        w_.rules.push_back(std::move(rule));
        return;
      }
    }
    w_.graph.ops[last].inputs.push_back(rule.tensor);
    w_.rules.push_back(std::move(rule));
  }

  const MemorySnapshot& s_;
  const Lifetimes lives_;
  const std::vector<SnapshotEvent>* events_ = nullptr;
  std::vector<size_t> op_at_;  // by event: the op that runs then
  Workload w_;
};

}  // namespace

Result<Workload> replay_workload(const MemorySnapshot& snapshot, int32_t device) {
  return Replayer(snapshot, device).run();
}

Result<WouldFit> would_fit(const Workload& workload, const Machine& machine, double slowdown,
                           const std::function<bool()>& before) {
  constexpr double kExact = 0.01;
  StepRequest request;
  request.name = "replay";
  request.workload = std::make_shared<const Workload>(workload);
  request.machine = &machine;
  request.recompute = false;
  request.reorder = false;
  const auto plan = [&](Bytes budget) -> Result<StepResult> {
    if (!before()) return error(Code::kCancelled, "stopped on request");
    request.budget = budget;
    return plan_step(request);
  };
  WouldFit out;
  HR_ASSIGN(const StepResult plenty, plan(Bytes{1} << 50));
  const auto* all = std::get_if<StepPlan>(&plenty);
  if (all == nullptr) return error(Code::kDoesNotFit, "the replayed step has no plan at all");
  out.unlimited_ns = all->predicted.total_ns;
  out.unlimited_bytes = all->unconstrained_peak_bytes;
  out.budget = peak_bytes(all->program);
  // Bisection between what is known to be too little and what is known to do.
  Bytes low = 0;
  HR_ASSIGN(const StepResult nothing, plan(kPage));
  if (const auto* refusal = std::get_if<Infeasible>(&nothing)) low = refusal->needed_bytes;
  out.least = low;
  const double limit = (1 + slowdown) * static_cast<double>(out.unlimited_ns);
  for (Bytes tried = low; tried < out.budget; tried = low + (out.budget - low) / 2) {
    HR_ASSIGN(const StepResult result, plan(tried));
    const auto* p = std::get_if<StepPlan>(&result);
    if (p != nullptr && static_cast<double>(p->predicted.total_ns) <= limit) {
      out.budget = tried;
      out.slowdown = static_cast<double>(p->predicted.total_ns) /
                         static_cast<double>(std::max<Nanos>(out.unlimited_ns, 1)) - 1;
      out.moved_bytes = p->predicted.loaded_bytes + p->predicted.stored_bytes;
    } else {
      low = tried;
    }
    const auto gap = static_cast<double>(out.budget - low);
    if (gap < kExact * static_cast<double>(out.budget)) break;
  }
  return out;
}

}  // namespace headrace
