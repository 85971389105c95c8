#include <gtest/gtest.h>

#include "tests/kernel/train_harness.h"

namespace headrace::test {
namespace {

constexpr int kActs[] = {0, 1, 2, 3, 4, 5, 6, 7};
bool is_gated(int act) { return act == 0 || act == 1 || act == 6; }

double act_value(int act, double x) {
  switch (act) {
    case 0:
    case 5: return x / (1 + std::exp(-x));
    case 3:
    case 6: return x / 2 * std::erfc(-x / std::sqrt(2.0));
    case 4: return std::max(x, 0.0);
    case 7: return x / (1 + std::exp(-1.702 * x));
    default: return x / 2 * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
  }
}
double act_slope(int act, double x) {
  if (act == 4) return x > 0 ? 1 : 0;
  return (act_value(act, x + 1e-5) - act_value(act, x - 1e-5)) / 2e-5;
}

constexpr int64_t kRows = 70;

TEST(TrainAct, FollowsItsFormulaInDoublePrecision) {
  for (int act : kActs) {
    for (DType type : kTrainTypes) {
      for (int64_t n : {5, 48, 712}) {
        const int64_t in = is_gated(act) ? 2 * n : n;
        TrainHarness h("hr.act");
        const size_t x = h.input(type, kRows, in), y = h.output(type, kRows, n);
        h.set(Attr::kAct, act);
        h.normal(x, 1, 3);
        h.run_everywhere(train_rows_of(kRows));
        const auto from = h.values(x);
        std::vector<double> want;
        for (int64_t row = 0; row < kRows; ++row) {
          for (int64_t j = 0; j < n; ++j) {
            const double up = !is_gated(act) ? 1 : from[static_cast<size_t>(row * in + n + j)];
            want.push_back(act_value(act, from[static_cast<size_t>(row * in + j)]) * up);
          }
        }
        h.expect_near(y, want, 1e-6);
      }
    }
  }
}

TEST(TrainAct, GradientsAreThoseOfCentralDifferences) {
  for (int act : kActs) {
    for (DType type : kTrainTypes) {
      for (int64_t n : {5, 48, 712}) {
        const int64_t in = is_gated(act) ? 2 * n : n;
        TrainHarness h("hr.act_grad");
        const size_t dy = h.input(type, kRows, n), x = h.input(type, kRows, in);
        const size_t dx = h.output(type, kRows, in);
        h.set(Attr::kAct, act);
        h.normal(x, 1, 3);
        h.normal(dy, 2);
        h.run_everywhere(train_rows_of(kRows));
        const auto from = h.values(x), g = h.values(dy);
        std::vector<double> want(from.size());
        for (int64_t row = 0; row < kRows; ++row) {
          for (int64_t j = 0; j < n; ++j) {
            const auto gate = static_cast<size_t>(row * in + j), up = gate + static_cast<size_t>(n);
            const double d = g[static_cast<size_t>(row * n + j)];
            want[gate] = d * act_slope(act, from[gate]) * (is_gated(act) ? from[up] : 1);
            if (is_gated(act)) want[up] = d * act_value(act, from[gate]);
          }
        }
        h.expect_near(dx, want, 2e-6);
      }
    }
  }
}

// Of one row of x, with dy = 1: values and slopes.
std::pair<std::vector<double>, std::vector<double>> gelu_of(const std::vector<float>& x) {
  const auto n = static_cast<int64_t>(x.size());
  TrainHarness h("hr.act"), grad("hr.act_grad");
  h.put(h.input(DType::kF32, 1, n), x);
  const size_t y = h.output(DType::kF32, 1, n);
  grad.put(grad.input(DType::kF32, 1, n), std::vector<float>(x.size(), 1));
  grad.put(grad.input(DType::kF32, 1, n), x);
  const size_t dx = grad.output(DType::kF32, 1, n);
  for (TrainHarness* one : {&h, &grad}) {
    one->set(Attr::kAct, 3);
    one->run_everywhere(train_rows_of(1));
  }
  return {h.values(y), grad.values(dx)};
}

TEST(TrainAct, GeluIsCloseToItselfInDoubleFarFromZeroToo) {
  std::vector<float> x;
  for (float at = -12; at < 12; at += 1.0f / 512) x.push_back(at);
  const auto [values, slopes] = gelu_of(x);
  for (size_t i = 0; i < x.size(); ++i) {
    const auto at = static_cast<double>(x[i]);
    const double below = std::erfc(-at / std::sqrt(2.0)) / 2;
    const double slope = below + at * std::exp(-at * at / 2) / std::sqrt(2 * M_PI);
    ASSERT_NEAR(values[i], at * below, 1e-6 * std::fabs(at * below)) << at;
    ASSERT_NEAR(slopes[i], slope, 3e-7) << at;
  }
}

TEST(TrainAct, GeluOfTheLargestNumbersAndOfWhatIsNoNumber) {
  const auto [values, slopes] = gelu_of({3e38f, -3e38f, INFINITY, 0.0f, NAN});
  EXPECT_EQ(values[0], static_cast<double>(3e38f));
  EXPECT_EQ(values[1], 0);
  EXPECT_EQ(values[2], INFINITY);
  EXPECT_EQ(values[3], 0);
  EXPECT_TRUE(std::isnan(values[4]));
  EXPECT_EQ(slopes[0], 1);
  EXPECT_EQ(slopes[1], 0);
  EXPECT_EQ(slopes[2], 1);
  EXPECT_NEAR(slopes[3], 0.5, 1e-7);
  EXPECT_TRUE(std::isnan(slopes[4]));
}

}  // namespace
}  // namespace headrace::test
