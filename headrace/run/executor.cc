#include "headrace/run/executor.h"

#include <cstring>

#include "headrace/base/system.h"
#include "headrace/run/executor_state.h"

namespace headrace {
namespace {

// One run of one Program.
class Run {
 public:
  Run(Executor::Moved& moved, std::vector<Held>& held, Prepared& p, const StepRows& rows,
      Trace* trace)
      : moved_(moved), held_(held), p_(p), rows_(rows), trace_(trace), start_(monotonic_ns()) {
    if (trace_ == nullptr) return;
    trace_->records.assign(p.program.instrs.size(), TraceRecord());
    trace_->stall_ns = trace_->loaded_bytes = trace_->gathered_bytes = trace_->stored_bytes = 0;
  }

  Status compute(ExecutorState& state, const ComputeStep& c, size_t step) {
    const Nanos begin = monotonic_ns();
    Nanos ready = begin;
    bool waited = false;
    for (size_t k = 0; k < c.weights.size(); ++k) {
      Held& h = held_[static_cast<size_t>(c.weights[k])];
      HR_CHECK(h.here, "a weight is used before its load was issued");
      if (h.pending.value == 0) continue;
      Status arrived = state.wait(h);
      if (!arrived.ok()) return arrived.within("load of '" + weight_name(*c.op, k) + "'");
      waited = true;
      if (trace_ != nullptr && h.record >= 0) {
        trace_->records[static_cast<size_t>(h.record)].end_ns = monotonic_ns() - start_;
      }
    }
    if (c.gathered) {
      Status arrived = state.wait_gathers();
      if (!arrived.ok()) {
        return arrived.within("rows of '" + p_.program.graph->at(c.op->inputs[0]).name + "'");
      }
      waited = true;
    }
    if (waited) {
      ready = monotonic_ns();
      moved_.load_wait_ns += ready - begin;
    }
    const OpContext context{*p_.program.graph, *c.op, c.inputs, c.outputs, c.updates,
                            c.workspace,       rows_, state.pool};
    c.kernel(context);
    if (trace_ != nullptr) {
      TraceRecord& r = trace_->records[step];
      r.stall_ns = ready - begin;
      r.begin_ns = ready - start_;
      r.end_ns = monotonic_ns() - start_;
      trace_->stall_ns += r.stall_ns;
    }
    for (Tier* tier : state.tiers) {
      if (tier != nullptr) tier->poll();
    }
    return {};
  }

  Status load(ExecutorState& state, const Instr& i, const TransferStep& t, size_t step) {
    Held& h = held_[static_cast<size_t>(t.held)];
    HR_CHECK(!h.here, "a load of what is held already");
    HR_ASSIGN(h.pending, state.tiers[i.tier.index()]->load(t.from, t.to));
    h.here = true;
    h.tier = i.tier.value;
    h.offset = t.to.data() - state.arena.base();
    h.record = static_cast<int32_t>(step);
    moved_.loaded += t.from.bytes;
    note_transfer(step, t.from.bytes);
    if (trace_ != nullptr) trace_->loaded_bytes += t.from.bytes;
    return {};
  }

  // Each row's page-rounded superset, see gathered_row_stride.
  Status gather(ExecutorState& state, const Instr& i, const TransferStep& t, size_t step) {
    const Tensor& table = *t.tensor;
    const Bytes stride = gathered_row_stride(table);
    const Bytes width = row_bytes(table.dtype, table.cols);
    Bytes total = 0;
    state.gather_tier = i.tier.value;
    for (int64_t r = 0; r < rows_.rows(); ++r) {
      FileExtent row = table.source;
      row.offset += rows_.tokens[static_cast<size_t>(r)] * width;
      row.bytes = width;
      const LoadExtent e = load_extent(row);
      const TierExtent from{row.file, e.offset, e.bytes};
      const std::span<std::byte> to =
          t.to.subspan(static_cast<size_t>(r * stride), static_cast<size_t>(e.bytes));
      HR_ASSIGN(const Ticket ticket, state.tiers[i.tier.index()]->load(from, to));
      state.gathers.push_back(ticket);
      total += e.bytes;
    }
    moved_.gathered += total;
    note_transfer(step, total);
    if (trace_ != nullptr) trace_->gathered_bytes += total;
    return {};
  }

  Status detach(ExecutorState& state, const TransferStep& t) {
    Held& h = held_[static_cast<size_t>(t.held)];
    HR_TRY(state.wait(h));
    h.here = false;
    h.record = -1;
    return {};
  }

  void finish() {
    if (trace_ != nullptr) trace_->total_ns = monotonic_ns() - start_;
    for (Held& h : held_) h.record = -1;
  }

