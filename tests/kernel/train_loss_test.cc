// hr.loss against double precision, everywhere bit for bit the same; hr.mean_loss.
#include <algorithm>
#include <cmath>

#include "headrace/kernel/train_linear.h"
#include "headrace/kernel/train_loss_rows.h"
#include "tests/kernel/train_harness.h"

namespace headrace::test {
namespace {

struct Sizes {
  int64_t rows, n;
  std::vector<int64_t> tiles;
  int64_t row_begin = 0;
  double loss_scale = 1;
  bool bias = false;
  double scale = 1;
  bool own_mean = false;
  double smoothing = 0;
  bool weighted = false;

  int64_t vocab() const {
    int64_t sum = 0;
    for (const int64_t v : tiles) sum += v;
    return sum;
  }
};

// Of row t, where rows are weighted.
float weight(int64_t t) { return 0.01f * static_cast<float>(1 + t % 3); }

// Every fifth row of the step has no target.
StepRows step_with_targets(const Sizes& s) {
  StepRows step = train_rows_of(s.row_begin + s.rows + 2);
  for (int64_t i = 0; i < step.rows(); ++i) {
    step.targets.push_back(i % 5 == 3 ? -1 : static_cast<int32_t>(i * 7919 % s.vocab()));
  }
  step.loss_scale = s.loss_scale;
  return step;
}

struct LossOp {
  TrainHarness h{"hr.loss"};
  size_t x = 0, first_tile = 0, loss = 0, dx = 0;
  std::vector<size_t> targets;

  LossOp(const Sizes& s, DType type, int grad, bool update = false) {
    x = h.input(type, s.rows, s.n);
    h.normal(x, 1);
    for (size_t i = 0; i < s.tiles.size(); ++i) {
      const size_t w = h.input(type, s.tiles[i], s.n, 1 + static_cast<Bytes>(i));
      h.normal(w, static_cast<uint32_t>(2 + i), 0.3f);
      if (i == 0) first_tile = w;
    }
    for (size_t i = 0; s.bias && i < s.tiles.size(); ++i) {
      h.normal(h.input(DType::kF32, 1, s.tiles[i], 4), static_cast<uint32_t>(80 + i), 0.5f);
    }
    if (s.weighted) {
      std::vector<float> weights;
      for (int64_t t = 0; t < s.rows; ++t) weights.push_back(weight(t));
      h.put(h.input(DType::kF32, s.rows, 1), weights);
    }
    loss = h.output(DType::kF32, s.rows, 1);
    if (grad > 0) dx = h.output(type, s.rows, s.n);
    const size_t weights = s.tiles.size() * (s.bias ? 2 : 1);
    for (size_t i = 0; grad > 1 && i < weights; ++i) {
      const bool of_bias = i >= s.tiles.size();
      const int64_t v = s.tiles[i % s.tiles.size()], r = of_bias ? 1 : v, c = of_bias ? v : s.n;
      targets.push_back(update ? h.update(DType::kF32, r, c) : h.output(DType::kF32, r, c));
      if (update) h.normal(targets.back(), static_cast<uint32_t>(50 + i));
    }
    h.set(Attr::kGrad, grad);
    h.set(Attr::kRowBegin, static_cast<double>(s.row_begin));
    if (s.bias) h.set(Attr::kBias, 1);
    if (s.scale != 1) h.set(Attr::kScale, s.scale);
    if (s.own_mean) h.set(Attr::kOwnMean, 1);
    if (s.weighted) h.set(Attr::kWeights, 1);
    if (s.smoothing > 0) h.set(Attr::kSmoothing, s.smoothing);
  }

