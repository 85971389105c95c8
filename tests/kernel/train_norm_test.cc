#include <gtest/gtest.h>

#include "tests/kernel/train_harness.h"

namespace headrace::test {
namespace {

constexpr double kEps = 1e-5;
constexpr int64_t kRows = 131;  // two chunks of 64 and a rest

struct Case {
  int64_t n;
  bool layer;
  DType type;
};

std::vector<Case> cases() {
  std::vector<Case> all;
  for (int64_t n : {40, 576, 3}) {
    for (DType type : kTrainTypes) {
      for (bool layer : {false, true}) all.push_back({n, layer, type});
    }
  }
  return all;
}

struct Stat {
  double mean, scale;
};

Stat stat_of(const Case& c, const double* x) {
  double mean = 0, square = 0;
  for (int64_t i = 0; c.layer && i < c.n; ++i) mean += x[i] / static_cast<double>(c.n);
  for (int64_t i = 0; i < c.n; ++i) square += (x[i] - mean) * (x[i] - mean);
  return {mean, 1 / std::sqrt(square / static_cast<double>(c.n) + kEps)};
}

// y of one row in double.
std::vector<double> norm_row(const Case& c, const double* x, const std::vector<double>& weight,
                             const std::vector<double>* bias) {
  const Stat stat = stat_of(c, x);
  std::vector<double> y;
  for (int64_t i = 0; i < c.n; ++i) {
    const auto at = static_cast<size_t>(i);
    y.push_back((x[i] - stat.mean) * stat.scale * weight[at] + (bias ? (*bias)[at] : 0));
  }
  return y;
}

// Statistics of all rows of operand x, as the forward op would have left them.
std::vector<float> stats(const Case& c, const std::vector<double>& x) {
  std::vector<float> out;
  for (int64_t row = 0; row < kRows; ++row) {
    const Stat stat = stat_of(c, x.data() + row * c.n);
    if (c.layer) out.push_back(static_cast<float>(stat.mean));
    out.push_back(static_cast<float>(stat.scale));
  }
  return out;
}

TEST(TrainNorm, FollowsItsFormulaAndKeepsItsStatistics) {
  for (const Case& c : cases()) {
    for (bool biased : {false, true}) {
      TrainHarness h("hr.norm");
      const size_t x = h.input(c.type, kRows, c.n);
      const size_t weight = h.input(DType::kF32, 1, c.n, 3);  // at an odd address
      const size_t bias = biased ? h.input(DType::kF32, 1, c.n, 5) : 0;
      const size_t y = h.output(c.type, kRows, c.n);
      const size_t stat = h.output(DType::kF32, kRows, c.layer ? 2 : 1);
      h.set(Attr::kAct, c.layer);
      h.set(Attr::kEps, kEps);
      h.normal(x, 1, 3);
      h.normal(weight, 2);
      if (biased) h.normal(bias, 3);
      h.run_everywhere(train_rows_of(kRows));
      const auto in = h.values(x), w = h.values(weight);
      const auto b = biased ? h.values(bias) : w;
      std::vector<double> want, want_stat;
      for (int64_t row = 0; row < kRows; ++row) {
        const auto one = norm_row(c, in.data() + row * c.n, w, biased ? &b : nullptr);
        want.insert(want.end(), one.begin(), one.end());
      }
      for (float s : stats(c, in)) want_stat.push_back(static_cast<double>(s));
      h.expect_near(y, want, 3e-6);
      h.expect_near(stat, want_stat, 1e-6);
    }
  }
}

// d(sum dy y)/dx by central differences of the formula in double.
TEST(TrainNorm, TheGradientOfXIsThatOfCentralDifferences) {
  for (const Case& c : cases()) {
    for (bool added : {false, true}) {
      TrainHarness h("hr.norm_dx");
      const size_t dy = h.input(c.type, kRows, c.n), x = h.input(c.type, kRows, c.n);
      const size_t weight = h.input(DType::kF32, 1, c.n, 1);
      const size_t stat = h.input(DType::kF32, kRows, c.layer ? 2 : 1);
      const size_t add = added ? h.input(c.type, kRows, c.n) : 0;
      const size_t dx = h.output(c.type, kRows, c.n);
      h.set(Attr::kAct, c.layer);
      h.normal(dy, 1);
      h.normal(x, 2);
      h.normal(weight, 3);
      if (added) h.normal(add, 4);
      h.put(stat, stats(c, h.values(x)));
      h.run_everywhere(train_rows_of(kRows));
      const auto in = h.values(x), w = h.values(weight), g = h.values(dy), got = h.values(dx);
      const auto plus = added ? h.values(add) : std::vector<double>(in.size());
      for (int64_t row : {int64_t{0}, kRows - 1}) {
        for (int64_t i = 0; i < c.n; i += 1 + c.n / 20) {
          std::vector<double> at(in.begin() + row * c.n, in.begin() + (row + 1) * c.n);
          const auto loss = [&](double shift) {
            at[static_cast<size_t>(i)] += shift;
            const auto y = norm_row(c, at.data(), w, nullptr);
            at[static_cast<size_t>(i)] -= shift;
            double sum = 0;
            for (int64_t j = 0; j < c.n; ++j) {
              sum += y[static_cast<size_t>(j)] * g[static_cast<size_t>(row * c.n + j)];
            }
            return sum;
          };
          const auto at_i = static_cast<size_t>(row * c.n + i);
          const double want = (loss(1e-5) - loss(-1e-5)) / 2e-5 + plus[at_i];
          const double rounding = rounding_of(c.type);
          ASSERT_NEAR(got[at_i], want, 1e-5 + (2e-6 + rounding) * std::fabs(want)) << c.n;
        }
      }
    }
  }
}

TEST(TrainNorm, GradientsOfWeightAndBiasAreSumsOverRowsSetOrAdded) {
  for (const Case& c : cases()) {
    for (bool bias : {false, true}) {
      for (bool update : {false, true}) {
        TrainHarness h("hr.norm_dw");
        const size_t dy = h.input(c.type, kRows, c.n), x = h.input(c.type, kRows, c.n);
        const size_t stat = h.input(DType::kF32, kRows, c.layer ? 2 : 1);
        const auto target = [&] {
          return update ? h.update(DType::kF32, 1, c.n) : h.output(DType::kF32, 1, c.n);
        };
        const size_t dw = target(), db = bias ? target() : 0;
        h.set(Attr::kAct, c.layer);
        h.set(Attr::kBias, bias);
        h.normal(dy, 1);
        h.normal(x, 2);
        h.put(stat, stats(c, h.values(x)));
        std::vector<double> want(static_cast<size_t>(c.n)), want_bias = want;
        if (update) {
          h.normal(dw, 3);
          want = h.values(dw);
          if (bias) h.normal(db, 4);
          if (bias) want_bias = h.values(db);
        }
        const auto g = h.values(dy), in = h.values(x), s = h.values(stat);
        for (int64_t row = 0; row < kRows; ++row) {
          const auto r = static_cast<size_t>(row);
          for (int64_t j = 0; j < c.n; ++j) {
            const auto at = static_cast<size_t>(row * c.n + j);
            const double mean = c.layer ? s[2 * r] : 0, scale = c.layer ? s[2 * r + 1] : s[r];
            want[static_cast<size_t>(j)] += g[at] * (in[at] - mean) * scale;
            want_bias[static_cast<size_t>(j)] += g[at];
          }
        }
        h.run_everywhere(train_rows_of(kRows));
        h.expect_near(dw, want, 1e-5);
        if (bias) h.expect_near(db, want_bias, 1e-5);
      }
    }
  }
}

// As Gemma has them.
TEST(TrainNorm, WeightsToWhichOneIsAddedGiveTheBitsOfThoseWeights) {
  const int64_t n = 40;
  for (DType type : kTrainTypes) {
    for (const char* kernel : {"hr.norm", "hr.norm_dx"}) {
      const bool forward = kernel == std::string("hr.norm");
      std::string want;
      for (bool add_one : {false, true}) {
        TrainHarness h(kernel);
        h.normal(h.input(type, kRows, n), 1);
        if (!forward) h.normal(h.input(type, kRows, n), 2);
        const size_t weight = h.input(DType::kF32, 1, n, 1);
        std::vector<float> values;  // eighths: 1 + them is exact
        for (int64_t i = 0; i < n; ++i) {
          values.push_back(static_cast<float>(i - 20) / 8 + (add_one ? 0.0f : 1.0f));
        }
        h.put(weight, values);
        if (!forward) h.normal(h.input(DType::kF32, kRows, 1), 3);
        const size_t out = h.output(type, kRows, n);
        if (forward) h.output(DType::kF32, kRows, 1);
        if (forward) h.set(Attr::kEps, kEps);
        if (add_one) h.set(Attr::kAddOne, 1);
        h.run_everywhere(train_rows_of(kRows));
        if (!add_one) want = h.bits(out);
        EXPECT_TRUE(h.bits(out) == want) << kernel;
      }
    }
  }
}

}  // namespace
}  // namespace headrace::test
