// What a kernel known from outside is predicted to take: measured, learned, or by roofline.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>

#include "headrace/cost/machine.h"
#include "headrace/cost/predictor.h"

namespace headrace {
namespace {

using ::testing::HasSubstr;

constexpr size_t kF32 = static_cast<size_t>(DType::kF32);
constexpr size_t kHalf = static_cast<size_t>(DType::kBF16);

// One kernel that reads a and b and writes c.
struct OneKernel {
  Graph g;
  Op op;
  OneKernel(DType type, int64_t a, int64_t b, int64_t c) {
    op.kind = OpKind::kKernel;
    op.name = op.kernel = "MatMul";
    const auto tensor = [&](const char* name, int64_t cols) {
      Tensor t;
      t.name = name;
      t.dtype = type;
      t.cols = cols;
      t.bytes = row_bytes(type, cols);
      return g.add(std::move(t));
    };
    op.inputs = {tensor("a", a), tensor("b", b)};
    op.outputs = {tensor("c", c)};
  }
};

Machine round_machine() {
  Machine m = Machine::defaults(1);
  m.memory_bytes_per_s = 1e9;
  m.matmul_per_s[kF32] = 1e9;
  m.matmul_per_s[kHalf] = 4e9;
  m.op_overhead_ns = 1000;
  return m;
}

TEST(KernelCost, IsTheMeasuredTimeWhereThereIsOne) {
  OneKernel k(DType::kF32, 1000, 1000, 1000);
  k.op.attrs[Attr::kSeconds] = 0.0015;
  k.op.attrs[Attr::kFlops] = 1e15;
  EXPECT_EQ(op_cost(round_machine(), k.g, k.op, {}), 1'500'000);
}

TEST(KernelCost, IsRoundedToTheNearestNanosecondAndNeverNothing) {
  OneKernel k(DType::kF32, 1, 1, 1);
  const auto cost = [&](double seconds) {
    k.op.attrs[Attr::kSeconds] = seconds;
    return op_cost(round_machine(), k.g, k.op, {});
  };
  EXPECT_EQ(cost(0), 1);
  EXPECT_EQ(cost(1.4e-9), 1);
  EXPECT_EQ(cost(1.6e-9), 2);
  EXPECT_EQ(cost(1e-6), 1000);
  EXPECT_EQ(cost(0.3), 300'000'000);
}

TEST(KernelCost, OfATimeThatIsNoNumberIsBoundedAndTheGraphRefused) {
  OneKernel k(DType::kF32, 1, 1, 1);
  for (const double bad : {std::nan(""), std::numeric_limits<double>::infinity(), -1.0}) {
    k.op.attrs[Attr::kSeconds] = bad;
    const Nanos cost = op_cost(round_machine(), k.g, k.op, {});
    EXPECT_GE(cost, 1);
    EXPECT_LE(cost, Nanos{3600} * 1'000'000'000);
    k.g.ops = {k.op};
    EXPECT_FALSE(verify(k.g).ok()) << bad;
  }
}

TEST(KernelCost, IsTheRooflineOfItsTypeWithoutMeasurement) {
  OneKernel f(DType::kF32, 1000, 500, 250);  // 7000 bytes
  EXPECT_EQ(op_cost(round_machine(), f.g, f.op, {}), 7000 + 1000);
  f.op.attrs[Attr::kTraffic] = 9000;
  EXPECT_EQ(op_cost(round_machine(), f.g, f.op, {}), 9000 + 1000);
  f.op.attrs[Attr::kFlops] = 2e6;  // 1e6 multiply-adds at 1e9 a second
  EXPECT_EQ(op_cost(round_machine(), f.g, f.op, {}), 1'000'000 + 1000);
  OneKernel h(DType::kBF16, 1000, 500, 250);
  h.op.attrs[Attr::kFlops] = 2e6;
  EXPECT_EQ(op_cost(round_machine(), h.g, h.op, {}), 250'000 + 1000);
}

TEST(KernelCost, CountsWhatIsUpdatedTwiceAsTraffic) {
  OneKernel k(DType::kF32, 1000, 500, 250);
  k.op.updates = {k.op.inputs[1]};
  k.op.inputs.pop_back();
  const KernelWork w = work_of(k.g, k.op);
  EXPECT_EQ(w.traffic, 4000 + 2 * 2000 + 1000);
  EXPECT_EQ(w.output_bytes, 2000 + 1000);
  EXPECT_EQ(w.dtype, DType::kF32);
}

TEST(KernelCost, OfAKernelWithoutOutputsIsPredictedToo) {
  OneKernel k(DType::kF32, 1000, 500, 250);
  k.op.outputs.clear();
  EXPECT_EQ(op_cost(round_machine(), k.g, k.op, {}), 6000 + 1000);
}

// ---- learning

// Kernels of a machine that the roofline knows nothing of: 10 us and 3 ps a byte; products 0.2 ps a
// byte^1.5 on top.
std::vector<KernelSample> synthetic(uint32_t seed, int count, double noise) {
  std::vector<KernelSample> out;
  uint32_t state = seed;
  const auto random = [&] {
    state = state * 1664525u + 1013904223u;
    return (state >> 8) / 16777216.0;
  };
  for (int i = 0; i < count; ++i) {
    OneKernel k(DType::kF32, 256 << static_cast<int>(random() * 12),
                256 << static_cast<int>(random() * 12), 256 << static_cast<int>(random() * 12));
    KernelSample s;
    s.kernel = i % 2 == 0 ? "MatMul" : "Add";
    s.work = work_of(k.g, k.op);
    s.seconds = 10e-6 + 3e-12 * s.work.traffic + (i % 2 == 0 ? 2e-13 * s.work.volume : 0);
    s.seconds *= 1 + noise * (2 * random() - 1);
    s.workspace = i % 2 == 0 ? static_cast<Bytes>(2 * s.work.output_bytes) : 0;
    out.push_back(s);
  }
  return out;
}

TEST(Predictor, LearnsKernelsThatTheRooflineGetsWrong) {
  const Machine m = round_machine();
  const PredictorScore s = score_on(m, synthetic(1, 400, 0.05), synthetic(2, 200, 0.05));
  EXPECT_EQ(s.kernels, 200);
  EXPECT_GT(s.roofline_error, 0.15);  // what is to be gained
  EXPECT_LT(s.learned_error, 0.04);   // noise of +-5 % alone is 2.5 %
  EXPECT_NEAR(s.learned_total, 1, 0.05);
}

TEST(Predictor, IsNotWorseOnShapesThatWereLeftOut) {
  const Machine m = round_machine();
  const PredictorScore s = cross_validate(m, synthetic(3, 300, 0.05));
  EXPECT_EQ(s.kernels, 300);
  EXPECT_LT(s.learned_error, 0.05);
  EXPECT_LT(s.learned_error, s.roofline_error);
}

TEST(Predictor, OfAKernelThatWasNeverSeenIsTheRoofline) {
  const Machine m = round_machine();
  std::vector<KernelSample> unseen = synthetic(4, 10, 0);
  for (KernelSample& s : unseen) s.kernel = "Other";
  const PredictorScore s = score_on(m, synthetic(1, 100, 0), unseen);
  EXPECT_EQ(s.learned_error, s.roofline_error);
}

TEST(Predictor, NeverPredictsLessForMoreBytes) {
  for (uint32_t seed = 1; seed < 20; ++seed) {
    for (const auto& [kernel, model] : train_kernels(synthetic(seed, 5, 0.5))) {
      for (const double w : model.seconds) EXPECT_GE(w, 0) << kernel;
    }
  }
}

TEST(Predictor, TravelsInTheMachineFileAndIsUsedForItsKernels) {
  Machine m = round_machine();
  m.kernels = train_kernels(synthetic(1, 400, 0.01));
  m.sources["kernels"] = "made up";
  const auto back = machine_from_json(to_json(m));
  ASSERT_TRUE(back.ok()) << back.status().message();
  EXPECT_EQ(back->kernels, m.kernels);
  EXPECT_EQ(back->sources, m.sources);
  OneKernel k(DType::kF32, 65536, 65536, 65536);
  const KernelWork w = work_of(k.g, k.op);
  const double true_seconds = 10e-6 + 3e-12 * w.traffic + 2e-13 * w.volume;
  EXPECT_NEAR(static_cast<double>(op_cost(*back, k.g, k.op, {})), true_seconds * 1e9,
              0.05 * true_seconds * 1e9);
  k.op.attrs[Attr::kSeconds] = 0.5;  // measured goes first
  EXPECT_EQ(op_cost(*back, k.g, k.op, {}), 500'000'000);
}

TEST(Predictor, LearnsWorkspaceForGraphsThatDoNotStateIt) {
  Machine m = round_machine();
  m.kernels = train_kernels(synthetic(1, 400, 0));
  OneKernel k(DType::kF32, 4096, 4096, 65536);
  EXPECT_NEAR(static_cast<double>(predicted_workspace(m, k.g, k.op)), 2.0 * 4 * 65536,
              0.05 * 8 * 65536);
  k.g.ops = {k.op};
  EXPECT_EQ(fill_workspaces(m, &k.g), 1);
  EXPECT_GT(k.g.ops[0].workspace, 0);
  EXPECT_EQ(fill_workspaces(m, &k.g), 0);
  k.op.kernel = "Unknown";
  EXPECT_EQ(predicted_workspace(m, k.g, k.op), 0);
}

TEST(Predictor, OfNothingIsNothing) {
  EXPECT_TRUE(train_kernels({}).empty());
  EXPECT_EQ(cross_validate(round_machine(), {}).kernels, 0);
  KernelSample unmeasured;
  unmeasured.kernel = "x";
  EXPECT_TRUE(train_kernels({unmeasured}).empty());
}

}  // namespace
}  // namespace headrace
