// hr.linear and its two gradients against double precision, everywhere bit for bit the same.
#include "tests/kernel/train_harness.h"

namespace headrace::test {
namespace {

struct Sizes {
  int64_t rows, k;
  std::vector<int64_t> n;  // of each weight
  int64_t before = 0, after = 0;  // other columns of y and dy
  bool bias = false, residual = false;
  double scale = 1;

  int64_t outputs() const {
    int64_t sum = 0;
    for (const int64_t one : n) sum += one;
    return sum;
  }
  int64_t cols() const { return before + outputs() + after; }
};

const Sizes kSizes[] = {
    {5, 7, {3}},
    {33, 70, {16, 9, 40}, 0, 0, true, false, 0.5},
    {29, 600, {31}, 0, 0, false, true},
    {18, 40, {8, 8}, 5, 3, true, true, 2},
    {600, 24, {20}, 2, 0, false, true, -0.25},
};

std::vector<double> joined(const TrainHarness& h, size_t first, size_t count) {
  std::vector<double> all;
  for (size_t i = first; i < first + count; ++i) {
    const std::vector<double> one = h.values(i);
    all.insert(all.end(), one.begin(), one.end());
  }
  return all;
}

// Weights start at odd addresses.
size_t add_weights(TrainHarness& h, const Sizes& s, DType type) {
  size_t first = 0;
  for (size_t i = 0; i < s.n.size(); ++i) {
    const size_t w = h.input(type, s.n[i], s.k, 1 + static_cast<Bytes>(i));
    h.normal(w, static_cast<uint32_t>(10 + i), 0.2f);
    if (i == 0) first = w;
  }
  h.set(Attr::kWeights, static_cast<double>(s.n.size()));
  h.set(Attr::kScale, s.scale);
  h.set(Attr::kColBegin, static_cast<double>(s.before));
  return first;
}

TEST(TrainLinear, IsTheProductWithBiasAndResidualAndLeavesOtherColumnsThoseOfTheResidual) {
  for (const DType type : kTrainTypes) {
    for (const Sizes& s : kSizes) {
      TrainHarness h("hr.linear");
      const size_t x = h.input(type, s.rows, s.k);
      h.normal(x, 1);
      const size_t first = add_weights(h, s, type);
      size_t bias = 0;
      for (size_t i = 0; s.bias && i < s.n.size(); ++i) {
        bias = h.input(DType::kF32, 1, s.n[i], 3);
        h.normal(bias, static_cast<uint32_t>(20 + i));
      }
      const size_t residual = s.residual ? h.input(type, s.rows, s.cols()) : 0;
      if (s.residual) h.normal(residual, 30);
      h.set(Attr::kBias, s.bias ? 1 : 0);
      const size_t y = h.output(type, s.rows, s.cols());
      h.run_everywhere(train_rows_of(s.rows));
      const std::vector<double> xs = h.values(x), ws = joined(h, first, s.n.size());
      const std::vector<double> rs = s.residual ? h.values(residual) : std::vector<double>();
      const std::vector<double> bs =
          s.bias ? joined(h, bias + 1 - s.n.size(), s.n.size()) : std::vector<double>();
      std::vector<double> want(static_cast<size_t>(s.rows * s.cols()));
      for (size_t i = 0; i < want.size(); ++i) {
        const int64_t t = static_cast<int64_t>(i) / s.cols();
        const int64_t j = static_cast<int64_t>(i) % s.cols() - s.before;
        if (j >= 0 && j < s.outputs()) {
          for (int64_t p = 0; p < s.k; ++p) {
            want[i] += s.scale * xs[static_cast<size_t>(t * s.k + p)] *
                       ws[static_cast<size_t>(j * s.k + p)];
          }
          if (s.bias) want[i] += bs[static_cast<size_t>(j)];
        }
        if (s.residual) want[i] += rs[i];
      }
      h.expect_near(y, want, 2e-5);
    }
  }
}

TEST(TrainLinear, DxSumsOverAllWeightsAndAddsWhatItIsGiven) {
  for (const DType type : kTrainTypes) {
    for (const Sizes& s : kSizes) {
      TrainHarness h("hr.linear_dx");
      const size_t dy = h.input(type, s.rows, s.cols());
      h.normal(dy, 1);
      const size_t first = add_weights(h, s, type);
      const size_t add = s.residual ? h.input(type, s.rows, s.k) : 0;
      if (s.residual) h.normal(add, 30);
      const size_t dx = h.output(type, s.rows, s.k);
      h.run_everywhere(train_rows_of(s.rows));
      const std::vector<double> ys = h.values(dy), ws = joined(h, first, s.n.size());
      std::vector<double> want(static_cast<size_t>(s.rows * s.k));
      if (s.residual) want = h.values(add);
      for (size_t i = 0; i < want.size(); ++i) {
        const int64_t t = static_cast<int64_t>(i) / s.k, p = static_cast<int64_t>(i) % s.k;
        for (int64_t j = 0; j < s.outputs(); ++j) {
          want[i] += s.scale * ys[static_cast<size_t>(t * s.cols() + s.before + j)] *
                     ws[static_cast<size_t>(j * s.k + p)];
        }
      }
      h.expect_near(dx, want, 2e-5);
    }
  }
}

TEST(TrainLinear, DxIsTheSameBitsHoweverTheWeightIsCut) {
  std::string whole;
  for (const std::vector<int64_t>& n : {std::vector<int64_t>{700}, {1, 511, 100, 88}}) {
    TrainHarness h("hr.linear_dx");
    h.normal(h.input(DType::kF32, 9, 700), 1);
    const std::vector<float> values = normal_values(700 * 12, 2);
    int64_t row = 0;
    for (const int64_t rows : n) {
      h.put(h.input(DType::kF32, rows, 12),
            {values.begin() + row * 12, values.begin() + (row + rows) * 12});
      row += rows;
    }
    h.set(Attr::kWeights, static_cast<double>(n.size()));
    h.set(Attr::kScale, 1);
    const size_t dx = h.output(DType::kF32, 9, 12);
    h.run(train_rows_of(9), 2);
    if (whole.empty()) whole = h.bits(dx);
    EXPECT_TRUE(h.bits(dx) == whole);
  }
}

struct Gradients {
  TrainHarness h{"hr.linear_dw"};
  size_t dy = 0, x = 0, dw = 0, db = 0;

