#include <gtest/gtest.h>

#include <limits>

#include "tests/kernel/train_harness.h"

namespace headrace::test {
namespace {

TEST(TrainReduce, TheSumOfSquaresKeepsMoreThanAFloat) {
  for (int64_t cols : {1, 100, 65536, 70001}) {
    TrainHarness h("hr.sum_squares");
    const size_t gradient = h.input(DType::kF32, 3, cols);
    const size_t sum = h.output(DType::kF32, 1, 2);
    h.normal(gradient, 1);
    h.run_everywhere(train_rows_of(1));
    long double want = 0;
    for (double x : h.values(gradient)) want += static_cast<long double>(x) * x;
    const auto got = h.values(sum);
    EXPECT_NEAR(got[0] + got[1], static_cast<double>(want), 1e-12 * static_cast<double>(want));
  }
}

struct Clip {
  explicit Clip(std::vector<std::vector<float>> sums, double max_norm) : h("hr.clip") {
    for (const auto& sum : sums) h.put(h.input(DType::kF32, 1, 2), sum);
    out = h.output(DType::kF32, 1, 2);
    h.set(Attr::kMaxNorm, max_norm);
  }
  std::vector<double> run(double loss_scale = 1) {
    StepRows step = train_rows_of(1);
    step.loss_scale = loss_scale;
    h.run_everywhere(step);
    return h.values(out);
  }
  TrainHarness h;
  size_t out;
};

TEST(TrainReduce, ClippingScalesToTheLargestNormAllowed) {
  EXPECT_EQ(Clip({{9, 0}, {16, 0}}, 2).run(), (std::vector<double>{static_cast<double>(0.4f), 5}));
  EXPECT_EQ(Clip({{9, 0}, {16, 0}}, 6).run(), (std::vector<double>{1, 5}));
  EXPECT_EQ(Clip({{9, 0}, {16, 0}}, 0).run(), (std::vector<double>{1, 5}));
  EXPECT_EQ(Clip({{0, 0}}, 1).run(), (std::vector<double>{1, 0}));
  // Gradients of a scaled loss: the norm is that of the true ones, the factor removes the scale.
  EXPECT_EQ(Clip({{9 * 64, 0}, {16 * 64, 0}}, 2).run(8),
            (std::vector<double>{static_cast<double>(0.05f), 5}));
}

TEST(TrainReduce, LowPartsOfTheSumsCount) {
  const float low = 0x1p-26f;
  const auto got = Clip({{1, low}, {0x1p-26f, 0}}, 0).run();
  EXPECT_EQ(got[1], static_cast<double>(static_cast<float>(std::sqrt(1 + 0x1p-25))));
}

TEST(TrainReduce, ANormThatIsNotFiniteGivesAFactorOfZero) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float infinity = std::numeric_limits<float>::infinity();
  for (float bad : {nan, infinity}) {
    for (double max_norm : {0.0, 1.0}) {
      TrainHarness h("hr.sum_squares");
      const size_t gradient = h.input(DType::kF32, 1, 200);
      const size_t sum = h.output(DType::kF32, 1, 2);
      std::vector<float> values(200, 1.0f);
      values[150] = bad;
      h.put(gradient, values);
      for (Isa isa : all_isas()) {
        IsaScope scope(isa);
        h.run(train_rows_of(1));
        const auto got = h.values(sum);
        Clip clip({{1, 0}, {static_cast<float>(got[0]), static_cast<float>(got[1])}}, max_norm);
        clip.h.run(train_rows_of(1));
        const auto result = clip.h.values(clip.out);
        EXPECT_EQ(result[0], 0);
        EXPECT_FALSE(std::isfinite(result[1]));
      }
    }
  }
}

TEST(TrainReduce, TheGuardOpensForAFiniteLossOnly) {
  for (float loss : {3.0f, std::numeric_limits<float>::quiet_NaN(),
                     std::numeric_limits<float>::infinity()}) {
    TrainHarness h("hr.guard");
    h.put(h.input(DType::kF32, 1, 1), {loss});
    const size_t out = h.output(DType::kF32, 1, 2);
    StepRows step = train_rows_of(1);
    step.loss_scale = 8;
    h.run_everywhere(step);
    EXPECT_EQ(h.values(out), (std::vector<double>{std::isfinite(loss) ? 0.125 : 0, 0}));
  }
}

}  // namespace
}  // namespace headrace::test
