#include "headrace/train/captured_step.h"

#include <nanobind/stl/tuple.h>

#include "headrace/base/system.h"
#include "headrace/base/system_memory.h"
#include "headrace/session/quick_probe.h"
#include "python/src/common.h"

namespace headrace::python {
namespace {

using headrace::CapturedStep;

// losses of the micro-batches, norm of all gradients before clipping, whether nothing changed
using RunResult = std::tuple<std::vector<double>, std::optional<double>, bool>;

// One at a time: the library's is not thread-safe.
class Step {
 public:
  Step(const std::string& forward, const std::string& optimizer, int64_t memory,
       const std::optional<std::string>& folder, int threads, int64_t baseline, bool profile,
       const Machine* machine, bool paranoid, int64_t arena, uint64_t delays) {
    if (memory <= 0) {
      fail(error(Code::kUsage, "memory of %lld bytes", static_cast<long long>(memory)));
    }
    CapturedOptions o;
    o.baseline_bytes = baseline > 0 ? baseline : process_memory().rss;
    o.memory_bytes = memory;
    o.folder = folder.value_or(scratch_folder());
    if (o.folder.empty()) {
      fail(error(Code::kUsage, "no folder on a disk that can be written to: say folder="));
    }
    if (check(look_at_folder(o.folder)).in_memory) {
      fail(error(Code::kUsage, "folder '%s' is in memory, which is what is scarce: name one on a "
                 "disk", o.folder.c_str()));
    }
    o.threads = threads > 0 ? threads : default_threads();
    o.machine = machine != nullptr ? *machine : quick_machine(o.folder, o.threads);
    o.profile = profile;
    o.paranoid = paranoid;
    o.arena_bytes = arena;
    o.wrap = delayed(delays);
    TrainRefusal refusal;
    auto step = CapturedStep::plan(forward, optimizer, o, &refusal);
    if (!step.ok() && refusal.needed_bytes > 0) {
      auto why = std::make_shared<Infeasible>();
      why->needed_bytes = refusal.needed_bytes;
      why->budget = memory;
      why->options = refusal.options;
      throw Raised{step.status(), why};
    }
    step_ = check(std::move(step));
    folder_ = o.folder;
  }
  ~Step() {
    if (!lock_.mine()) (void)step_.release();
  }

  void start() {
    const std::lock_guard lock(lock_);
    check(open().start());
  }
  void close() {
    const std::lock_guard lock(lock_);
    step_.reset();
  }
  int64_t bytes_of(const std::string& name, int state) {
    const std::lock_guard lock(lock_);
    return check(open().bytes_of(name, state_of(state)));
  }
  void write(const std::string& name, int state, uint64_t address, int64_t bytes, int64_t begin) {
    const std::lock_guard lock(lock_);
    check(open().write(name, state_of(state), begin, memory_at(address, bytes)));
  }
  void read(const std::string& name, int state, uint64_t address, int64_t bytes, int64_t begin) {
    const std::lock_guard lock(lock_);
    check(open().read(name, state_of(state), begin, memory_at(address, bytes)));
  }
  void write_input(const std::string& name, uint64_t address, int64_t bytes, int64_t index) {
    const std::lock_guard lock(lock_);
    check(open().write_input(name, index, memory_at(address, bytes)));
  }
  RunResult run(uint64_t tokens, uint64_t targets, int64_t rows, const std::vector<double>& rates,
                uint64_t seed) {
    const std::lock_guard lock(lock_);
    CapturedRows given;
    given.tokens = integers(tokens, rows);
    given.targets = integers(targets, rows);
    given.rates = rates;
    given.seed = seed;
    const CapturedResult r = check(open().run(given));
    return {r.losses, r.gradient_norm, r.skipped};
  }
  int64_t done() {
    const std::lock_guard lock(lock_);
    return open().done();
  }
  void set_done(int64_t steps) {
    const std::lock_guard lock(lock_);
    open().set_done(steps);
  }
  std::string plan_text(bool color) {
    const std::lock_guard lock(lock_);
    return open().plan_text(color);
  }
  std::shared_ptr<Plan> plan() {
    const std::lock_guard lock(lock_);
    if (plan_ != nullptr) return plan_;
    const TrainPlan& p = open().train_plan();
    plan_ = std::make_shared<Plan>();
    plan_->planned.plan = p.plan;
    plan_->planned.machine = p.machine;
    plan_->planned.folder = folder_;
    StepRequestFacts& facts = plan_->planned.facts;
    facts.workload = p.options.config.name;
    facts.machine = p.machine.name;
    facts.budget = p.arena_bytes;
    facts.budget_source = "what memory= leaves";
    facts.goal = name_of(Goal::kThroughput);
    return plan_;
  }
  Run trace() {
    const std::shared_ptr<Plan> of = plan();
    const std::lock_guard lock(lock_);
    if (open().trace().records.empty()) fail(error(Code::kUsage, "no step has been run yet"));
    return {of, open().trace()};
  }
  std::vector<std::pair<std::string, int64_t>> ledger() {
    const std::lock_guard lock(lock_);
    std::vector<std::pair<std::string, int64_t>> out;
    for (const BudgetLedger::Item& item : open().train_plan().ledger.items()) {
      out.emplace_back(item.name, item.bytes);
    }
    return out;
  }
  int64_t moved(bool loaded) {
    const std::lock_guard lock(lock_);
    const Trace& t = open().trace();
    return loaded ? t.loaded_bytes + t.gathered_bytes : t.stored_bytes;
  }
  double stall_seconds() {
    const std::lock_guard lock(lock_);
    return static_cast<double>(open().trace().stall_ns) * 1e-9;
  }

