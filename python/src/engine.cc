#include <atomic>

#include "headrace/train/engine.h"
#include "python/src/common.h"

namespace headrace::python {
namespace {

// An op that the caller may now compute.
struct TurnView {
  std::string op;
  // (address, bytes); (0, 0): none.
  std::vector<std::pair<uint64_t, int64_t>> inputs, outputs, updates;
};

// True once the last tensor that was borrowed with it is gone. Set by whoever frees that tensor,
// with the interpreter's lock or without.
struct ReleaseFlag {
  std::shared_ptr<std::atomic<bool>> released = std::make_shared<std::atomic<bool>>(false);
};

// The structures that DLPack exchanges (dmlc/dlpack, include/dlpack/dlpack.h, ABI 0.x: a capsule
// called "dltensor", renamed "used_dltensor" by who takes it, who then owes the call of `deleter`).
struct DlTensor {
  void* data;
  struct { int32_t type, id; } device;  // 1: CPU
  int32_t ndim;
  struct { uint8_t code, bits; uint16_t lanes; } dtype;  // 1: unsigned integer
  int64_t* shape;
  int64_t* strides;  // null: dense
  uint64_t byte_offset;
};
struct DlManaged {
  DlTensor tensor;
  void* context;
  void (*deleter)(DlManaged*);
};

// What stands behind a borrowed tensor.
struct Loan {
  DlManaged managed;
  int64_t shape[1];
  std::shared_ptr<Arena> arena;
  std::shared_ptr<std::atomic<bool>> released;
};

void give_back(DlManaged* managed) {
  Loan* loan = static_cast<Loan*>(managed->context);
  const auto released = loan->released;
  delete loan;  // the arena may end with it
  released->store(true, std::memory_order_release);
}

// A capsule that nobody took gives its loan back itself.
void end_capsule(PyObject* capsule) {
  if (!PyCapsule_IsValid(capsule, "dltensor")) return;
  auto* managed = static_cast<DlManaged*>(PyCapsule_GetPointer(capsule, "dltensor"));
  managed->deleter(managed);
}

// What torch.from_dlpack and numpy.from_dlpack take: uint8 [bytes] on the CPU, one time.
struct Borrowed {
  Loan* loan = nullptr;
  Borrowed() = default;
  Borrowed(Borrowed&& other) noexcept : loan(std::exchange(other.loan, nullptr)) {}
  ~Borrowed() {
    if (loan != nullptr) give_back(&loan->managed);
  }
};

nb::object dlpack(Borrowed& borrowed) {
  if (borrowed.loan == nullptr)
    throw Raised{error(Code::kUsage, "borrowed bytes can be taken once"), nullptr};
  PyObject* capsule = PyCapsule_New(&borrowed.loan->managed, "dltensor", end_capsule);
  if (capsule == nullptr) throw nb::python_error();
  borrowed.loan = nullptr;
  return nb::steal(capsule);
}

class Engine {
 public:
  Engine(std::shared_ptr<Plan> plan, const std::optional<std::string>& folder, int threads,
         bool paranoid, uint64_t delays)
      : plan_(std::move(plan)) {
    const Program& p = program();
    const std::string& planned = plan_->planned.folder;
    if (planned.empty()) {
      throw Raised{error(Code::kUsage, "plan '%s' is for the tiers of '%s': plan it with folder= "
                         "to run it here", p.name.c_str(), plan_->planned.machine.name.c_str()),
                   nullptr};
    }
    for (const Tensor& t : p.graph->tensors) {
      if (!t.source.valid()) continue;
      throw Raised{error(Code::kUnsupported, "'%s' lies in a file: an engine moves what its caller "
                         "computes and state, not what is read from files", t.name.c_str()),
                   nullptr};
    }
    EngineOptions o;
    o.tiers.resize(p.tiers.size());
    for (size_t t = 1; t < o.tiers.size(); ++t) o.tiers[t].folder = folder.value_or(planned);
    o.threads = threads;
    o.caller_computes = true;
    o.paranoid = paranoid;
    o.wrap = delayed(delays);
    engine_ = check(TrainEngine::start(p, o));
    rows_.tokens = {0};  // workloads have no rows; a run has at least one
  }
  ~Engine() {
    if (!lock_.mine()) (void)engine_.release();
  }

  void begin() {
    const std::lock_guard lock(lock_);
    refuse_if(running_, "a run has begun already: next() until it gives None, or abandon()");
    refuse_if(abandoned_, "the engine was abandoned in the middle of a run: make a new one");
    check(engine_->begin(rows_, &trace_));
    running_ = true;
  }

