#include "headrace/kernel/train_attention.h"

#include <gtest/gtest.h>

#include "tests/kernel/train_harness.h"

namespace headrace::test {
namespace {

struct Shape {
  int64_t sequences, sequence, heads, kv_heads, head_dim;
  DType type;
  bool causal = true;
  int64_t window = 0;

  bool sees(int64_t query, int64_t key) const {
    return (!causal || key <= query) && (window == 0 || std::abs(query - key) < window);
  }
  int64_t rows() const { return sequences * sequence; }
  int64_t qkv() const { return (heads + 2 * kv_heads) * head_dim; }
  int64_t o() const { return heads * head_dim; }
  double scale() const { return 1 / std::sqrt(static_cast<double>(head_dim)); }
};

std::vector<Shape> shapes() {
  std::vector<Shape> all;
  for (DType type : kTrainTypes) {
    all.push_back({1, 1, 1, 1, 16, type});
    all.push_back({3, 5, 2, 2, 20, type});
    all.push_back({2, 64, 4, 2, 64, type});
    all.push_back({1, 135, 3, 1, 48, type});
    all.push_back({2, 70, 2, 1, 80, type});
    for (bool causal : {true, false}) {
      all.push_back({3, 5, 2, 2, 20, type, causal, 2});
      all.push_back({2, 130, 2, 1, 16, type, causal, 65});  // the window's edge is in two blocks
      all.push_back({1, 197, 1, 1, 32, type, causal, 30});
      all.push_back({1, 200, 1, 1, 16, type, causal, 1});   // itself alone
    }
    all.push_back({1, 1, 1, 1, 16, type, false});
    all.push_back({2, 197, 3, 3, 64, type, false});  // images of 14 x 14 patches and a class token
    all.push_back({1, 128, 4, 2, 48, type, false});
    all.push_back({3, 18, 2, 1, 20, type, false});
  }
  return all;
}

// Attention in double, from the values of qkv and, backward, of do.
class Reference {
 public:
  Reference(const Shape& shape, std::vector<double> qkv) : s(shape), x(std::move(qkv)) {
    o.resize(static_cast<size_t>(s.rows() * s.o()));
    lse.resize(static_cast<size_t>(s.rows() * s.heads));
    each_query([&](int64_t row, int64_t head, int64_t first) {
      const std::vector<double> p = weights(row, head, first);
      for (int64_t key = first; key < first + s.sequence; ++key) {
        for (int64_t i = 0; i < s.head_dim; ++i) {
          o[out(row, head, i)] += p[static_cast<size_t>(key - first)] * x[v(key, head, i)];
        }
      }
    });
  }

  std::vector<double> gradient(const std::vector<double>& d_o) {
    std::vector<double> dx(x.size());
    each_query([&](int64_t row, int64_t head, int64_t first) {
      const std::vector<double> p = weights(row, head, first);
      double mean = 0;
      for (int64_t i = 0; i < s.head_dim; ++i) {
        mean += d_o[out(row, head, i)] * o[out(row, head, i)];
      }
      for (int64_t key = first; key < first + s.sequence; ++key) {
        const double weight = p[static_cast<size_t>(key - first)];
        double slope = 0;
        for (int64_t i = 0; i < s.head_dim; ++i) {
          slope += d_o[out(row, head, i)] * x[v(key, head, i)];
          dx[v(key, head, i)] += weight * d_o[out(row, head, i)];
        }
        const double ds = weight * (slope - mean) * s.scale();
        for (int64_t i = 0; i < s.head_dim; ++i) {
          dx[q(row, head, i)] += ds * x[k(key, head, i)];
          dx[k(key, head, i)] += ds * x[q(row, head, i)];
        }
      }
    });
    return dx;
  }

  Shape s;
  std::vector<double> x, o, lse;

