#include "headrace/kernel/synthetic.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <set>
#include <vector>

namespace headrace {
namespace {

using Memory = std::vector<std::byte>;

// Two inputs, an update, two outputs, a workspace; sizes that end within a word.
struct Step {
  Graph graph;
  Memory a, b, state, out, raw, workspace;

  explicit Step(Bytes scale = 1) {
    const auto add = [&](DType dtype, Bytes bytes) {
      Tensor t;
      t.dtype = dtype;
      t.cols = bytes / info(dtype).block_bytes;
      t.bytes = bytes;
      return graph.add(t);
    };
    Op op;
    op.kind = OpKind::kKernel;
    op.name = "k";
    op.inputs = {add(DType::kF32, 4 * 333 * scale), add(DType::kI8, 77 * scale)};
    op.updates = {add(DType::kF32, 4 * 51 * scale)};
    op.outputs = {add(DType::kF32, 4 * 1001 * scale), add(DType::kI8, 13 * scale)};
    op.workspace = 192;
    graph.ops = {op, op};
    for (size_t i = 0; i < 5; ++i) {
      Memory& m = *std::vector<Memory*>{&a, &b, &state, &out, &raw}[i];
      m.resize(static_cast<size_t>(graph.tensors[i].bytes));
      for (size_t k = 0; k < m.size(); ++k) m[k] = static_cast<std::byte>(k * 7 + i * 31 + k / 256);
    }
    workspace.resize(192, std::byte{0});
  }

  void run(int threads = 1, size_t op = 0) {
    ThreadPool pool(threads, false);
    StepRows rows;
    rows.tokens = {0};
    const std::vector<const std::byte*> inputs = {a.data(), b.data()};
    const std::vector<std::byte*> outputs = {out.data(), raw.data()}, updates = {state.data()};
    find_kernel(graph.ops[op], DeviceKind::kCpu)(
        OpContext{graph, graph.ops[op], inputs, outputs, updates, workspace, rows, pool});
  }
  Memory result() const {
    Memory r = out;
    r.insert(r.end(), raw.begin(), raw.end());
    r.insert(r.end(), state.begin(), state.end());
    return r;
  }
};

Memory result_of(Step step, int threads = 1, size_t op = 0) {
  step.run(threads, op);
  return step.result();
}

TEST(Synthetic, ItIsAFunctionOfItsOperandsAloneForAnyNumberOfThreads) {
  for (const Bytes scale : {1, 50, 1000}) {
    const Step fresh(scale);
    const Memory want = result_of(fresh);
    for (int threads : {1, 2, 3}) {
      Step other = fresh;
      std::memset(other.out.data(), 0xFF, other.out.size());
      std::memset(other.raw.data(), 0xFF, other.raw.size());
      EXPECT_EQ(result_of(other, threads), want) << scale << " " << threads;
    }
  }
}

TEST(Synthetic, EveryByteOfEveryOperandMatters) {
  const Step fresh;
  const Memory want = result_of(fresh);
  for (Memory Step::* operand : {&Step::a, &Step::b, &Step::state}) {
    for (size_t i = 0; i < (fresh.*operand).size(); ++i) {
      Step other = fresh;
      (other.*operand)[i] ^= std::byte{1};
      const Memory got = result_of(other);
      EXPECT_NE(std::memcmp(got.data(), want.data(), fresh.out.size()), 0) << i;
    }
  }
}

TEST(Synthetic, OrderMattersAndSoDoesWhichOpItIs) {
  const Step fresh;
  Step swapped = fresh;
  std::swap_ranges(swapped.a.begin(), swapped.a.begin() + 32, swapped.a.begin() + 64);
  EXPECT_NE(result_of(fresh), result_of(swapped));
  EXPECT_NE(result_of(fresh, 1, 0), result_of(fresh, 1, 1));
  Step twice = fresh;
  twice.run();
  const Memory once = twice.result();
  twice.run();
  EXPECT_NE(once, twice.result());  // the update has changed
}

TEST(Synthetic, FloatsAreFiniteSpreadOverMinusOneToOneAndMultiplesOf2ToTheMinus23) {
  Step step(100);
  step.run();
  double sum = 0;
  std::set<float> distinct;
  for (const Memory* m : {&step.out, &step.state}) {
    for (size_t i = 0; i + 4 <= m->size(); i += 4) {
      float v;
      std::memcpy(&v, m->data() + i, 4);
      ASSERT_TRUE(v >= -1 && v < 1) << v;
      ASSERT_EQ(std::ldexp(v, 23), std::rint(std::ldexp(v, 23)));
      sum += v;
      distinct.insert(v);
    }
  }
  const double n = static_cast<double>(step.out.size() + step.state.size()) / 4;
  EXPECT_LT(std::fabs(sum / n), 0.02);
  EXPECT_GT(static_cast<double>(distinct.size()), 0.98 * n);
}

TEST(Synthetic, TheWholeWorkspaceIsOverwritten) {
  const Step fresh;
  for (const std::byte before : {std::byte{0x00}, std::byte{0x5A}}) {
    Step step = fresh;
    step.workspace.assign(192, before);
    step.run();
    const std::set<std::byte> values(step.workspace.begin(), step.workspace.end());
    EXPECT_EQ(values.size(), 1u);
  }
  EXPECT_EQ(workspace_bytes(fresh.graph, fresh.graph.ops[0], 8), 192);
}

}  // namespace
}  // namespace headrace
