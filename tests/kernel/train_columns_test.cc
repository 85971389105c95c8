// hr.columns, hr.scale and their gradients.
#include <gtest/gtest.h>

#include "tests/kernel/train_harness.h"

namespace headrace::test {
namespace {

constexpr int64_t kRows = 70;

// q, k and v of each of three heads of 5, then all q, all k, all v.
std::vector<float> interleaved() {
  std::vector<float> index;
  for (int part = 0; part < 3; ++part) {
    for (int head = 0; head < 3; ++head) {
      for (int i = 0; i < 5; ++i) index.push_back(static_cast<float>(head * 15 + part * 5 + i));
    }
  }
  return index;
}

TEST(TrainColumns, TakesTheNamedColumnsAndItsGradientPutsThemBack) {
  const std::vector<std::vector<float>> indices = {
      interleaved(), {44}, {3, 2, 1, 0}, {7, 8, 9, 20, 21, 0}};
  for (DType type : kTrainTypes) {
    for (const std::vector<float>& index : indices) {
      OpAndGradient h("hr.columns", type, {kRows, 45},
                      {kRows, static_cast<int64_t>(index.size())});
      h.input(index);
      h.run_everywhere(train_rows_of(kRows));
      const auto from = h.op.values(h.x), g = h.grad.values(h.dy);
      std::vector<double> want, want_dx(from.size());
      for (size_t row = 0; row < kRows; ++row) {
        for (size_t j = 0; j < index.size(); ++j) {
          const size_t at = row * 45 + static_cast<size_t>(index[j]);
          want.push_back(from[at]);
          want_dx[at] = g[row * index.size() + j];
        }
      }
      EXPECT_EQ(h.op.values(h.y), want);
      EXPECT_EQ(h.grad.values(h.dx), want_dx);
    }
  }
}

TEST(TrainScale, MultipliesByItsNumberAndWeight) {
  for (DType type : kTrainTypes) {
    for (bool weighted : {false, true}) {
      TrainHarness h("hr.scale");
      const size_t x = h.input(type, kRows, 37);
      const size_t w = weighted ? h.input(DType::kF32, 1, 37, 3) : 0;
      const size_t y = h.output(type, kRows, 37);
      h.set(Attr::kScale, -1.5);
      h.normal(x, 1);
      if (weighted) h.normal(w, 2);
      h.run_everywhere(train_rows_of(kRows));
      std::vector<double> want = h.values(x);
      for (size_t i = 0; i < want.size(); ++i) {
        want[i] *= -1.5 * (weighted ? h.values(w)[i % 37] : 1);
      }
      h.expect_near(y, want, 1e-6);
    }
  }
}

TEST(TrainScale, TheGradientOfItsWeightIsASumOverRowsSetOrAdded) {
  for (DType type : kTrainTypes) {
    for (bool update : {false, true}) {
      TrainHarness h("hr.scale_dw");
      const size_t dy = h.input(type, kRows, 300), x = h.input(type, kRows, 300);
      const size_t dw = update ? h.update(DType::kF32, 1, 300) : h.output(DType::kF32, 1, 300);
      h.set(Attr::kScale, 0.25);
      h.normal(dy, 1);
      h.normal(x, 2);
      std::vector<double> want(300);
      if (update) {
        h.normal(dw, 3);
        want = h.values(dw);
      }
      const auto g = h.values(dy), from = h.values(x);
      for (size_t i = 0; i < g.size(); ++i) want[i % 300] += 0.25 * g[i] * from[i];
      h.run_everywhere(train_rows_of(kRows));
      h.expect_near(dw, want, 1e-5);
    }
  }
}

}  // namespace
}  // namespace headrace::test