 private:
  // The k-th weight among the inputs.
  const std::string& weight_name(const Op& op, size_t k) const {
    const Graph& g = *p_.program.graph;
    for (TensorId t : op.inputs) {
      if (t.valid() && g.at(t).role == Role::kWeight && k-- == 0) return g.at(t).name;
    }
    HR_CHECK(false, "a weight that the op does not have");
  }

  void note_transfer(size_t step, Bytes bytes) {
    if (trace_ == nullptr) return;
    TraceRecord& r = trace_->records[step];
    r.begin_ns = r.end_ns = monotonic_ns() - start_;
    r.bytes = bytes;
  }

  Executor::Moved& moved_;
  std::vector<Held>& held_;
  Prepared& p_;
  const StepRows& rows_;
  Trace* trace_;
  Nanos start_;
};

Status enter(ExecutorState& state, Prepared& p) {
  if (state.current == p.id && p.program.cyclic) return {};
  std::vector<bool> expected(state.held.size(), false);
  for (const Prepared::Entry& e : p.entry) {
    Held& h = state.held[static_cast<size_t>(e.held)];
    HR_CHECK(h.here && h.offset == e.offset, "a program is entered from another state");
    expected[static_cast<size_t>(e.held)] = true;
  }
  for (size_t i = 0; i < state.held.size(); ++i) {
    if (expected[i] || !state.held[i].here) continue;
    HR_TRY(state.wait(state.held[i]));
    state.held[i].here = false;
  }
  for (const Prepared::Constant& c : p.constants) {
    std::memcpy(c.to, c.values->data(), c.values->size() * sizeof(float));
  }
  state.current = p.id;
  return {};
}

Status walk(ExecutorState& state, Prepared& p, Run& run, const std::atomic<bool>* cancel) {
  const auto& instrs = p.program.instrs;
  for (size_t s = 0; s < instrs.size(); ++s) {
    const size_t at = static_cast<size_t>(p.index[s]);
    Status status;
    switch (instrs[s].kind) {
      case InstrKind::kCompute:
        if (cancel != nullptr && cancel->load(std::memory_order_relaxed)) {
          return error(Code::kCancelled, "stopped on request");
        }
        status = run.compute(state, p.computes[at], s);
        break;
      case InstrKind::kLoad: status = run.load(state, instrs[s], p.transfers[at], s); break;
      case InstrKind::kGather: status = run.gather(state, instrs[s], p.transfers[at], s); break;
      case InstrKind::kDetach: status = run.detach(state, p.transfers[at]); break;
      case InstrKind::kStore:
      case InstrKind::kEncode:
      case InstrKind::kDecode:
        status = error(Code::kUnsupported, "a Store in an inference program");
        break;
    }
    if (!status.ok()) {
      const bool compute = instrs[s].kind == InstrKind::kCompute;
      return status.within("at " + (compute ? p.computes[at].op->name
                                            : p.transfers[at].tensor->name));
    }
  }
  return {};
}

}  // namespace

Executor::Executor(Arena& arena, std::vector<Tier*> tiers, ThreadPool& pool)
    : state_(std::make_unique<ExecutorState>(arena, std::move(tiers), pool)) {}

Executor::~Executor() { state_->drain(); }

Result<PreparedPtr> Executor::prepare(Program program) {
  HR_ASSIGN(PreparedPtr prepared,
            prepare_program(std::move(program), state_->arena, state_->names));
  prepared->id = ++state_->last_id;
  state_->held.resize(state_->names.size());
  state_->gathers.reserve(static_cast<size_t>(prepared->program.graph->max_rows));
  return prepared;
}

const Program& Executor::program_of(const Prepared& prepared) { return prepared.program; }

Status Executor::run(Prepared& prepared, const StepRows& rows, Trace* trace,
                     const std::atomic<bool>* cancel) {
  if (!state_->failed.ok()) return state_->failed.within("nothing runs after an error");
  HR_CHECK(rows.rows() >= 1 && rows.rows() <= prepared.program.graph->max_rows,
           "rows within what the program was planned for");
  Status status = enter(*state_, prepared);
  if (status.ok()) {
    Run run(state_->moved, state_->held, prepared, rows, trace);
    status = walk(*state_, prepared, run, cancel);
    run.finish();
  }
  if (!status.ok()) {
    state_->failed = status;
    state_->drain();
  }
  return status;
}

std::span<const float> Executor::output(const Prepared& prepared, std::string_view name) const {
  const Program& p = prepared.program;
  for (const Residency& r : p.residencies) {
    if (!r.tensor.valid()) continue;
    const Tensor& t = p.graph->at(r.tensor);
    if (t.role != Role::kOutput || t.name != name) continue;
    const std::span<std::byte> bytes = state_->arena.at(r.offset, t.bytes);
    return {reinterpret_cast<const float*>(bytes.data()), bytes.size() / sizeof(float)};
  }
  return {};
}

const Executor::Moved& Executor::moved() const { return state_->moved; }

}  // namespace headrace
