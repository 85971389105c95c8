// What the files of the extension headrace._core share. Each of them binds one noun of the library
// and holds no logic of its own; errors of the library become headrace.HeadraceError.
//
// Every call that reads, writes, plans or copies gives up the interpreter's lock while it does.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <unistd.h>

#include <functional>
#include <mutex>
#include <span>

#include "headrace/session/workload_plan.h"
#include "headrace/tier/fault_tier.h"

namespace headrace::python {

namespace nb = nanobind;
using Unlocked = nb::call_guard<nb::gil_scoped_release>;

// On its way to Python. `refusal` is there when it becomes a DoesNotFit with its numbers.
struct Raised {
  Status status;
  std::shared_ptr<const Infeasible> refusal;
};

inline void check(const Status& status) {
  if (!status.ok()) throw Raised{status, nullptr};
}
template <typename T>
T check(Result<T> result) {
  check(result.status());
  return std::move(result).value();
}

// Memory that Python names by address; it says how much there is, and that it stays.
inline std::span<std::byte> memory_at(uint64_t address, int64_t bytes) {
  if (bytes < 0 || (address == 0 && bytes > 0)) {
    throw Raised{error(Code::kUsage, "%lld bytes at address %llu", static_cast<long long>(bytes),
                       static_cast<unsigned long long>(address)), nullptr};
  }
  return {reinterpret_cast<std::byte*>(address), static_cast<size_t>(bytes)};
}

// The lock around something that has threads, rings and transfers: they are those of the process
// that made it. In a fork of that process (a worker of a DataLoader, multiprocessing) there are
// none to wait for, and another thread may have held the lock: it is refused there, and whoever
// ends the thing there leaves it as it is.
class OwnersLock {
 public:
  bool mine() const { return ::getpid() == owner_; }
  void lock() {
    if (!mine()) {
      throw Raised{error(Code::kUsage, "process %d is a fork of process %d, which has the engine "
                         "and the scratch files of headrace: only that one can use them",
                         static_cast<int>(::getpid()), static_cast<int>(owner_)), nullptr};
    }
    mutex_.lock();
  }
  void unlock() { mutex_.unlock(); }

 private:
  const pid_t owner_ = ::getpid();
  std::mutex mutex_;
};

// For tests: what goes around the tiers of an engine so that each transfer starts late, after up to
// a few polls by `seed`, out of order, with NaN where it will arrive. 0: nothing does.
inline std::function<std::unique_ptr<Tier>(std::unique_ptr<Tier>, size_t)> delayed(uint64_t seed) {
  if (seed == 0) return {};
  return [seed](std::unique_ptr<Tier> tier, size_t t) {
    FaultPlan plan;
    plan.reorder_polls = 5;
    plan.seed = seed + t;
    plan.max_tickets = 1024;  // as many as engines ask of their files
    return make_fault_tier(std::move(tier), plan);
  };
}

void write_text(const std::string& path, const std::string& text);

// A plan, with what it was asked for; shared by the engines that run it.
struct Plan {
  WorkloadPlan planned;
};
// A run of it: predicted, or recorded by an engine.
struct Run {
  std::shared_ptr<const Plan> plan;
  Trace trace;
};

void bind_errors(nb::module_& m);
void bind_machine(nb::module_& m);
void bind_plan(nb::module_& m);
void bind_engine(nb::module_& m);
void bind_spill(nb::module_& m);
void bind_process(nb::module_& m);
void bind_doctor(nb::module_& m);
void bind_step(nb::module_& m);

}  // namespace headrace::python
