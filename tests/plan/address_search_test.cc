// Planning in addresses: every plan is a valid Program whose extents lie inside the budget, also where
// the budget is the least that any plan needs.
#include "headrace/plan/address_search.h"

#include <gtest/gtest.h>

#include "headrace/plan/infeasible.h"
#include "headrace/plan/placement_build.h"
#include "headrace/plan/order.h"
#include "headrace/sim/simulate.h"
#include "tests/plan/oracle_steps.h"

namespace headrace::plan {
namespace {

using testing::OracleStep;

const std::vector<OracleStep>& steps() {
  static const auto* all = new std::vector<OracleStep>(testing::oracle_steps(
      std::string(HEADRACE_SOURCE_DIR) + "/tests/data/oracle/steps.txt"));
  return *all;
}

// The Program of a search from nothing moved; empty when no extents were found.
Program program_of(const Problem& p, int64_t tries, Nanos* predicted) {
  PlaceOptions options;
  options.recompute = p.request->recompute;
  auto start = ruled_state(p, options);
  EXPECT_TRUE(start.ok());
  AddressPlan plan = search_addresses(*start, tries);
  if (!plan.found) return {};
  *predicted = plan.predicted_ns;
  EmitOptions emit;
  emit.extents = &plan.extents;
  auto emitted = emit_step(p, plan.schedule, emit);
  EXPECT_TRUE(emitted.ok()) << p.request->name << ": " << emitted.status().message();
  if (!emitted.ok()) return {};
  const Status status = verify(emitted->program);
  EXPECT_TRUE(status.ok()) << p.request->name << ": " << status.message();
  EXPECT_LE(emitted->program.arena_bytes, p.request->budget) << p.request->name;
  return std::move(emitted->program);
}

TEST(AddressSearch, ItsPlansAreValidWithinTheBudgetAndTakeWhatTheyWerePredictedTo) {
  int64_t planned = 0;
  for (size_t i = 0; i < steps().size(); i += 3) {
    const OracleStep& s = steps()[i];
    const Machine machine = testing::two_tiers(s.link);
    const StepRequest r = testing::request_of(s, machine);
    auto p = make_problem(r, program_order(s.workload->graph));
    ASSERT_TRUE(p.ok());
    ASSERT_TRUE(can_plan_in_addresses(*p)) << s.name;
    Nanos predicted = 0;
    const Program program = program_of(*p, 60, &predicted);
    if (program.graph == nullptr) continue;
    ++planned;
    const double simulated = static_cast<double>(simulate(program).total_ns);
    EXPECT_NEAR(simulated / static_cast<double>(predicted), 1, 0.25) << s.name;
  }
  EXPECT_GE(planned, static_cast<int64_t>(steps().size() / 3 * 95 / 100));
}

TEST(AddressSearch, TheSameRequestGivesTheSamePlan) {
  const OracleStep& s = steps()[7];
  const Machine machine = testing::two_tiers(s.link);
  const StepRequest r = testing::request_of(s, machine);
  auto p = make_problem(r, program_order(s.workload->graph));
  ASSERT_TRUE(p.ok());
  Nanos first = 0, second = 0;
  const Program one = program_of(*p, 200, &first), two = program_of(*p, 200, &second);
  ASSERT_NE(one.graph, nullptr);
  EXPECT_EQ(to_text(one), to_text(two));
  EXPECT_EQ(first, second);
}

TEST(AddressSearch, MoreTriesNeverGiveALongerStepThanPlacingAlone) {
  const OracleStep& s = steps()[12];
  const Machine machine = testing::two_tiers(s.link);
  const StepRequest r = testing::request_of(s, machine);
  auto p = make_problem(r, program_order(s.workload->graph));
  ASSERT_TRUE(p.ok());
  Nanos none = 0, some = 0;
  program_of(*p, 0, &none);
  program_of(*p, 300, &some);
  EXPECT_LT(some, none);
}

TEST(AddressSearch, StepsWithRulesOrInACycleAreLeftToPlacement) {
  const OracleStep& s = steps()[0];
  const Machine machine = testing::two_tiers(s.link);
  StepRequest r = testing::request_of(s, machine);
  auto cyclic = std::make_shared<Workload>(*s.workload);
  cyclic->cyclic = true;
  r.workload = cyclic;
  auto p = make_problem(r, program_order(cyclic->graph));
  ASSERT_TRUE(p.ok());
  EXPECT_FALSE(can_plan_in_addresses(*p));
}

}  // namespace
}  // namespace headrace::plan
