#include <gtest/gtest.h>

#include <limits>

#include "headrace/kernel/philox.h"
#include "tests/kernel/train_harness.h"

namespace headrace::test {
namespace {

constexpr int64_t kRows = 5, kCols = 7001;  // three workers' shares and an odd rest
constexpr double kBeta1 = 0.9, kBeta2 = 0.95, kEps = 1e-8, kDecay = 0.1;

struct Optimizer {
  Optimizer(const char* kernel, DType type, int states, bool copied, bool clipped,
            DType copy_type = DType::kBF16)
      : h(kernel) {
    gradient = h.input(DType::kF32, kRows, kCols);
    clip = clipped ? h.input(DType::kF32, 1, 2) : 0;
    param = h.update(type, kRows, kCols);
    for (int i = 0; i < states; ++i) state.push_back(h.update(DType::kF32, kRows, kCols));
    copy = copied ? h.update(copy_type, kRows, kCols) : 0;
    h.set(Attr::kBeta1, kBeta1);
    h.set(Attr::kBeta2, kBeta2);
    h.set(Attr::kEps, kEps);
    h.set(Attr::kWeightDecay, kDecay);
    h.set(Attr::kStream, 5);
    h.set(Attr::kGroup, 1);
    h.normal(gradient, 1);
    h.normal(param, 2);
    if (clipped) h.put(clip, {0.25f, 4.0f});
    if (states > 0) h.normal(state[0], 3, 0.1f);
    if (states > 1) {
      std::vector<float> v = normal_values(kRows * kCols, 4, 0.1f);
      for (float& x : v) x *= x;
      h.put(state[1], v);
    }
    step = train_rows_of(1);
    step.step = 3;
    step.rates = {5.0, 0.01};
  }
  void keep_state() {
    before.clear();
    for (TensorId id : h.op().updates) before.push_back(h.bits(id.index()));
  }
  void expect_state_kept() {
    for (size_t i = 0; i < before.size(); ++i) {
      EXPECT_EQ(h.bits(h.op().updates[i].index()), before[i]) << "update " << i;
    }
  }

