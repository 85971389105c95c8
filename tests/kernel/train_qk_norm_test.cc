// hr.qk_norm and its gradients against formulas in double.
#include <gtest/gtest.h>

#include "tests/kernel/train_harness.h"

namespace headrace::test {
namespace {

constexpr double kEps = 1e-5;
constexpr int64_t kRows = 70, kHeads = 4, kKvHeads = 2;  // a chunk of 64 rows and a rest

struct Case {
  int64_t dim;
  bool heads_apart;  // each head is a run
  bool layer;
  DType type;
  bool add_one = false;  // weights are 1 + weight

  int64_t cols() const { return (kHeads + 2 * kKvHeads) * dim; }
  int64_t weight_cols(int64_t heads) const { return heads_apart ? dim : heads * dim; }
  int64_t runs(int64_t heads) const { return heads_apart ? heads : 1; }
  int64_t stat_cols() const { return (runs(kHeads) + runs(kKvHeads)) * (layer ? 2 : 1); }
};

std::vector<Case> cases() {
  std::vector<Case> all;
  for (DType type : kTrainTypes) {
    for (bool apart : {true, false}) {
      for (bool layer : {false, true}) {
        all.push_back({20, apart, layer, type});
        all.push_back({128, apart, layer, type, true});
      }
    }
  }
  return all;
}

void set_attrs(TrainHarness& h, const Case& c) {
  h.set(Attr::kHeads, kHeads);
  h.set(Attr::kKvHeads, kKvHeads);
  h.set(Attr::kHeadDim, static_cast<double>(c.dim));
  h.set(Attr::kAct, c.layer);
}

struct Formula {
  std::vector<double> y;
  std::vector<float> stat;
};
// Of whole rows of qkv.
Formula formula(const Case& c, const std::vector<double>& x, const std::vector<double>& q,
                const std::vector<double>& k) {
  Formula out{x, {}};
  for (size_t row = 0; row * static_cast<size_t>(c.cols()) < x.size(); ++row) {
    size_t at = row * static_cast<size_t>(c.cols());
    for (const auto& [weight, heads] : {std::pair(&q, kHeads), std::pair(&k, kKvHeads)}) {
      for (int64_t run = 0; run < c.runs(heads); ++run) {
        const size_t n = weight->size();
        double mean = 0, square = 0;
        for (size_t i = 0; c.layer && i < n; ++i) mean += x[at + i] / static_cast<double>(n);
        for (size_t i = 0; i < n; ++i) square += (x[at + i] - mean) * (x[at + i] - mean);
        const double scale = 1 / std::sqrt(square / static_cast<double>(n) + kEps);
        if (c.layer) out.stat.push_back(static_cast<float>(mean));
        out.stat.push_back(static_cast<float>(scale));
        for (size_t i = 0; i < n; ++i) {
          out.y[at + i] = (x[at + i] - mean) * scale * ((*weight)[i] + (c.add_one ? 1 : 0));
        }
        at += n;
      }
    }
  }
  return out;
}

TEST(TrainQkNorm, NormalisesRunsOfQAndKAndLeavesV) {
  for (const Case& c : cases()) {
    TrainHarness h("hr.qk_norm");
    const size_t x = h.input(c.type, kRows, c.cols());
    const size_t q = h.input(DType::kF32, 1, c.weight_cols(kHeads), 3);
    const size_t k = h.input(DType::kF32, 1, c.weight_cols(kKvHeads), 5);
    const size_t y = h.output(c.type, kRows, c.cols());
    const size_t stat = h.output(DType::kF32, kRows, c.stat_cols());
    set_attrs(h, c);
    h.set(Attr::kEps, kEps);
    h.set(Attr::kAddOne, c.add_one);
    h.normal(x, 1, 3);
    h.normal(q, 2);
    h.normal(k, 3);
    h.run_everywhere(train_rows_of(kRows));
    const Formula want = formula(c, h.values(x), h.values(q), h.values(k));
    h.expect_near(y, want.y, 3e-6);
    h.expect_near(stat, {want.stat.begin(), want.stat.end()}, 1e-6);
  }
}

TEST(TrainQkNorm, TheGradientOfXIsThatOfCentralDifferences) {
  for (const Case& c : cases()) {
    TrainHarness h("hr.qk_norm_dx");
    const size_t dy = h.input(c.type, kRows, c.cols()), x = h.input(c.type, kRows, c.cols());
    const size_t q = h.input(DType::kF32, 1, c.weight_cols(kHeads), 1);
    const size_t k = h.input(DType::kF32, 1, c.weight_cols(kKvHeads), 7);
    const size_t stat = h.input(DType::kF32, kRows, c.stat_cols());
    const size_t dx = h.output(c.type, kRows, c.cols());
    set_attrs(h, c);
    h.set(Attr::kAddOne, c.add_one);
    h.normal(dy, 1);
    h.normal(x, 2);
    h.normal(q, 3);
    h.normal(k, 4);
    const auto in = h.values(x), g = h.values(dy), wq = h.values(q), wk = h.values(k);
    h.put(stat, formula(c, in, wq, wk).stat);
    h.run_everywhere(train_rows_of(kRows));
    const auto got = h.values(dx);
    const int64_t n = c.cols();
    for (int64_t row : {int64_t{0}, kRows - 1}) {
      std::vector<double> one(in.begin() + row * n, in.begin() + (row + 1) * n);
      for (int64_t i = 0; i < n; i += 1 + n / 60) {
        const auto loss = [&](double shift) {
          std::vector<double> moved = one;
          moved[static_cast<size_t>(i)] += shift;
          const auto y = formula(c, moved, wq, wk).y;
          double sum = 0;
          for (size_t j = 0; j < y.size(); ++j) sum += y[j] * g[static_cast<size_t>(row * n) + j];
          return sum;
        };
        const double want = (loss(1e-5) - loss(-1e-5)) / 2e-5;
        ASSERT_NEAR(got[static_cast<size_t>(row * n + i)], want,
                    1e-5 + (2e-6 + rounding_of(c.type)) * std::fabs(want));
      }
    }
  }
}

TEST(TrainQkNorm, GradientsOfWeightsAreSumsOverRowsAndHeadsSetOrAdded) {
  for (const Case& c : cases()) {
    for (bool update : {false, true}) {
      TrainHarness h("hr.qk_norm_dw");
      const size_t dy = h.input(c.type, kRows, c.cols()), x = h.input(c.type, kRows, c.cols());
      const size_t stat = h.input(DType::kF32, kRows, c.stat_cols());
      const auto target = [&](int64_t n) {
        return update ? h.update(DType::kF32, 1, n) : h.output(DType::kF32, 1, n);
      };
      const size_t dq = target(c.weight_cols(kHeads)), dk = target(c.weight_cols(kKvHeads));
      set_attrs(h, c);
      h.normal(dy, 1);
      h.normal(x, 2);
      std::vector<double> want_q(static_cast<size_t>(c.weight_cols(kHeads)));
      std::vector<double> want_k(static_cast<size_t>(c.weight_cols(kKvHeads)));
      // dw = dy xhat, and xhat is what weights of 1 give.
      const double one = c.add_one ? 0 : 1;
      const Formula ones = formula(c, h.values(x), std::vector<double>(want_q.size(), one),
                                   std::vector<double>(want_k.size(), one));
      h.put(stat, ones.stat);
      if (update) {
        h.normal(dq, 3);
        h.normal(dk, 4);
        want_q = h.values(dq);
        want_k = h.values(dk);
      }
      const auto g = h.values(dy);
      for (int64_t row = 0; row < kRows; ++row) {
        for (int64_t i = 0; i < (kHeads + kKvHeads) * c.dim; ++i) {
          const auto at = static_cast<size_t>(row * c.cols() + i);
          const bool of_k = i >= kHeads * c.dim;
          auto& want = of_k ? want_k : want_q;
          const auto column = static_cast<size_t>(of_k ? i - kHeads * c.dim : i);
          want[column % want.size()] += g[at] * ones.y[at];
        }
      }
      h.run_everywhere(train_rows_of(kRows));
      h.expect_near(dq, want_q, 1e-5);
      h.expect_near(dk, want_k, 1e-5);
    }
  }
}

}  // namespace
}  // namespace headrace::test
