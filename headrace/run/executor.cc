#include "headrace/run/executor.h"

#include <cmath>
#include <cstring>
#include <utility>

#include "headrace/kernel/half.h"
#include "headrace/run/executor_state.h"

namespace headrace {
namespace {

// Elements before the first that is not finite; all of them otherwise.
int64_t finite_elements(const Tensor& t, const std::byte* at) {
  const int64_t n = t.rows * t.cols;
  int64_t i = 0;
  if (t.dtype == DType::kF32) {
    const float* x = reinterpret_cast<const float*>(at);
    while (i < n && std::isfinite(x[i])) ++i;
  } else if (t.dtype == DType::kBF16) {
    const uint16_t* x = reinterpret_cast<const uint16_t*>(at);
    while (i < n && std::isfinite(bf16_to_f32(x[i]))) ++i;
  } else if (t.dtype == DType::kF16) {
    const uint16_t* x = reinterpret_cast<const uint16_t*>(at);
    while (i < n && std::isfinite(f16_to_f32(x[i]))) ++i;
  } else {
    i = n;
  }
  return i;
}

Status check_finite(const Graph& g, const ComputeStep& c) {
  const auto check = [&](const std::vector<TensorId>& ids,
                         const std::vector<std::byte*>& at) -> Status {
    for (size_t k = 0; k < ids.size(); ++k) {
      const Tensor& t = g.at(ids[k]);
      const int64_t n = finite_elements(t, at[k]);
      if (n == t.rows * t.cols) continue;
      return error(Code::kNotFinite, "element [%lld, %lld] of '%s' is NaN or infinite",
                   static_cast<long long>(n / t.cols), static_cast<long long>(n % t.cols),
                   t.name.c_str());
    }
    return {};
  };
  HR_TRY(check(c.op->outputs, c.outputs));
  return check(c.op->updates, c.updates);
}

}  // namespace

// One run of one Program.
class Walk {
 public:
  Walk(ExecutorState& state, const PreparedProgram& p, const StepRows& rows, Trace* trace)
      : state_(state), p_(p), rows_(rows), trace_(trace), clock_(*state.options.clock),
        start_(clock_.now()) {
    if (trace_ != nullptr) {
      trace_->records.assign(p.program.instrs.size(), TraceRecord());
      trace_->stall_ns = trace_->loaded_bytes = trace_->gathered_bytes = trace_->stored_bytes = 0;
    }
    state_.transfers.begin_run(trace, &rows_, start_);
  }
  ~Walk() { state_.transfers.end_run(); }

  Status run(const std::atomic<bool>* cancel) {
    while (true) {
      HR_ASSIGN(const ComputeStep* const c, next());
      if (c == nullptr) return {};
      if (cancel != nullptr && cancel->load(std::memory_order_relaxed)) {
        return error(Code::kCancelled, "stopped on request");
      }
      const OpContext context{*p_.program.graph, *c->op, c->inputs, c->outputs, c->updates,
                              c->workspace,      rows_,  state_.pool};
      c->kernel(context);
    }
  }

  // The next op, all it waits for being there, after the one before has been computed; null: there
  // is none, and all outputs are there.
  Result<const ComputeStep*> next() {
    if (computing_ != nullptr) {
      HR_TRY(named(at_, end_compute()));
      ++at_;
    }
    for (; at_ < p_.program.instrs.size(); ++at_) {
      if (!p_.freed.empty()) poison(at_);
      const Instr& i = p_.program.instrs[at_];
      if (i.kind == InstrKind::kCompute) {
        HR_TRY(named(at_, begin_compute(p_.computes[static_cast<size_t>(p_.index[at_])])));
        return computing_;
      }
      HR_TRY(named(at_, step(at_, i)));
    }
    // The caller reads the outputs next.
    const Nanos begin = clock_.now();
    HR_ASSIGN(const Nanos ready, wait_for(p_.output_loads, begin));
    if (trace_ != nullptr) trace_->total_ns = ready - start_;
    return static_cast<const ComputeStep*>(nullptr);
  }
  // Instructions before it have been issued.
  size_t position() const { return at_; }

 private:
  // `status` of instruction s, named.
  Status named(size_t s, const Status& status) const {
    if (status.ok()) return status;
    const Instr& i = p_.program.instrs[s];
    const Graph& g = *p_.program.graph;
    const bool compute = i.kind == InstrKind::kCompute;
    return status.within("at " + (compute ? g.at(i.op).name : g.at(i.tensor).name));
  }

  Status step(size_t s, const Instr& i) {
    const int32_t at = p_.index[s];
    switch (i.kind) {
      case InstrKind::kCompute: break;  // next()
      case InstrKind::kEncode:
      case InstrKind::kDecode: return code(p_.codecs[static_cast<size_t>(at)], s, i);
      case InstrKind::kDetach:
        return at >= 0 && !state_.carried.empty() ? state_.arrive(at) : Status();
      case InstrKind::kLoad:
      case InstrKind::kStore:
      case InstrKind::kGather: break;
    }
    HR_ASSIGN(const Bytes bytes, state_.transfers.issue(static_cast<int32_t>(s)));
    count(i.kind, bytes, p_.transfers[static_cast<size_t>(at)].kv);
    return {};
  }