  TrainHarness h;
  StepRows step;
  size_t gradient, clip, param, copy;
  std::vector<size_t> state;
  std::vector<std::string> before;
};

TEST(TrainOptimizer, AdamwFollowsItsFormulaInDoublePrecision) {
  for (bool clipped : {false, true}) {
    Optimizer t("hr.adamw", DType::kF32, 2, true, clipped);
    auto p = t.h.values(t.param), m = t.h.values(t.state[0]), v = t.h.values(t.state[1]);
    t.step.loss_scale = 4;  // as the factor of clip says: gradients are divided by it
    const auto gradient = t.h.values(t.gradient);
    for (size_t i = 0; i < p.size(); ++i) {
      const double g = gradient[i] * 0.25;
      m[i] = kBeta1 * m[i] + (1 - kBeta1) * g;
      v[i] = kBeta2 * v[i] + (1 - kBeta2) * g * g;
      const double direction = m[i] / (1 - std::pow(kBeta1, 3)) /
                               (std::sqrt(v[i] / (1 - std::pow(kBeta2, 3))) + kEps);
      p[i] -= 0.01 * (direction + kDecay * p[i]);
    }
    t.h.run_everywhere(t.step);
    t.h.expect_near(t.param, p, 3e-7);
    t.h.expect_near(t.state[0], m, 1e-7);
    t.h.expect_near(t.state[1], v, 1e-7);
    const auto exact = t.h.values(t.param), copied = t.h.values(t.copy);
    for (size_t i = 0; i < exact.size(); ++i) {
      ASSERT_EQ(copied[i], static_cast<double>(
                               bf16_to_f32(f32_to_bf16(static_cast<float>(exact[i])))));
    }
  }
}

TEST(TrainOptimizer, ACopyInF16IsTheParameterRoundedToNearest) {
  for (const bool adam : {false, true}) {
    Optimizer t(adam ? "hr.adamw" : "hr.sgd", DType::kF32, adam ? 2 : 0, true, true, DType::kF16);
    t.h.run_everywhere(t.step);
    const auto exact = t.h.values(t.param), copied = t.h.values(t.copy);
    for (size_t i = 0; i < exact.size(); ++i) {
      ASSERT_EQ(copied[i], static_cast<double>(
                               f16_to_f32(f32_to_f16(static_cast<float>(exact[i])))));
    }
  }
}

TEST(TrainOptimizer, SgdFollowsItsFormulaInDoublePrecision) {
  for (double momentum : {0.0, 0.9}) {
    Optimizer t("hr.sgd", DType::kF32, momentum > 0 ? 1 : 0, true, true);
    t.h.set(Attr::kMomentum, momentum);
    auto p = t.h.values(t.param);
    auto b = momentum > 0 ? t.h.values(t.state[0]) : std::vector<double>(p.size());
    const auto gradient = t.h.values(t.gradient);
    for (size_t i = 0; i < p.size(); ++i) {
      b[i] = momentum * b[i] + gradient[i] * 0.25 + kDecay * p[i];
      p[i] -= 0.01 * b[i];
    }
    t.h.run_everywhere(t.step);
    t.h.expect_near(t.param, p, 2e-7);
    if (momentum > 0) t.h.expect_near(t.state[0], b, 2e-7);
  }
}

// Of the two bf16 neighbours of the exact result, the upper is taken when the generator says so.
TEST(TrainOptimizer, Bf16ParametersAreRoundedStochastically) {
  Optimizer t("hr.sgd", DType::kBF16, 0, false, false);
  t.h.set(Attr::kWeightDecay, 0);
  const auto p = t.h.values(t.param), gradient = t.h.values(t.gradient);
  t.h.run_everywhere(t.step);
  const auto got = t.h.values(t.param);
  for (size_t i = 0; i < p.size(); ++i) {
    const float exact =
        std::fmaf(-0.01f, static_cast<float>(gradient[i]), static_cast<float>(p[i]));
    const auto block = static_cast<uint32_t>(i / 64 * 16 + i % 16);
    const uint32_t word = philox4x32({block, 0, 5, 1}, t.step.seed)[i % 64 / 16];
    const uint32_t bits = std::bit_cast<uint32_t>(exact) + (word & 0xffffu);
    ASSERT_EQ(got[i], static_cast<double>(bf16_to_f32(static_cast<uint16_t>(bits >> 16)))) << i;
  }
}

TEST(TrainOptimizer, StochasticRoundingLosesNoSmallStepsOnAverage) {
  Optimizer t("hr.sgd", DType::kBF16, 0, false, false);
  t.h.set(Attr::kWeightDecay, 0);
  const std::vector<float> ones(static_cast<size_t>(kRows * kCols), 1.0f);
  t.h.put(t.param, ones);
  t.h.put(t.gradient, std::vector<float>(ones.size(), -1.0f));
  t.step.rates[1] = 1e-4;  // a fortieth of the distance to the next bf16
  t.h.run(t.step);
  double sum = 0;
  for (double x : t.h.values(t.param)) sum += x - 1;
  EXPECT_NEAR(sum / static_cast<double>(ones.size()), 1e-4, 1.5e-5);
}

TEST(TrainOptimizer, NothingChangesWhenTheFactorIsZero) {
  for (const char* kernel : {"hr.adamw", "hr.sgd"}) {
    for (DType type : {DType::kF32, DType::kBF16}) {
      const bool adamw = kernel[3] == 'a';
      Optimizer t(kernel, type, adamw ? 2 : 1, type == DType::kF32, true);
      t.h.set(Attr::kMomentum, 0.9);
      t.h.put(t.gradient, std::vector<float>(static_cast<size_t>(kRows * kCols),
                                             std::numeric_limits<float>::quiet_NaN()));
      t.h.put(t.clip, {0.0f, std::numeric_limits<float>::quiet_NaN()});
      t.keep_state();
      for (Isa isa : all_isas()) {
        IsaScope scope(isa);
        t.h.run(t.step, 2);
        t.expect_state_kept();
      }
    }
  }
}

TEST(TrainOptimizer, AnEvaluationChangesNothingAndNeedsNoRates) {
  for (const char* kernel : {"hr.adamw", "hr.sgd"}) {
    Optimizer t(kernel, DType::kF32, kernel[3] == 'a' ? 2 : 1, true, false);
    t.h.set(Attr::kMomentum, 0.9);
    t.step.update = false;
    t.step.rates.clear();
    t.keep_state();
    t.h.run(t.step, 2);
    t.expect_state_kept();
  }
}

TEST(TrainOptimizer, WithoutAFactorGradientsAreDividedByTheLossScale) {
  Optimizer t("hr.sgd", DType::kF32, 0, false, false);
  Optimizer clipped("hr.sgd", DType::kF32, 0, false, true);
  t.step.loss_scale = 4;  // the factor of the other is 0.25
  t.h.run(t.step);
  clipped.h.run(clipped.step);
  EXPECT_EQ(t.h.bits(t.param), clipped.h.bits(clipped.param));
}

}  // namespace
}  // namespace headrace::test