  std::optional<TurnView> next() {
    const std::lock_guard lock(lock_);
    refuse_if(!running_, "no run has begun: begin() first");
    auto turn = engine_->next();
    if (!turn.ok()) running_ = false;
    check(turn.status());
    if (*turn != nullptr) return view(**turn);
    running_ = false;
    last_ = trace_;
    ++runs_;
    stall_ns_ += trace_.stall_ns;
    return std::nullopt;
  }

  void abandon() {
    const std::lock_guard lock(lock_);
    refuse_if(!running_, "no run has begun: there is nothing to abandon");
    running_ = false;
    check(engine_->abandon());
    abandoned_ = true;
  }

  void read_abandoned(const std::string& name, uint64_t address, int64_t bytes) {
    const std::lock_guard lock(lock_);
    refuse_if(!abandoned_, "the engine was not abandoned: read_state() reads state between runs");
    check(engine_->read_abandoned(name, memory_at(address, bytes)));
  }

  void write_state(const std::string& name, uint64_t address, int64_t bytes, int64_t begin) {
    const std::lock_guard lock(lock_);
    refuse_if(running_, "state is written between runs");
    check(engine_->write(name, begin, memory_at(address, bytes)));
  }

  void read_state(const std::string& name, uint64_t address, int64_t bytes, int64_t begin) {
    const std::lock_guard lock(lock_);
    refuse_if(running_, "state is read between runs");
    refuse_if(abandoned_, "the engine was abandoned: read_abandoned() reads what it left");
    check(engine_->read(name, begin, memory_at(address, bytes)));
  }

  Borrowed borrow(uint64_t address, int64_t bytes, const ReleaseFlag& flag) const {
    const Arena& arena = *engine_->arena();
    const std::byte* at = memory_at(address, bytes).data();
    if (at < arena.base() || bytes > arena.bytes() - (at - arena.base())) {
      throw Raised{error(Code::kUsage, "%lld bytes at %llu do not lie in the engine's arena",
                         static_cast<long long>(bytes), static_cast<unsigned long long>(address)),
                   nullptr};
    }
    auto* loan = new Loan{{}, {bytes}, engine_->arena(), flag.released};
    loan->managed.tensor = {reinterpret_cast<void*>(address), {1, 0}, 1, {1, 8, 1}, loan->shape,
                            nullptr, 0};
    loan->managed.context = loan;
    loan->managed.deleter = give_back;
    flag.released->store(false, std::memory_order_release);
    Borrowed borrowed;
    borrowed.loan = loan;
    return borrowed;
  }

  Run last_run() {
    const std::lock_guard lock(lock_);
    refuse_if(runs_ == 0, "no run has ended yet");
    return {plan_, last_};
  }

  const std::shared_ptr<Plan>& plan() const { return plan_; }
  uint64_t arena_address() const { return reinterpret_cast<uint64_t>(engine_->arena()->base()); }
  int64_t runs() const { return runs_; }
  bool running() const { return running_; }
  double stall_seconds() const { return static_cast<double>(stall_ns_) * 1e-9; }
  TierCounters counters() const {
    TierCounters sum;
    for (const TierCounters& c : engine_->counters()) {
      sum.loaded_bytes += c.loaded_bytes;
      sum.stored_bytes += c.stored_bytes;
    }
    return sum;
  }

 private:
  const Program& program() const { return plan_->planned.plan.program; }

  static void refuse_if(bool wrong, const char* why) {
    if (wrong) throw Raised{Status(Code::kUsage, why), nullptr};
  }

  TurnView view(const Executor::Turn& turn) const {
    const Graph& g = *program().graph;
    const Op& op = g.at(turn.op);
    TurnView v;
    v.op = op.name;
    const auto fill = [&](const std::vector<TensorId>& ids, const auto& at,
                          std::vector<std::pair<uint64_t, int64_t>>* out) {
      for (size_t k = 0; k < ids.size(); ++k) {
        const bool there = at[k] != nullptr;
        out->push_back({reinterpret_cast<uint64_t>(at[k]), there ? g.at(ids[k]).bytes : 0});
      }
    };
    fill(op.inputs, turn.inputs, &v.inputs);
    fill(op.outputs, turn.outputs, &v.outputs);
    fill(op.updates, turn.updates, &v.updates);
    return v;
  }