 private:
  [[noreturn]] static void fail(const Status& status) { throw Raised{status, nullptr}; }
  CapturedStep& open() {
    if (step_ == nullptr) fail(error(Code::kUsage, "the step has been closed"));
    return *step_;
  }
  static ParameterState state_of(int state) {
    if (state < 0 || state > 3) {
      fail(error(Code::kUsage, "state %d: 0 is the value, 1 and 2 are moments, 3 is the master",
                 state));
    }
    return static_cast<ParameterState>(state);
  }
  static std::span<const int32_t> integers(uint64_t address, int64_t count) {
    const std::span<std::byte> bytes = memory_at(address, count * Bytes{4});
    return {reinterpret_cast<const int32_t*>(bytes.data()), static_cast<size_t>(count)};
  }

  OwnersLock lock_;
  std::unique_ptr<CapturedStep> step_;
  std::shared_ptr<Plan> plan_;
  std::string folder_;
};

}  // namespace

void bind_step(nb::module_& m) {
  nb::class_<Step>(m, "CapturedStep", nb::is_weak_referenceable(),
                   "A training step given as JSON (headrace/train/captured_step.h), planned for a "
                   "budget and run by the library. After an error nothing runs any more. "
                   "Thread-safe.")
      .def(nb::init<const std::string&, const std::string&, int64_t,
                    const std::optional<std::string>&, int, int64_t, bool, const Machine*, bool,
                    int64_t, uint64_t>(),
           nb::arg("forward"), nb::arg("optimizer"), nb::arg("memory"), nb::kw_only(),
           nb::arg("folder") = nb::none(), nb::arg("threads") = 0, nb::arg("baseline_bytes") = 0,
           nb::arg("profile") = true, nb::arg("machine") = nb::none(), nb::arg("paranoid") = false,
           nb::arg("arena_bytes") = 0, nb::arg("delays") = 0, Unlocked(),
           "Plans; nothing runs yet. memory: bytes that the process may grow by, above "
           "baseline_bytes (0: what is resident now). threads 0: all CPUs. arena_bytes: at most so "
           "much of it is used (0: all). delays: as Engine's.")
      .def("start", &Step::start, Unlocked(), "Takes memory and scratch file; all state is zero.")
      .def("close", &Step::close, Unlocked(), "Gives both back.")
      .def("bytes_of", &Step::bytes_of, nb::arg("name"), nb::arg("state") = 0,
           "Bytes of a parameter (state 0), its first (1) or second (2) moment, or the f32 master "
           "that it is rounded from (3); 0: it has none.")
      .def("write", &Step::write, nb::arg("name"), nb::arg("state"), nb::arg("address"),
           nb::arg("bytes"), nb::arg("begin") = 0, Unlocked(),
           "Copies bytes to a parameter or moment, in the layout of the caller's own tensor.")
      .def("read", &Step::read, nb::arg("name"), nb::arg("state"), nb::arg("address"),
           nb::arg("bytes"), nb::arg("begin") = 0, Unlocked(), "Copies them back.")
      .def("write_input", &Step::write_input, nb::arg("name"), nb::arg("address"),
           nb::arg("bytes"), nb::arg("index") = 0, Unlocked(),
           "Copies an input of the next run; index: of which repetition of the micro-batch.")
      .def("run", &Step::run, nb::arg("tokens_address"), nb::arg("targets_address"),
           nb::arg("rows"), nb::arg("rates"), nb::arg("seed") = 0, Unlocked(),
           "One step on int32 tokens [rows] and targets [rows] (-1: not counted); rates: the "
           "learning rate of each group. Returns (losses, norm, skipped): the mean of each "
           "micro-batch over its counted targets; the norm of all gradients before clipping, None "
           "without clipping; whether loss or norm was not finite, so that nothing changed.")
      .def_prop_rw("done", &Step::done, &Step::set_done, "Steps of the optimizer so far.")
      .def("plan_text", &Step::plan_text, nb::arg("color") = false, "The table before step 1.")
      .def_prop_ro("plan", &Step::plan)
      .def_prop_ro("ledger", &Step::ledger, "list[(what, bytes)]: every byte of the budget.")
      .def("trace", &Step::trace, "The last run.")
      .def_prop_ro("loaded_bytes", [](Step& s) { return s.moved(true); }, "Of the last run.")
      .def_prop_ro("stored_bytes", [](Step& s) { return s.moved(false); }, "Of the last run.")
      .def_prop_ro("stall_seconds", &Step::stall_seconds,
                   "Of the last run: it stood still for transfers.");
}

}  // namespace headrace::python