  // Of the first weight alone.
  Gradients(const Sizes& s, DType type, bool update) {
    dy = h.input(type, s.rows, s.cols());
    x = h.input(type, s.rows, s.k);
    h.normal(dy, 1);
    h.normal(x, 2);
    const auto target = [&](int64_t rows, int64_t cols) {
      return update ? h.update(DType::kF32, rows, cols) : h.output(DType::kF32, rows, cols);
    };
    dw = target(s.n[0], s.k);
    if (s.bias) db = target(1, s.n[0]);
    h.set(Attr::kBias, s.bias ? 1 : 0);
    h.set(Attr::kScale, s.scale);
    h.set(Attr::kColBegin, static_cast<double>(s.before));
    for (const size_t t : {dw, db}) {
      if (update && t > 0) h.normal(t, static_cast<uint32_t>(t));
    }
  }
};

TEST(TrainLinear, DwAndDbAreSumsOverTheRows) {
  for (const DType type : kTrainTypes) {
    for (const Sizes& s : kSizes) {
      Gradients g(s, type, false);
      g.h.run_everywhere(train_rows_of(s.rows));
      const std::vector<double> ys = g.h.values(g.dy), xs = g.h.values(g.x);
      std::vector<double> dw(static_cast<size_t>(s.n[0] * s.k)), db(static_cast<size_t>(s.n[0]));
      for (int64_t t = 0; t < s.rows; ++t) {
        for (int64_t j = 0; j < s.n[0]; ++j) {
          const double y = ys[static_cast<size_t>(t * s.cols() + s.before + j)];
          db[static_cast<size_t>(j)] += y;
          for (int64_t p = 0; p < s.k; ++p) {
            dw[static_cast<size_t>(j * s.k + p)] +=
                s.scale * y * xs[static_cast<size_t>(t * s.k + p)];
          }
        }
      }
      g.h.expect_near(g.dw, dw, 2e-5);
      if (s.bias) g.h.expect_near(g.db, db, 2e-5);
    }
  }
}

TEST(TrainLinear, UpdatesOfDwAreWhatItWritesAddedOnce) {
  for (const DType type : kTrainTypes) {
    for (const Sizes& s : kSizes) {
      Gradients written(s, type, false), added(s, type, true);
      written.h.run(train_rows_of(s.rows));
      const std::vector<double> dw = added.h.values(added.dw);
      const std::vector<double> db = s.bias ? added.h.values(added.db) : std::vector<double>();
      added.h.run_everywhere(train_rows_of(s.rows));
      const auto expect = [&](const std::vector<double>& before, size_t w, size_t a) {
        const std::vector<double> more = written.h.values(w), sum = added.h.values(a);
        for (size_t i = 0; i < before.size(); ++i) {
          ASSERT_EQ(static_cast<float>(sum[i]),
                    static_cast<float>(before[i]) + static_cast<float>(more[i]));
        }
      };
      expect(dw, written.dw, added.dw);
      if (s.bias) expect(db, written.db, added.db);
    }
  }
}

}  // namespace
}  // namespace headrace::test
