// Measured costs of ops: all of them, and those of this process' other steps without running them.
#include "headrace/train/profile.h"

#include <gtest/gtest.h>

#include "headrace/ir/train_ops.h"

namespace headrace::test {
namespace {

// x + y, [rows, 8], twice.
Graph sums_of(int64_t rows) {
  Graph g;
  g.max_rows = rows;
  const auto add = [&](const char* name, Role role) {
    Tensor t;
    t.name = name;
    t.role = role;
    t.rows = rows;
    t.cols = 8;
    t.bytes = t.rows * row_bytes(t.dtype, t.cols);
    return g.add(std::move(t));
  };
  const TensorId x = add("x", Role::kState), y = add("y", Role::kState);
  for (const char* name : {"a", "b"}) {
    Op op;
    op.kind = OpKind::kKernel;
    op.kernel = "hr.add";
    op.name = name;
    op.inputs = {x, y};
    op.outputs = {add(name, Role::kOutput)};
    g.ops.push_back(std::move(op));
  }
  return g;
}

double seconds(const Graph& g, size_t i) { return g.ops[i].attr(Attr::kSeconds); }

TEST(Profile, OpsThatAreAlikeHaveTheSameCost) {
  Graph g = sums_of(37);
  ASSERT_TRUE(measure_ops({&g}, kMiB, 1).ok());
  EXPECT_GT(seconds(g, 0), 0);
  EXPECT_EQ(seconds(g, 0), seconds(g, 1));
}

TEST(Profile, WhatHasBeenMeasuredTakesNoMemoryAndNoOtherValueLater) {
  Graph first = sums_of(41), again = sums_of(41), other = sums_of(43), threads = sums_of(41);
  ASSERT_TRUE(measure_ops({&first}, kMiB, 1).ok());
  ASSERT_TRUE(measure_ops({&again}, 0, 1).ok());
  EXPECT_EQ(seconds(again, 0), seconds(first, 0));
  EXPECT_FALSE(measure_ops({&again, &other}, 0, 1).ok()) << "another shape";
  EXPECT_FALSE(measure_ops({&threads}, 0, 2).ok()) << "another number of threads";
}

TEST(Profile, WhatDoesNotFitKeepsItsPredictionAndIsMeasuredWhenItDoes) {
  Graph g = sums_of(1000);
  for (Op& op : g.ops) op.attrs[Attr::kSeconds] = 123;
  ASSERT_TRUE(measure_ops({&g}, 4096, 1).ok());
  EXPECT_EQ(seconds(g, 0), 123);
  ASSERT_TRUE(measure_ops({&g}, kMiB, 1).ok());
  EXPECT_LT(seconds(g, 0), 123);
}

}  // namespace
}  // namespace headrace::test
