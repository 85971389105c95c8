// hr.patches, hr.prefix, hr.select, hr.mean_rows and their gradients.
#include <gtest/gtest.h>

#include "tests/kernel/train_harness.h"

namespace headrace::test {
namespace {

// What an operand of this type keeps of a value.
double kept(DType type, double x) {
  const auto f = static_cast<float>(x);
  if (type == DType::kF32) return static_cast<double>(f);
  return static_cast<double>(type == DType::kBF16 ? bf16_to_f32(f32_to_bf16(f))
                                                  : f16_to_f32(f32_to_f16(f)));
}

// Rows `first` .. of each of the sequences, `rows` of them, [.., n].
std::vector<double> part_of(const std::vector<double>& x, int64_t sequence, int64_t first,
                            int64_t rows, int64_t n) {
  std::vector<double> out;
  for (int64_t start = 0; start * n < static_cast<int64_t>(x.size()); start += sequence) {
    for (int64_t i = (start + first) * n; i < (start + first + rows) * n; ++i) {
      out.push_back(x[static_cast<size_t>(i)]);
    }
  }
  return out;
}

double dot(const std::vector<double>& a, const std::vector<double>& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

TEST(TrainPatches, AProductWithThemIsTheConvolution) {
  const int64_t images = 3, channels = 3, height = 12, width = 20, patch = 4, n = 5;
  for (DType type : kTrainTypes) {
    TrainHarness h("hr.patches");
    const size_t x = h.input(DType::kF32, images, channels * height * width);
    const size_t y = h.output(type, images * 15, channels * patch * patch);
    h.set(Attr::kChannels, channels);
    h.set(Attr::kHeight, height);
    h.set(Attr::kPatch, patch);
    h.normal(x, 1);
    h.run_everywhere(train_rows_of(images * 15));
    const auto from = h.values(x), rows = h.values(y);
    const auto weight = normal_values(n * channels * patch * patch, 2);
    const auto w = [&](int64_t out, int64_t c, int64_t i, int64_t j) {
      const int64_t at = ((out * channels + c) * patch + i) * patch + j;
      return static_cast<double>(weight[static_cast<size_t>(at)]);
    };
    for (int64_t s = 0; s < images; ++s) {
      for (int64_t row = 0; row < 3; ++row) {
        for (int64_t col = 0; col < 5; ++col) {
          for (int64_t out = 0; out < n; ++out) {
            double convolution = 0, product = 0;
            for (int64_t c = 0; c < channels; ++c) {
              for (int64_t i = 0; i < patch; ++i) {
                for (int64_t j = 0; j < patch; ++j) {
                  const int64_t at = ((s * channels + c) * height + row * patch + i) * width +
                                     col * patch + j;
                  convolution += w(out, c, i, j) * kept(type, from[static_cast<size_t>(at)]);
                }
              }
            }
            for (int64_t k = 0; k < channels * patch * patch; ++k) {
              const int64_t at = (s * 15 + row * 5 + col) * channels * patch * patch + k;
              product += static_cast<double>(
                             weight[static_cast<size_t>(out * channels * patch * patch + k)]) *
                         rows[static_cast<size_t>(at)];
            }
            ASSERT_EQ(product, convolution);
          }
        }
      }
    }
  }
}

struct Prefix {
  std::vector<int64_t> prefixes;
  bool positions;
};
const Prefix kPrefixes[] = {{{}, true}, {{1}, true}, {{1, 1}, true}, {{2, 3}, false}};
constexpr int64_t kSequences = 3, kOwn = 9, kCols = 37;

TEST(TrainPrefix, PutsItsRowsBeforeThoseOfEachSequenceAndAddsPositions) {
  for (DType type : kTrainTypes) {
    for (const Prefix& p : kPrefixes) {
      TrainHarness h("hr.prefix");
      const size_t x = h.input(type, kSequences * kOwn, kCols);
      h.normal(x, 1);
      int64_t before = 0;
      std::vector<double> rows;
      for (int64_t k : p.prefixes) {
        const size_t one = h.input(type, k, kCols, 2);
        h.normal(one, static_cast<uint32_t>(10 + before));
        const auto values = h.values(one);
        rows.insert(rows.end(), values.begin(), values.end());
        before += k;
      }
      const int64_t sequence = before + kOwn;
      const size_t table = p.positions ? h.input(type, sequence + 2, kCols, 4) : 0;
      const size_t y = h.output(type, kSequences * sequence, kCols);
      if (p.positions) h.normal(table, 3);
      h.set(Attr::kSequence, static_cast<double>(sequence));
      h.set(Attr::kWeights, static_cast<double>(p.prefixes.size()));
      h.set(Attr::kPositions, p.positions);
      h.run_everywhere(train_rows_of(kSequences * sequence));
      const auto own = h.values(x);
      const auto add = p.positions ? h.values(table) : std::vector<double>();
      std::vector<double> want;
      for (int64_t s = 0; s < kSequences; ++s) {
        for (int64_t i = 0; i < sequence * kCols; ++i) {
          const int64_t at = i - before * kCols;
          double value = at < 0 ? rows[static_cast<size_t>(i)]
                                : own[static_cast<size_t>(s * kOwn * kCols + at)];
          if (p.positions) value = kept(type, value + add[static_cast<size_t>(i)]);
          want.push_back(value);
        }
      }
      ASSERT_EQ(h.values(y), want);
    }
  }
}

TEST(TrainPrefix, GradientsAreSumsOverSequencesSetOrAdded) {
  const int64_t sequence = 11;
  for (DType type : kTrainTypes) {
    for (bool update : {false, true}) {
      for (bool table : {false, true}) {
        const int64_t first = table ? 0 : 2, rows = table ? 13 : 3;
        TrainHarness h("hr.prefix_grad");
        const size_t dy = h.input(type, kSequences * sequence, kCols);
        const size_t dw =
            update ? h.update(DType::kF32, rows, kCols) : h.output(DType::kF32, rows, kCols);
        h.set(Attr::kSequence, sequence);
        h.set(Attr::kFirst, static_cast<double>(first));
        h.set(Attr::kPositions, table);
        h.normal(dy, 1);
        std::vector<double> want(static_cast<size_t>(rows * kCols));
        if (update) {
          h.normal(dw, 2);
          want = h.values(dw);
        }
        const auto g = h.values(dy);
        for (int64_t s = 0; s < kSequences; ++s) {
          for (int64_t i = 0; i < std::min(rows, sequence - first) * kCols; ++i) {
            want[static_cast<size_t>(i)] +=
                g[static_cast<size_t>((s * sequence + first) * kCols + i)];
          }
        }
        h.run_everywhere(train_rows_of(kSequences * sequence));
        h.expect_near(dw, want, 1e-6);
      }
    }
  }
}

TEST(TrainPrefix, GradientsOfTwoMicroBatchesAreTheBitsOfOne) {
  const int64_t sequence = 5;
  TrainHarness whole("hr.prefix_grad"), half("hr.prefix_grad");
  const size_t all = whole.input(DType::kF32, 4 * sequence, kCols);
  const size_t want = whole.output(DType::kF32, 1, kCols);
  const size_t part = half.input(DType::kF32, 2 * sequence, kCols);
  const size_t sum = half.update(DType::kF32, 1, kCols);
  whole.normal(all, 1);
  const auto values = whole.values(all);
  for (TrainHarness* h : {&whole, &half}) h->set(Attr::kSequence, sequence);
  whole.run(train_rows_of(20));
  half.put(sum, std::vector<float>(kCols, 0));
  for (int64_t i : {0, 1}) {
    const auto from = values.begin() + i * 2 * sequence * kCols;
    half.put(part, {from, from + 2 * sequence * kCols});
    half.run(train_rows_of(10));
  }
  EXPECT_EQ(half.bits(sum), whole.bits(want));
}

TEST(TrainSelect, TakesItsRowsOfEachSequenceAndItsGradientPutsThemBack) {
  const int64_t sequence = 10;
  for (DType type : kTrainTypes) {
    for (const auto& [first, rows] : {std::pair(0, 1), std::pair(9, 1), std::pair(2, 8)}) {
      OpAndGradient h("hr.select", type, {kSequences * sequence, kCols},
                      {kSequences * rows, kCols});
      h.set(Attr::kSequence, sequence);
      h.set(Attr::kFirst, first);
      h.run_everywhere(train_rows_of(kSequences * sequence));
      EXPECT_EQ(h.op.values(h.y), part_of(h.op.values(h.x), sequence, first, rows, kCols));
      // All that dx holds is dy, in the selected rows.
      const auto dy = h.grad.values(h.dy), dx = h.grad.values(h.dx);
      EXPECT_EQ(part_of(dx, sequence, first, rows, kCols), dy);
      EXPECT_EQ(dot(dx, dx), dot(dy, dy));
    }
  }
}

TEST(TrainMeanRows, IsTheMeanOfTheRowsFromFirstOnAndItsGradientSpreadsIt) {
  for (DType type : kTrainTypes) {
    for (const auto& [sequence, first] :
         {std::pair(1, 0), std::pair(197, 1), std::pair(130, 0), std::pair(9, 8)}) {
      for (int64_t n : {5, 70}) {
        OpAndGradient h("hr.mean_rows", type, {kSequences * sequence, n}, {kSequences, n});
        h.set(Attr::kSequence, sequence);
        h.set(Attr::kFirst, first);
        h.run_everywhere(train_rows_of(kSequences * sequence));
        const auto from = h.op.values(h.x), dy = h.grad.values(h.dy);
        std::vector<double> want(dy.size()), want_dx(from.size());
        for (int64_t row = 0; row < kSequences * sequence; ++row) {
          if (row % sequence < first) continue;
          for (int64_t j = 0; j < n; ++j) {
            const auto of = static_cast<size_t>(row / sequence * n + j);
            const auto at = static_cast<size_t>(row * n + j);
            want[of] += from[at] / (sequence - first);
            want_dx[at] = dy[of] / (sequence - first);
          }
        }
        h.op.expect_near(h.y, want, 1e-6);
        h.grad.expect_near(h.dx, want_dx, 1e-7);
      }
    }
  }
}

}  // namespace
}  // namespace headrace::test
