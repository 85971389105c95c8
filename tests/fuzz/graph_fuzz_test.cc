// Random graph -> plan -> verify -> run, against a plain evaluation with everything
// resident, bit for bit: every budget, several cycles, transfers late and out of order,
// bytes that nobody may rely on filled with NaN patterns.
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "tests/run/run_testing.h"

namespace headrace {
namespace {

// HEADRACE_FUZZ_SEED=N runs one seed alone, HEADRACE_FUZZ_COUNT=N that many.
int64_t from_environment(const char* name, int64_t otherwise) {
  const char* text = std::getenv(name);
  return text != nullptr ? std::atoll(text) : otherwise;
}

void run_one(uint64_t seed) {
  std::mt19937_64 random(seed);
  const int threads = 1 + static_cast<int>(random() % 2);
  const test::RunnableGraph r = test::runnable(test::random_graph(seed), threads, seed);
  const Status good = verify(*r.graph);
  ASSERT_TRUE(good.ok()) << good.message();
  const Bytes least = least_arena_bytes(*r.graph), full = full_arena_bytes(*r.graph);
  for (int budget = 0; budget < 4; ++budget) {
    const Bytes arena =
        budget == 0 ? least
        : budget == 3
            ? full
            : least +
                  static_cast<Bytes>(random() % static_cast<uint64_t>(full - least + 1));
    const Program cycle = test::planned(r.graph, arena);
    FaultPlan faults;
    faults.delay_polls = static_cast<int>(random() % 6);
    faults.reorder_polls = static_cast<int>(random() % 6);
    faults.seed = seed;
    test::Rig rig(r, cycle.arena_bytes, faults, threads);
    const auto bridge = rig.prepare(test::bridged(cycle, {}));
    const auto prepared = rig.prepare(cycle);
    Prepared* next = bridge.get();
    for (int i = 0; i < 4; ++i) {
      const StepRows rows = test::random_rows(r, random);
      Trace trace;
      const Status s = rig.executor->run(*next, rows, &trace);
      ASSERT_TRUE(s.ok()) << s.message();
      ASSERT_TRUE(test::same_bits(rig.output(*next, rows), test::plain_output(r, rows)))
          << "seed " << seed << " arena " << arena << " cycle " << i;
      rig.poison_free_bytes(Executor::program_of(*next));
      next = prepared.get();
    }
  }
}

TEST(GraphFuzz, EveryRandomGraphComputesTheSameAtEveryBudget) {
  const int64_t one = from_environment("HEADRACE_FUZZ_SEED", 0);
  if (one != 0) return run_one(static_cast<uint64_t>(one));
  const int64_t count = from_environment("HEADRACE_FUZZ_COUNT", 60);
  for (int64_t seed = 1; seed <= count && !HasFatalFailure(); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    run_one(static_cast<uint64_t>(seed));
  }
}

}  // namespace
}  // namespace headrace