  void count(InstrKind kind, Bytes bytes, bool kv) {
    const bool load = kind == InstrKind::kLoad, store = kind == InstrKind::kStore;
    Executor::Moved& m = state_.moved;
    (load ? m.loaded : store ? m.stored : m.gathered) += bytes;
    if (kv) (load ? m.kv_loaded : m.kv_stored) += bytes;
    if (trace_ == nullptr) return;
    (load    ? trace_->loaded_bytes
     : store ? trace_->stored_bytes
             : trace_->gathered_bytes) += bytes;
  }

  Status begin_compute(const ComputeStep& c) {
    begin_ = clock_.now();
    if (!state_.carried.empty()) {
      for (HeldId w : c.weights) HR_TRY(arrive(w));
    }
    HR_ASSIGN(ready_, wait_for(c.waits, begin_));
    computing_ = &c;
    return {};
  }
  Status end_compute() {
    const ComputeStep& c = *std::exchange(computing_, nullptr);
    if (state_.check_finite) HR_TRY(check_finite(*p_.program.graph, c));
    return done(at_, p_.program.instrs[at_], begin_, ready_);
  }

  Status code(const CodecStep& c, size_t s, const Instr& i) {
    const Nanos begin = clock_.now();
    HR_ASSIGN(const Nanos ready, wait_for(c.waits, begin));
    if (c.encodes) {
      encode(c.codec, c.plain, c.encoded, p_.scratch.get(), state_.pool);
    } else {
      HR_TRY(decode(c.codec, c.encoded, c.plain, p_.scratch.get(), state_.pool));
    }
    return done(s, i, begin, ready);
  }

  Status arrive(HeldId w) {
    waited_ = true;
    return state_.arrive(w);
  }

  // Returns when the instruction may begin.
  Result<Nanos> wait_for(const std::vector<int32_t>& waits, Nanos begin) {
    for (int32_t w : waits) {
      if (state_.transfers.ended(w)) continue;
      waited_ = true;
      const bool kv = p_.transfer(w).kv;
      const Nanos from = kv ? clock_.now() : 0;
      HR_TRY(state_.transfers.finish(w));
      if (kv) state_.moved.kv_wait_ns += clock_.now() - from;
    }
    if (!waited_) return begin;
    waited_ = false;
    const Nanos ready = clock_.now();
    state_.moved.load_wait_ns += ready - begin;
    return ready;
  }

  // After the work of an instruction of stream 0.
  Status done(size_t s, const Instr& i, Nanos begin, Nanos ready) {
    if (state_.options.emulate_compute) HR_TRY(state_.transfers.busy_until(ready + i.cost_ns));
    if (trace_ != nullptr) {
      TraceRecord& r = trace_->records[s];
      r.stall_ns = ready - begin;
      r.begin_ns = ready - start_;
      r.end_ns = clock_.now() - start_;
      trace_->stall_ns += r.stall_ns;
    }
    state_.transfers.poll();
    return state_.transfers.pump();
  }

  void poison(size_t s) {
    for (const std::span<std::byte> bytes : p_.freed[s]) {
      if (!state_.transfers.uses(bytes)) std::memset(bytes.data(), 0xFF, bytes.size());
    }
  }

