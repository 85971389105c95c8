#include <gtest/gtest.h>

#include "tests/kernel/train_harness.h"

namespace headrace::test {
namespace {

double act_value(int act, double x) {
  if (act == 0) return x / (1 + std::exp(-x));
  return x / 2 * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
}
double act_slope(int act, double x) {
  return (act_value(act, x + 1e-5) - act_value(act, x - 1e-5)) / 2e-5;
}

constexpr int64_t kRows = 70;

TEST(TrainAct, FollowsItsFormulaInDoublePrecision) {
  for (int act : {0, 1, 2}) {
    for (DType type : kTrainTypes) {
      for (int64_t n : {5, 48, 712}) {
        const int64_t in = act == 2 ? n : 2 * n;
        TrainHarness h("hr.act");
        const size_t x = h.input(type, kRows, in), y = h.output(type, kRows, n);
        h.set(Attr::kAct, act);
        h.normal(x, 1, 3);
        h.run_everywhere(train_rows_of(kRows));
        const auto from = h.values(x);
        std::vector<double> want;
        for (int64_t row = 0; row < kRows; ++row) {
          for (int64_t j = 0; j < n; ++j) {
            const double up = act == 2 ? 1 : from[static_cast<size_t>(row * in + n + j)];
            want.push_back(act_value(act, from[static_cast<size_t>(row * in + j)]) * up);
          }
        }
        h.expect_near(y, want, 1e-6);
      }
    }
  }
}

TEST(TrainAct, GradientsAreThoseOfCentralDifferences) {
  for (int act : {0, 1, 2}) {
    for (DType type : kTrainTypes) {
      for (int64_t n : {5, 48, 712}) {
        const int64_t in = act == 2 ? n : 2 * n;
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
            want[gate] = d * act_slope(act, from[gate]) * (act == 2 ? 1 : from[up]);
            if (act != 2) want[up] = d * act_value(act, from[gate]);
          }
        }
        h.expect_near(dx, want, 2e-6);
      }
    }
  }
}

}  // namespace
}  // namespace headrace::test