  std::shared_ptr<Plan> plan_;
  StepRows rows_;
  Trace trace_, last_;  // before the engine, which writes to the first
  std::unique_ptr<TrainEngine> engine_;
  OwnersLock lock_;  // hooks of autograd may come from several threads
  bool running_ = false, abandoned_ = false;
  int64_t runs_ = 0;
  Nanos stall_ns_ = 0;
};

void bind_turn(nb::module_& m) {
  nb::class_<TurnView>(m, "Turn",
                       "An op that may now be computed; addresses hold until the next call.")
      .def_ro("op", &TurnView::op)
      .def_ro("inputs", &TurnView::inputs, "list[(address, bytes)], as the workload lists them.")
      .def_ro("outputs", &TurnView::outputs)
      .def_ro("updates", &TurnView::updates)
      .def("__repr__", [](const TurnView& v) { return "<Turn " + v.op + ">"; });
  nb::class_<ReleaseFlag>(m, "ReleaseFlag", "Says when what was borrowed with it has been freed.")
      .def(nb::init<>())
      .def_prop_ro("released", [](const ReleaseFlag& f) {
        return f.released->load(std::memory_order_acquire);
      });
  nb::class_<Borrowed>(m, "Borrowed",
                       "Bytes of an arena for torch.from_dlpack: uint8 [bytes], once.")
      .def("__dlpack__", [](Borrowed& b, nb::kwargs) { return dlpack(b); }, nb::arg("kwargs"),
           nb::sig("def __dlpack__(self, **kwargs: object) -> object"))
      .def("__dlpack_device__", [](const Borrowed&) { return std::make_pair(1, 0); });
}

}  // namespace

void bind_engine(nb::module_& m) {
  bind_turn(m);
  nb::class_<Engine>(m, "Engine", nb::is_weak_referenceable(),
                     "The arena, the scratch file and the executor of one plan, whose ops the "
                     "caller computes. After an error nothing runs any more. Thread-safe.")
      .def(nb::init<std::shared_ptr<Plan>, const std::optional<std::string>&, int, bool,
                    uint64_t>(),
           nb::arg("plan"), nb::arg("folder") = nb::none(), nb::arg("threads") = 1,
           nb::arg("paranoid") = false, nb::arg("delays") = 0, Unlocked(),
           "folder: of the scratch file, which has no name there; None: where it was planned for. "
           "paranoid: freed memory is filled with NaN, and what comes back is checked. delays: for "
           "tests, transfers start late and out of order, by this seed; 0: they do not.")
      .def("begin", &Engine::begin, Unlocked(), "Begins a run.")
      .def("next", &Engine::next, Unlocked(),
           "Says that the op of the last turn has been computed, waits for what the next one "
           "needs, and returns its Turn; None: the run is over.")
      .def("abandon", &Engine::abandon, Unlocked(),
           "Ends a run before the op of the last turn has been computed. read_abandoned() follows, "
           "and nothing else.")
      .def("read_abandoned", &Engine::read_abandoned, nb::arg("name"), nb::arg("address"),
           nb::arg("bytes"), Unlocked(),
           "Copies the first bytes of a tensor that a later op would have read.")
      .def("write_state", &Engine::write_state, nb::arg("name"), nb::arg("address"),
           nb::arg("bytes"), nb::arg("begin") = 0, Unlocked(),
           "Writes bytes of a persistent tensor, wherever it is; between runs.")
      .def("read_state", &Engine::read_state, nb::arg("name"), nb::arg("address"), nb::arg("bytes"),
           nb::arg("begin") = 0, Unlocked(), "Reads them.")
      .def("borrow", &Engine::borrow, nb::arg("address"), nb::arg("bytes"), nb::arg("flag"),
           "Bytes of the arena as a tensor: torch.from_dlpack(engine.borrow(...)). The arena stays "
           "as long as the tensor does; flag.released becomes True when it is freed.")
      .def("trace", &Engine::last_run, "The last Run that ended.")
      .def_prop_ro("plan", &Engine::plan)
      .def_prop_ro("arena_address", &Engine::arena_address)
      .def_prop_ro("runs", &Engine::runs, "That ended.")
      .def_prop_ro("running", &Engine::running)
      .def_prop_ro("loaded_bytes", [](const Engine& e) { return e.counters().loaded_bytes; },
                   "Since the start.")
      .def_prop_ro("stored_bytes", [](const Engine& e) { return e.counters().stored_bytes; },
                   "Since the start.")
      .def_prop_ro("stall_seconds", &Engine::stall_seconds,
                   "Since the start: runs stood still for transfers.");
}

}  // namespace headrace::python
