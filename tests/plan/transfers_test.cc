// The list scheduler of transfers: what it promises on steps small enough to work out by hand.
#include "headrace/plan/transfers.h"

#include <gtest/gtest.h>

#include "step_graphs.h"

namespace headrace::plan {
namespace {

constexpr Nanos kMs = 1'000'000;
constexpr Bytes kMB = 1'000'000 / 64 * 64;

// a is made by op 0, read by the last op; the ops between make and read small tensors. A state in
// which `moved` bytes of a are moved.
struct OneMove {
  explicit OneMove(double rate, Bytes moved) : machine(test::step_machine(rate)) {
    machine.tiers[1].latency_ns = 0;
    test::StepBuilder b("one");
    const TensorId a = b.tensor("a", kMB);
    b.op("make", {}, {a}, kMs);
    TensorId x = a;
    for (int i = 0; i < 6; ++i) {
      const TensorId y = b.tensor("y" + std::to_string(i), 6400);
      b.op("mid" + std::to_string(i), i == 0 ? std::vector<TensorId>{} : std::vector<TensorId>{x},
           {y}, kMs);
      x = y;
    }
    b.op("use", {a, x}, {b.tensor("z", 64)}, kMs);
    request = test::step_request(b.finish(), machine, 0);
    Result<Problem> p = make_problem(request, program_order(request.workload->graph));
    problem = std::move(p).value();
    problem.budget = 2 * kMB;
    state = std::make_unique<State>(problem, PlaceOptions{});
    state->set(0, 1, {Way::kMove, Codec::kNone, TierId(1), moved});
  }
  Machine machine;
  StepRequest request;
  Problem problem;
  std::unique_ptr<State> state;
};

TEST(Transfers, AMoveThatFitsBetweenItsTouchesCostsNothing) {
  const OneMove x(1e9, kMB);  // 1 ms each way, 6 ms between
  const std::vector<Piece> pieces = pieces_of(*x.state, 0);
  ASSERT_EQ(pieces.size(), 1u);
  EXPECT_TRUE(pieces[0].range.whole());
  const Timeline t = schedule_transfers(*x.state, pieces);
  EXPECT_EQ(t.total_ns, 8 * kMs);
  EXPECT_TRUE(t.stalls.empty());
  EXPECT_EQ(t.listed[0].store, 1);   // as soon as it is written
  EXPECT_EQ(t.listed[0].drop, 2);    // 1 ms later
  EXPECT_GE(t.listed[0].load, 2);
}

TEST(Transfers, AUseWaitsForItsLoadAndNotLonger) {
  const OneMove x(0.25e9, kMB);  // 4 ms each way: 2 ms too late
  const Timeline t = schedule_transfers(*x.state, pieces_of(*x.state, 0));
  ASSERT_EQ(t.stalls.size(), 1u);
  EXPECT_EQ(t.stalls[0].position, 7);
  EXPECT_NEAR(static_cast<double>(t.total_ns), 8e6 + 2e6, 5e5);
}

TEST(Transfers, WhatIsNotStoredInTimeStays) {
  const OneMove x(0.1e9, kMB);  // 10 ms: the gap is over before the store is
  const Timeline t = schedule_transfers(*x.state, pieces_of(*x.state, 0));
  EXPECT_EQ(t.listed[0].drop, -1);
  EXPECT_EQ(t.listed[0].load, -1);
  EXPECT_EQ(t.total_ns, 8 * kMs);
}

TEST(Transfers, PartsComeAndGoOneByOne) {
  const OneMove x(1e9, kMB);
  const std::vector<Piece> pieces = pieces_of(*x.state, kMB / 4);
  ASSERT_GE(pieces.size(), 4u);
  Bytes sum = 0;
  for (const Piece& p : pieces) {
    EXPECT_EQ(p.range.begin, sum);
    sum += p.bytes;
  }
  EXPECT_EQ(sum, kMB);
  EXPECT_EQ(schedule_transfers(*x.state, pieces).total_ns, 8 * kMs);
}

TEST(Transfers, LateStartsLeaveTheStepAsLongAndTheLoadLater) {
  const OneMove x(1e9, kMB);
  const std::vector<Piece> pieces = pieces_of(*x.state, 0);
  const Timeline early = schedule_transfers(*x.state, pieces);
  const Timeline late =
      schedule_transfers(*x.state, pieces, late_starts(*x.state, pieces, early));
  EXPECT_EQ(late.total_ns, early.total_ns);
  EXPECT_GE(late.listed[0].load, early.listed[0].load);
  // At least 15 % of the copy time, or five ops, before the use.
  EXPECT_LE(late.loaded_ns[0], late.begin_ns[7] - kMs * 15 / 100);
}

TEST(State, WhatIsRolledBackWasNever) {
  OneMove x(1e9, 0);
  const Bytes peak = x.state->planned().max();
  x.state->begin();
  x.state->set(0, 1, {Way::kMove, Codec::kNone, TierId(1), kMB});
  x.state->begin();
  EXPECT_TRUE(x.state->try_rerun(0, 1, 0));
  EXPECT_EQ(x.state->reruns(7).size(), 1u);
  EXPECT_EQ(x.state->extra_ns(), kMs);
  x.state->rollback();
  EXPECT_EQ(x.state->value(0).gaps[1].way, Way::kMove);
  EXPECT_TRUE(x.state->reruns(7).empty());
  x.state->rollback();
  EXPECT_EQ(x.state->extra_ns(), 0);
  EXPECT_EQ(x.state->planned().max(), peak);
}

TEST(Profile, AnswersAsAPlainArrayWould) {
  std::mt19937 random(3);
  std::vector<Bytes> plain(37, 5);
  Profile tree(plain);
  for (int i = 0; i < 2000; ++i) {
    int32_t lo = static_cast<int32_t>(random() % 37), hi = static_cast<int32_t>(random() % 37);
    if (lo > hi) std::swap(lo, hi);
    const Bytes bytes = static_cast<Bytes>(random() % 21) - 10;
    tree.add(lo, hi, bytes);
    for (int32_t k = lo; k <= hi; ++k) plain[static_cast<size_t>(k)] += bytes;
    Bytes most = INT64_MIN;
    int32_t first = -1, last = -1;
    const Bytes limit = static_cast<Bytes>(random() % 60) - 30;
    for (int32_t k = lo; k <= hi; ++k) {
      const Bytes b = plain[static_cast<size_t>(k)];
      most = std::max(most, b);
      if (b <= limit) continue;
      if (first < 0) first = k;
      last = k;
    }
    ASSERT_EQ(tree.max(lo, hi), most);
    ASSERT_EQ(tree.first_above(lo, hi, limit), first);
    ASSERT_EQ(tree.last_above(lo, hi, limit), last);
    ASSERT_EQ(tree.at_position(tree.argmax()), tree.max());
  }
}

TEST(Calendar, GivesTheEarliestAndTheLatestFreeTime) {
  Calendar c({10, 20, 30, 40});
  EXPECT_EQ(c.free_between(1, 3), 90);
  EXPECT_EQ(c.take_early(1, 3, 25), 0);    // 20 of op 1, 5 of op 2
  EXPECT_EQ(c.free_between(0, 2), 35);
  EXPECT_EQ(c.take_late(0, 3, 50), 0);     // 40 of op 3, 10 of op 2
  EXPECT_EQ(c.free_between(0, 3), 25);
  EXPECT_EQ(c.take_early(0, 3, 100), 75);  // only 25 were left
}

}  // namespace
}  // namespace headrace::plan