 private:
  size_t at(int64_t row, int64_t head, int64_t i) const {
    return static_cast<size_t>(row * s.qkv() + head * s.head_dim + i);
  }
  size_t q(int64_t row, int64_t head, int64_t i) const { return at(row, head, i); }
  size_t k(int64_t row, int64_t head, int64_t i) const {
    return at(row, s.heads + head / (s.heads / s.kv_heads), i);
  }
  size_t v(int64_t row, int64_t head, int64_t i) const {
    return at(row, s.heads + s.kv_heads + head / (s.heads / s.kv_heads), i);
  }
  size_t out(int64_t row, int64_t head, int64_t i) const {
    return static_cast<size_t>((row * s.heads + head) * s.head_dim + i);
  }
  template <typename F>
  void each_query(F&& fn) {
    for (int64_t row = 0; row < s.rows(); ++row) {
      for (int64_t head = 0; head < s.heads; ++head) fn(row, head, row / s.sequence * s.sequence);
    }
  }
  std::vector<double> weights(int64_t row, int64_t head, int64_t first) {
    std::vector<double> p;
    double most = -1e300, sum = 0;
    for (int64_t key = first; key < first + s.sequence; ++key) {
      double dot = 0;
      for (int64_t i = 0; i < s.head_dim; ++i) dot += x[q(row, head, i)] * x[k(key, head, i)];
      p.push_back(s.sees(row, key) ? dot * s.scale() : -INFINITY);
      most = std::max(most, p.back());
    }
    for (double& w : p) sum += w = std::exp(w - most);
    for (double& w : p) w /= sum;
    lse[static_cast<size_t>(row * s.heads + head)] = most + std::log(sum);
    return p;
  }
};

void set_attrs(TrainHarness& h, const Shape& s) {
  h.set(Attr::kHeads, static_cast<double>(s.heads));
  h.set(Attr::kKvHeads, static_cast<double>(s.kv_heads));
  h.set(Attr::kHeadDim, static_cast<double>(s.head_dim));
  h.set(Attr::kSequence, static_cast<double>(s.sequence));
  h.set(Attr::kScale, s.scale());
  if (!s.causal) h.set(Attr::kCausal, 0);
  if (s.window > 0) h.set(Attr::kWindow, static_cast<double>(s.window));
}

TEST(TrainAttention, FollowsItsFormulaInDoublePrecision) {
  for (const Shape& s : shapes()) {
    TrainHarness h("hr.attention");
    const size_t qkv = h.input(s.type, s.rows(), s.qkv());
    const size_t o = h.output(s.type, s.rows(), s.o());
    const size_t lse = h.output(DType::kF32, s.rows(), s.heads);
    set_attrs(h, s);
    h.normal(qkv, 1, 2);
    h.run_everywhere(train_rows_of(s.rows()));
    const Reference want(s, h.values(qkv));
    h.expect_near(o, want.o, 1e-5);  // scores of 20 are rounded at 1e-6
    h.expect_near(lse, want.lse, 2e-6);
  }
}

TEST(TrainAttention, GradientsAreThoseOfItsFormulaInDoublePrecision) {
  for (const Shape& s : shapes()) {
    TrainHarness h("hr.attention_grad");
    const size_t d_o = h.input(s.type, s.rows(), s.o());
    const size_t qkv = h.input(s.type, s.rows(), s.qkv());
    const size_t o = h.input(s.type, s.rows(), s.o());
    const size_t lse = h.input(DType::kF32, s.rows(), s.heads);
    const size_t dqkv = h.output(s.type, s.rows(), s.qkv());
    set_attrs(h, s);
    h.normal(d_o, 1);
    h.normal(qkv, 2, 2);
    Reference want(s, h.values(qkv));
    h.put(o, {want.o.begin(), want.o.end()});
    h.put(lse, {want.lse.begin(), want.lse.end()});
    h.run_everywhere(train_rows_of(s.rows()));
    // bf16 and f16: do . o is of an o that was rounded.
    if (s.type != DType::kF32) want.o = h.values(o);
    h.expect_near(dqkv, want.gradient(h.values(d_o)), 2e-5);
  }
}

TEST(TrainAttention, TheReferencesGradientIsThatOfCentralDifferences) {
  for (const Shape& s : {Shape{2, 7, 4, 2, 6, DType::kF32},
                         Shape{2, 7, 4, 2, 6, DType::kF32, false},
                         Shape{1, 9, 2, 1, 6, DType::kF32, false, 3}}) {
    const auto floats = normal_values(s.rows() * s.qkv(), 1);
    const auto slopes = normal_values(s.rows() * s.o(), 2);
    const std::vector<double> x(floats.begin(), floats.end()), d_o(slopes.begin(), slopes.end());
    const std::vector<double> got = Reference(s, x).gradient(d_o);
    const auto loss = [&](size_t i, double shift) {
      std::vector<double> moved = x;
      moved[i] += shift;
      const Reference r(s, moved);
      double sum = 0;
      for (size_t k = 0; k < r.o.size(); ++k) sum += r.o[k] * d_o[k];
      return sum;
    };
    for (size_t i = 0; i < x.size(); i += 3) {
      ASSERT_NEAR(got[i], (loss(i, 1e-5) - loss(i, -1e-5)) / 2e-5, 1e-8) << i;
    }
  }
}

TEST(TrainAttention, LargeScoresNeitherOverflowNorLoseTheirSum) {
  const Shape s{1, 130, 1, 1, 16, DType::kF32};
  TrainHarness h("hr.attention");
  const size_t qkv = h.input(s.type, s.rows(), s.qkv());
  const size_t o = h.output(s.type, s.rows(), s.o());
  const size_t lse = h.output(DType::kF32, s.rows(), s.heads);
  set_attrs(h, s);
  h.normal(qkv, 3, 30);  // scores of a few thousand, ascending and descending
  h.run_everywhere(train_rows_of(s.rows()));
  const Reference want(s, h.values(qkv));
  h.expect_near(o, want.o, 2e-3);  // scores are rounded at 1e-4
  h.expect_near(lse, want.lse, 1e-6);
}

TEST(TrainAttention, AWindowAsLongAsTheSequenceGivesTheBitsOfNone) {
  for (const bool causal : {true, false}) {
    Shape s{2, 150, 2, 1, 32, DType::kF32, causal};
    std::string want;
    for (const int64_t window : {0, 150, 4096}) {
      s.window = window;
      TrainHarness h("hr.attention");
      const size_t qkv = h.input(s.type, s.rows(), s.qkv());
      const size_t o = h.output(s.type, s.rows(), s.o());
      h.output(DType::kF32, s.rows(), s.heads);
      set_attrs(h, s);
      h.normal(qkv, 1);
      h.run(train_rows_of(s.rows()));
      if (want.empty()) want = h.bits(o);
      EXPECT_TRUE(h.bits(o) == want) << window;
    }
  }
}

TEST(TrainAttention, WithoutCausalityEveryPositionSeesTheLastOneOfItsSequence) {
  const Shape s{2, 197, 1, 1, 32, DType::kF32, false};
  TrainHarness h("hr.attention");
  const size_t qkv = h.input(s.type, s.rows(), s.qkv());
  const size_t o = h.output(s.type, s.rows(), s.o());
  h.output(DType::kF32, s.rows(), s.heads);
  set_attrs(h, s);
  h.normal(qkv, 1);
  h.run(train_rows_of(s.rows()));
  const std::string before = h.bits(o);
  auto values = h.values(qkv);
  std::vector<float> changed(values.begin(), values.end());
  for (int64_t i = 196 * s.qkv(); i < 197 * s.qkv(); ++i) changed[static_cast<size_t>(i)] += 5;
  h.put(qkv, changed);
  h.run(train_rows_of(s.rows()));
  const auto row = static_cast<size_t>(s.o() * 4);
  for (size_t i = 0; i < 197; ++i) {
    EXPECT_NE(h.bits(o).substr(i * row, row), before.substr(i * row, row)) << i;
  }
  EXPECT_EQ(h.bits(o).substr(197 * row), before.substr(197 * row));
}

TEST(TrainAttention, ASequenceDoesNotSeeTheOthersOrLaterPositions) {
  const Shape s{2, 100, 2, 1, 32, DType::kF32};
  TrainHarness h("hr.attention");
  const size_t qkv = h.input(s.type, s.rows(), s.qkv());
  const size_t o = h.output(s.type, s.rows(), s.o());
  h.output(DType::kF32, s.rows(), s.heads);
  set_attrs(h, s);
  h.normal(qkv, 1);
  h.run(train_rows_of(s.rows()));
  const std::string before = h.bits(o);
  auto values = h.values(qkv);
  std::vector<float> changed(values.begin(), values.end());
  for (int64_t i = 90 * s.qkv(); i < 100 * s.qkv(); ++i) changed[static_cast<size_t>(i)] += 5;
  h.put(qkv, changed);
  h.run(train_rows_of(s.rows()));
  const auto row = static_cast<size_t>(s.o() * 4);
  EXPECT_EQ(h.bits(o).substr(0, 90 * row), before.substr(0, 90 * row));
  EXPECT_NE(h.bits(o).substr(90 * row, row), before.substr(90 * row, row));
  EXPECT_EQ(h.bits(o).substr(100 * row), before.substr(100 * row));
}

}  // namespace
}  // namespace headrace::test