  ExecutorState& state_;
  const PreparedProgram& p_;
  const StepRows& rows_;
  Trace* trace_;
  Clock& clock_;
  Nanos start_;
  bool waited_ = false;
  size_t at_ = 0;  // the next instruction, or the one of computing_
  const ComputeStep* computing_ = nullptr;
  Nanos begin_ = 0, ready_ = 0;  // of computing_
};

namespace {

// Leaves the Program before; what it still loads for this one goes on.
Status leave_for(ExecutorState& state, const PreparedProgram& p) {
  const auto wanted = [&](HeldId id) {
    for (const PreparedProgram::Place& e : p.entry) {
      if (e.held == id) return true;
    }
    return false;
  };
  if (state.current != nullptr) {
    HR_TRY(state.transfers.hand_over(
        state.carried, [&](const TransferStep& t) { return wanted(t.held); }));
  }
  for (size_t i = 0; i < state.carried.size();) {
    if (wanted(state.carried[i].held)) {
      ++i;
    } else {
      HR_TRY(state.arrive(state.carried[i].held));
    }
  }
  return {};
}

Status enter(ExecutorState& state, const std::shared_ptr<PreparedProgram>& p) {
  if (state.current == p && p->program.cyclic) return {};
  for (const PreparedProgram::Place& e : p->entry) {
    const Held& h = state.held[static_cast<size_t>(e.held)];
    HR_CHECK(h.here && h.offset == e.offset, "a program is entered from another state");
  }
  for (const StatePlace& place : p->state_entry) {
    HR_CHECK(state.agrees(place), "a program is entered from another state");
  }
  HR_TRY(leave_for(state, *p));
  for (const PreparedProgram::Constant& c : p->constants) {
    std::memcpy(c.to, c.values->data(), c.values->size() * sizeof(float));
  }
  state.transfers.enter(*p);
  state.current = p;
  // As of the end of the run: nobody looks before that.
  for (Held& h : state.held) h.here = false;
  for (const PreparedProgram::Place& e : p->exit) {
    state.held[static_cast<size_t>(e.held)] = {true, e.offset};
  }
  state.set_state(p, true);
  return {};
}

Status ready_for(const ExecutorState& s, const Prepared& prepared, const StepRows& rows) {
  if (!s.failed.ok()) return s.failed.within("nothing runs after an error");
  HR_CHECK(rows.rows() >= 1 && rows.rows() <= prepared.body->program.graph->max_rows,
           "rows within what the program was planned for");
  return {};
}

Status end_of_run(ExecutorState& s, const PreparedProgram& p) {
  return p.program.cyclic ? Status() : s.transfers.finish_stores();
}

}  // namespace

Executor::Executor(Arena& arena, std::vector<Tier*> tiers, ThreadPool& pool,
                   ExecutorOptions options)
    : state_(std::make_unique<ExecutorState>(arena, std::move(tiers), pool, std::move(options))) {}

Executor::~Executor() { state_->drain(); }

Result<PreparedPtr> Executor::prepare(Program program) {
  ExecutorState& s = *state_;
  HR_ASSIGN(PreparedPtr prepared,
            prepare_program(std::move(program), {s.arena, s.tiers, s.options, s.names}));
  s.held.resize(s.names.size());
  s.seen.resize(s.names.size());
  s.transfers.reserve(*prepared->body);
  s.carried.reserve(2 * (s.held.size() + prepared->body->transfers.size()));
  return prepared;
}

void Executor::check_finite(bool on) { state_->check_finite = on; }

const Program& Executor::program_of(const Prepared& prepared) { return prepared.body->program; }

Status Executor::run(Prepared& prepared, const StepRows& rows, Trace* trace,
                     const std::atomic<bool>* cancel) {
  ExecutorState& s = *state_;
  HR_TRY(ready_for(s, prepared, rows));
  Status status = enter(s, prepared.body);
  if (status.ok()) {
    Walk walk(s, *prepared.body, rows, trace);
    status = walk.run(cancel);
    if (status.ok()) status = end_of_run(s, *prepared.body);
  }
  if (!status.ok()) s.fail(status);
  return status;
}

Status Executor::begin(Prepared& prepared, const StepRows& rows, Trace* trace) {
  ExecutorState& s = *state_;
  HR_CHECK(s.options.caller_computes && s.walk == nullptr, "one run at a time, by the caller");
  HR_TRY(ready_for(s, prepared, rows));
  if (Status status = enter(s, prepared.body); !status.ok()) {
    s.fail(status);
    return status;
  }
  s.caller_rows = rows;
  s.walk = std::make_shared<Walk>(s, *prepared.body, s.caller_rows, trace);
  return {};
}

Result<const Executor::Turn*> Executor::next() {
  ExecutorState& s = *state_;
  HR_CHECK(s.walk != nullptr, "next() between begin() and the end of the run");
  auto c = s.walk->next();
  Status status = c.status();
  if (status.ok() && c.value() == nullptr) status = end_of_run(s, *s.current);
  if (!status.ok()) {
    s.fail(status);
    s.walk.reset();
    return status;
  }
  if (c.value() == nullptr) {
    s.walk.reset();
    return static_cast<const Turn*>(nullptr);
  }
  const ComputeStep& step = *c.value();
  const Graph& g = *s.current->program.graph;
  s.turn = {OpId(step.op - g.ops.data()), step.inputs, step.outputs, step.updates};
  return &s.turn;
}

Status Executor::abandon() {
  ExecutorState& s = *state_;
  HR_CHECK(s.walk != nullptr, "abandon() between begin() and the end of the run");
  const Step at(static_cast<int64_t>(s.walk->position()));
  s.walk.reset();
  const Status status = s.settle();
  if (status.ok()) s.abandoned_at = at;  // else nobody knows what is there
  s.fail(status.ok() ? error(Code::kCancelled, "left in the middle of a step") : status);
  return status;
}

std::span<const float> Executor::output(const Prepared& prepared, std::string_view name) const {
  const Program& p = prepared.body->program;
  for (const Residency& r : p.residencies) {
    if (!r.tensor.valid() || r.tier != kDevice || r.end != p.exit()) continue;
    const Tensor& t = p.graph->at(r.tensor);
    if (t.role != Role::kOutput || t.name != name || r.codec != Codec::kNone) continue;
    const std::span<std::byte> bytes = state_->arena.at(r.offset - r.range.begin, t.bytes);
    return {reinterpret_cast<const float*>(bytes.data()), bytes.size() / sizeof(float)};
  }
  return {};
}

const Status& Executor::failed() const { return state_->failed; }

const Executor::Moved& Executor::moved() const { return state_->moved; }

}  // namespace headrace
