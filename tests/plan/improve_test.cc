// Local search never makes a step longer, and makes some shorter.
#include "headrace/plan/improve.h"

#include <gtest/gtest.h>

#include "placement_check.h"
#include "step_graphs.h"

namespace headrace::plan {
namespace {

TEST(Improve, NeverLengthensAStepAndShortensSome) {
  int shorter = 0;
  for (uint32_t seed = 0; seed < 8; ++seed) {
    const Machine machine = test::step_machine(3e8);
    auto b = test::random_step(30, 100 + seed);
    StepRequest request = test::step_request(b.finish(), machine, 0);
    Result<Problem> made = make_problem(request, program_order(request.workload->graph));
    Problem p = std::move(made).value();
    const std::vector<Bytes> profile = resident_profile(p);
    p.budget = *std::max_element(profile.begin(), profile.end()) * 7 / 10;
    PlaceOptions without;
    without.improve = false;
    PlaceOptions with;
    with.effort = 0.1;
    const auto plain = place(p, without), better = place(p, with);
    ASSERT_TRUE(plain.ok() && better.ok());
    ASSERT_EQ(plain->fits, better->fits);
    if (!plain->fits) continue;
    // Loads as late as possible may cost one part in 2000.
    EXPECT_LE(better->predicted_ns, plain->predicted_ns * 2001 / 2000);
    shorter += better->predicted_ns < plain->predicted_ns * 99 / 100 ? 1 : 0;
    EXPECT_EQ(test::ScheduleChecker(p, better->schedule).run(), "");
  }
  EXPECT_GT(shorter, 0);
}

}  // namespace
}  // namespace headrace::plan
