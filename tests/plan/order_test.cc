#include "headrace/plan/order.h"

#include <gtest/gtest.h>

#include <functional>

#include "headrace/plan/order_graph.h"
#include "tests/plan/step_graphs.h"

namespace headrace::plan {
namespace {

using test::StepBuilder;
using test::step_machine;
using test::step_request;

Bytes peak_of(const std::vector<Bytes>& held) {
  return *std::max_element(held.begin(), held.end());
}

// Slow and obvious: the least peak of all orders, by trying each.
Bytes least_peak(const OrderGraph& g) {
  std::vector<int32_t> order;
  std::vector<bool> used(g.n, false);
  Bytes best = INT64_MAX;
  std::function<void()> extend = [&] {
    if (order.size() == g.n) {
      if (valid_order(g, order)) best = std::min(best, peak_of(held_by_order(g, order)));
      return;
    }
    if (!order.empty() && peak_of(held_by_order(g, order)) >= best) return;
    for (size_t o = 0; o < g.n; ++o) {
      if (used[o]) continue;
      bool ready = true;
      for (size_t b = 0; b < g.n; ++b) {
        const auto& after = g.after[b];
        if (!used[b] && std::count(after.begin(), after.end(), static_cast<int32_t>(o))) ready = false;
      }
      if (!ready) continue;
      used[o] = true;
      order.push_back(static_cast<int32_t>(o));
      extend();
      order.pop_back();
      used[o] = false;
    }
  };
  extend();
  return best;
}

// Two long branches that are cheap one after the other and dear side by side.
StepBuilder two_branches() {
  StepBuilder b("branches");
  const TensorId x = b.tensor("x", 4096);
  b.op("begin", {}, {x});
  std::vector<TensorId> ends, wide;
  for (int i = 0; i < 4; ++i) wide.push_back(b.tensor("wide" + std::to_string(i), 1 << 20));
  for (int i = 0; i < 4; ++i) b.op("up" + std::to_string(i), {x}, {wide[static_cast<size_t>(i)]});
  for (int i = 0; i < 4; ++i) {
    ends.push_back(b.tensor("end" + std::to_string(i), 4096));
    b.op("down" + std::to_string(i), {wide[static_cast<size_t>(i)]}, {ends.back()});
  }
  b.op("join", ends, {});
  return b;
}

TEST(Order, BranchesAreRunOneAfterTheOtherWhenThatNeedsLess) {
  const auto workload = two_branches().finish();
  const Machine m = step_machine(1e9);
  const auto orders = choose_orders(step_request(workload, m, 2 << 20), 2);
  ASSERT_EQ(orders.size(), 2u);
  EXPECT_GT(orders[0].peak_bytes, 4 << 20);
  EXPECT_LT(orders[1].peak_bytes, (1 << 20) + (1 << 16));
}

TEST(Order, TheProgramsOwnOrderComesFirstAndAloneWhenNothingIsToGain) {
  const auto workload = test::training_chain(5).finish();
  const Machine m = step_machine(1e9);
  StepRequest r = step_request(workload, m, 1 << 20);
  EXPECT_EQ(choose_orders(r, 3)[0].order, program_order(workload->graph));
  r.reorder = false;
  EXPECT_EQ(choose_orders(r, 3).size(), 1u);
  r.reorder = true;
  r.budget = 1 << 30;
  EXPECT_EQ(choose_orders(r, 3).size(), 1u);
}

TEST(Order, EveryOrderIsOneThatTheOperandsAllow) {
  const Machine m = step_machine(1e9);
  for (uint32_t seed = 0; seed < 60; ++seed) {
    const auto workload = test::random_step(5 + static_cast<int>(seed), seed).finish();
    const StepRequest r = step_request(workload, m, 1);
    Bytes program = 0;
    for (const OrderChoice& c : choose_orders(r, 5)) {
      EXPECT_TRUE(make_problem(r, c.order).ok()) << "seed " << seed << ", " << c.name;
      EXPECT_EQ(c.peak_bytes, swept_peak(workload->graph, c.order));
      if (program == 0) program = c.peak_bytes;
      EXPECT_LE(c.peak_bytes, program);
    }
  }
}

TEST(Order, TheSweptPeakIsThatOfTheProblem) {
  const Machine m = step_machine(1e9);
  for (uint32_t seed = 0; seed < 30; ++seed) {
    const auto workload = test::random_step(30, seed).finish();
    const StepRequest r = step_request(workload, m, 1);
    auto p = make_problem(r, program_order(workload->graph));
    EXPECT_EQ(peak_of(resident_profile(*p)), swept_peak(workload->graph, p->order));
  }
}

TEST(Order, SmallStepsAreOrderedAsWellAsByTryingAllOrders) {
  const Machine m = step_machine(1e9);
  int best = 0, cases = 0;
  for (uint32_t seed = 0; seed < 40; ++seed) {
    const auto workload = test::random_step(9, 1000 + seed).finish();
    const StepRequest r = step_request(workload, m, 1);
    const OrderGraph g(workload->graph);
    Bytes found = INT64_MAX;
    for (const OrderChoice& c : choose_orders(r, 5)) found = std::min(found, c.peak_bytes);
    const Bytes least = least_peak(g);
    ++cases;
    EXPECT_GE(found, least);
    best += found == least ? 1 : 0;
  }
  EXPECT_EQ(best, cases);  // nine ops are one window
}

TEST(Order, WideGraphsTakeLinearWork) {
  const Machine m = step_machine(1e9);
  // One op that 20,000 others read, all joined at the end: quadratic where lists are scanned.
  StepBuilder b("wide");
  const TensorId x = b.tensor("x", 64);
  b.op("begin", {}, {x});
  std::vector<TensorId> ends;
  for (int i = 0; i < 20000; ++i) {
    ends.push_back(b.tensor("t" + std::to_string(i), 64));
    b.op("o" + std::to_string(i), {x}, {ends.back()});
  }
  for (int i = 0; i < 10000; i += 100) {
    b.op("join" + std::to_string(i),
         std::vector<TensorId>(ends.begin() + i, ends.begin() + i + 100), {});
  }
  b.op("join all", std::vector<TensorId>(ends.begin() + 10000, ends.end()), {});
  const auto workload = b.finish();
  const auto orders = choose_orders(step_request(workload, m, 1), 2);
  ASSERT_EQ(orders.size(), 2u);
  EXPECT_LE(orders[1].peak_bytes, 10100 * 64);  // a hundred at a time, then ten thousand
}

}  // namespace
}  // namespace headrace::plan