  struct Wanted {
    std::vector<double> loss, dx, dw;  // dw: of all tiles, then of all biases
  };
  Wanted wanted(const Sizes& s, const StepRows& step) const {
    std::vector<double> w;
    for (size_t i = 0; i < s.tiles.size(); ++i) {
      const std::vector<double> one = h.values(first_tile + i);
      w.insert(w.end(), one.begin(), one.end());
    }
    std::vector<double> shift(static_cast<size_t>(s.vocab()));
    for (size_t i = 0, at = 0; s.bias && i < s.tiles.size(); ++i) {
      const std::vector<double> one = h.values(first_tile + s.tiles.size() + i);
      std::copy(one.begin(), one.end(), shift.begin() + static_cast<std::ptrdiff_t>(at));
      at += one.size();
    }
    const std::vector<double> xs = h.values(x);
    const auto n = static_cast<size_t>(s.n), vocab = static_cast<size_t>(s.vocab());
    const auto begin = step.targets.begin() + (s.own_mean ? s.row_begin : 0);
    const auto end = s.own_mean ? begin + s.rows : step.targets.end();
    const auto counted =
        static_cast<double>(std::count_if(begin, end, [](int32_t t) { return t >= 0; }));
    Wanted out{std::vector<double>(static_cast<size_t>(s.rows)), std::vector<double>(xs.size()),
               std::vector<double>(w.size() + (s.bias ? vocab : 0))};
    for (size_t t = 0; t < out.loss.size(); ++t) {
      const int32_t target = step.targets[static_cast<size_t>(s.row_begin) + t];
      if (target < 0) continue;
      std::vector<double> p(vocab);
      double sum = 0;
      for (size_t v = 0; v < vocab; ++v) {
        p[v] = shift[v];
        for (size_t j = 0; j < n; ++j) p[v] += xs[t * n + j] * w[v * n + j];
        sum += std::exp(p[v]);
      }
      out.loss[t] = std::log(sum);
      for (size_t v = 0; v < vocab; ++v) {
        const double hit = (v == static_cast<size_t>(target) ? 1 - s.smoothing : 0) +
                           s.smoothing / static_cast<double>(vocab);
        out.loss[t] -= hit * p[v];
        const double share =
            s.weighted ? static_cast<double>(weight(static_cast<int64_t>(t))) : 1 / counted;
        const double d = (std::exp(p[v]) / sum - hit) * s.loss_scale * s.scale * share;
        if (s.bias) out.dw[w.size() + v] += d;
        for (size_t j = 0; j < n; ++j) {
          out.dx[t * n + j] += d * w[v * n + j];
          out.dw[v * n + j] += d * xs[t * n + j];
        }
      }
    }
    return out;
  }
};

const Sizes kSizes[] = {
    {6, 5, {19}},
    {33, 24, {40, 30, 7}, 3, 16},
    {70, 16, {100, 1}, 0, 128},
    {1, 8, {16}, 2, 1},
    {33, 24, {40, 30, 7}, 3, 16, true},
    {9, 8, {10}, 4, 1, true, 0.25, true},
    {33, 24, {77}, 3, 2, false, 0.5, true},
    {20, 24, {70, 7}, 1, 1, true, 1, false, 0.1},
    {9, 8, {10}, 0, 1, false, 1, false, 1},
    {33, 24, {40, 30, 7}, 3, 16, true, 0.5, false, 0, true},
    {9, 8, {10}, 4, 1, false, 1, true, 0, true},
};

TEST(TrainLoss, LossAndGradientsAreThoseOfTheMeanCrossEntropy) {
  for (const DType type : kTrainTypes) {
    for (const Sizes& s : kSizes) {
      const StepRows step = step_with_targets(s);
      for (const int grad : {0, 1, 2}) {
        LossOp op(s, type, grad);
        op.h.run_everywhere(step);
        const LossOp::Wanted want = op.wanted(s, step);
        op.h.expect_near(op.loss, want.loss, 1e-5);
        // bf16 rounds every logit's gradient to 8 bits, f16 to 11.
        const double tolerance = (type == DType::kBF16  ? 1e-2
                                  : type == DType::kF16 ? 1.25e-3
                                                        : 1e-5) * s.loss_scale;
        if (grad > 0) op.h.expect_near(op.dx, want.dx, tolerance);
        size_t at = 0;
        for (const size_t t : op.targets) {
          const std::vector<double> dw = op.h.values(t);
          for (size_t i = 0; i < dw.size(); ++i) {
            ASSERT_NEAR(dw[i], want.dw[at + i], tolerance * (1 + std::fabs(want.dw[at + i])));
          }
          at += dw.size();
        }
      }
    }
  }
}

TEST(TrainLoss, ALossIsTheSameBitsWithAndWithoutItsGradient) {
  const Sizes s{33, 24, {40, 30, 7}, 3, 16};
  LossOp alone(s, DType::kF32, 0), with(s, DType::kF32, 2);
  alone.h.run(step_with_targets(s));
  with.h.run(step_with_targets(s));
  EXPECT_EQ(alone.h.bits(alone.loss), with.h.bits(with.loss));
}

TEST(TrainLoss, AGradientThatF16CannotHoldBecomesInfinity) {
  Sizes s{4, 8, {50}};
  s.loss_scale = 0x1p24;
  LossOp op(s, DType::kF16, 2);
  op.h.run_everywhere(step_with_targets(s));
  const std::vector<double> loss = op.h.values(op.loss), dw = op.h.values(op.targets[0]);
  EXPECT_TRUE(std::isfinite(loss[0]));
  EXPECT_TRUE(std::any_of(dw.begin(), dw.end(), [](double x) { return !std::isfinite(x); }));
}

TEST(TrainLoss, ARowWithoutATargetCountsForNothing) {
  const Sizes s{12, 8, {50}};
  StepRows step = step_with_targets(s);
  LossOp op(s, DType::kF32, 2);
  op.h.run(step);
  const std::vector<double> loss = op.h.values(op.loss), dx = op.h.values(op.dx);
  for (size_t j = 0; j < 8; ++j) EXPECT_EQ(dx[3 * 8 + j], 0);
  EXPECT_EQ(loss[3], 0);
  EXPECT_GT(loss[4], 0);
  std::fill(step.targets.begin(), step.targets.end(), -1);
  op.h.run(step);
  for (const double value : op.h.values(op.loss)) EXPECT_EQ(value, 0);
  for (const double value : op.h.values(op.targets[0])) EXPECT_EQ(value, 0);
}

TEST(TrainLoss, GradientsOfSeveralChunksAreAddedInTheOrderOfTheTokens) {
  const int64_t vocab = 32;
  Sizes s{train_loss_chunk(vocab) + 40, 6, {20, 12}};
  s.bias = true;
  const StepRows step = step_with_targets(s);
  LossOp written(s, DType::kF32, 2), added(s, DType::kF32, 2, true);
  written.h.run_everywhere(step);
  const LossOp::Wanted want = written.wanted(s, step);
  written.h.expect_near(written.dx, want.dx, 1e-5);
  std::vector<std::vector<double>> before;
  for (const size_t t : added.targets) before.push_back(added.h.values(t));
  added.h.run_everywhere(step);
  size_t at = 0;
  for (size_t i = 0; i < added.targets.size(); ++i) {
    const std::vector<double> sum = added.h.values(added.targets[i]);
    for (size_t j = 0; j < sum.size(); ++j) {
      ASSERT_NEAR(sum[j], before[i][j] + want.dw[at + j], 1e-6);
    }
    at += sum.size();
  }
}

TEST(TrainLoss, LogitsFarApartNeitherOverflowNorLoseTheLoss) {
  const Sizes s{4, 2, {3}};
  LossOp op(s, DType::kF32, 1);
  op.h.put(op.x, {300, 0, -300, 0, 300, 0, 0, 300});
  op.h.put(op.first_tile, {1, 0, -1, 0, 0, 1});
  StepRows step = train_rows_of(4);
  step.targets = {0, 0, 1, 2};
  op.h.run_everywhere(step);
  EXPECT_EQ(op.h.values(op.loss), (std::vector<double>{0, 600, 600, 0}));
}

TEST(TrainLoss, MoreColumnsThanOneBlockOfTheSumOfExponentials) {
  const Sizes s{3, 4, {kLossBlock, 37}};
  const StepRows step = step_with_targets(s);
  LossOp op(s, DType::kF32, 1);
  op.h.run_everywhere(step);
  const LossOp::Wanted want = op.wanted(s, step);
  op.h.expect_near(op.loss, want.loss, 1e-6);
  op.h.expect_near(op.dx, want.dx, 1e-6);
}

TEST(TrainLoss, ANotANumberInALogitIsSeenInTheLoss) {
  const Sizes s{2, 2, {40}};
  LossOp op(s, DType::kF32, 0);
  op.h.put(op.x, {NAN, 0, 1, 1});
  for (const Isa isa : all_isas()) {
    IsaScope scope(isa);
    op.h.run(step_with_targets(s));
    EXPECT_TRUE(std::isnan(op.h.values(op.loss)[0])) << name_of(isa);
    EXPECT_FALSE(std::isnan(op.h.values(op.loss)[1])) << name_of(isa);
  }
}

TEST(TrainLoss, ChunksAreSmallerForLargeVocabularies) {
  EXPECT_EQ(train_loss_chunk(256), 512);
  EXPECT_EQ(train_loss_chunk(8192), 512);
  EXPECT_EQ(train_loss_chunk(50257), 160);
  EXPECT_EQ(train_loss_chunk(1 << 20), 64);
}

TEST(TrainMeanLoss, IsTheMeanOverCountedTargetsOfTheStep) {
  TrainHarness h("hr.mean_loss");
  h.put(h.input(DType::kF32, 3, 1), {1.5f, 0, 2});
  h.put(h.input(DType::kF32, 2, 1), {4, 0.5f});
  const size_t mean = h.output(DType::kF32, 1, 1);
  StepRows step = train_rows_of(5);
  step.targets = {7, -1, 3, 2, 1};
  h.run_everywhere(step);
  EXPECT_EQ(h.values(mean)[0], 2);
  step.targets.assign(5, -1);
  h.run(step);
  EXPECT_EQ(h.values(mean)[0], 0);
}

}  // namespace
}  // namespace headrace::test
