#include "headrace/kernel/train_attention.h"

#include <gtest/gtest.h>

#include <numeric>

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

// hr.attention of normal values.
struct Forward {
  Forward(const Shape& s, uint32_t seed, float deviation = 1)
      : shape(s),
        qkv(h.input(s.type, s.rows(), s.qkv())),
        o(h.output(s.type, s.rows(), s.o())),
        lse(h.output(DType::kF32, s.rows(), s.heads)) {
    set_attrs(h, s);
    h.normal(qkv, seed, deviation);
  }
  void expect_near(double tolerance_of_o, double tolerance_of_lse) {
    h.run_everywhere(train_rows_of(shape.rows()));
    const Reference want(shape, h.values(qkv));
    h.expect_near(o, want.o, tolerance_of_o);
    h.expect_near(lse, want.lse, tolerance_of_lse);
  }

  Shape shape;
  TrainHarness h{"hr.attention"};
  size_t qkv, o, lse;
};

TEST(TrainAttention, FollowsItsFormulaInDoublePrecision) {
  // Scores of 20 are rounded at 1e-6.
  for (const Shape& s : shapes()) Forward(s, 1, 2).expect_near(1e-5, 2e-6);
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
  // Scores of a few thousand, ascending and descending, are rounded at 1e-4.
  Forward({1, 130, 1, 1, 16, DType::kF32}, 3, 30).expect_near(2e-3, 1e-6);
}

TEST(TrainAttention, AWindowAsLongAsTheSequenceGivesTheBitsOfNone) {
  for (const bool causal : {true, false}) {
    std::string want;
    for (const int64_t window : {0, 150, 4096}) {
      Forward f({2, 150, 2, 1, 32, DType::kF32, causal, window}, 1);
      f.h.run(train_rows_of(f.shape.rows()));
      if (want.empty()) want = f.h.bits(f.o);
      EXPECT_TRUE(f.h.bits(f.o) == want) << window;
    }
  }
}

// The rows of o that get other bits when rows [begin, end) of qkv change.
std::vector<int64_t> rows_that_see(int64_t begin, int64_t end, const Shape& s) {
  Forward f(s, 1);
  f.h.run(train_rows_of(s.rows()));
  const std::string before = f.h.bits(f.o);
  const auto values = f.h.values(f.qkv);
  std::vector<float> changed(values.begin(), values.end());
  for (int64_t i = begin * s.qkv(); i < end * s.qkv(); ++i) changed[static_cast<size_t>(i)] += 5;
  f.h.put(f.qkv, changed);
  f.h.run(train_rows_of(s.rows()));
  const std::string after = f.h.bits(f.o);
  std::vector<int64_t> out;
  const size_t row = after.size() / static_cast<size_t>(s.rows());
  for (int64_t i = 0; i < s.rows(); ++i) {
    const size_t at = static_cast<size_t>(i) * row;
    if (after.compare(at, row, before, at, row) != 0) out.push_back(i);
  }
  return out;
}

std::vector<int64_t> rows_from_to(int64_t begin, int64_t end) {
  std::vector<int64_t> out(static_cast<size_t>(end - begin));
  std::iota(out.begin(), out.end(), begin);
  return out;
}

TEST(TrainAttention, WithoutCausalityEveryPositionSeesTheLastOneOfItsSequence) {
  EXPECT_EQ(rows_that_see(196, 197, {2, 197, 1, 1, 32, DType::kF32, false}),
            rows_from_to(0, 197));
}

TEST(TrainAttention, ASequenceDoesNotSeeTheOthersOrLaterPositions) {
  EXPECT_EQ(rows_that_see(90, 100, {2, 100, 2, 1, 32, DType::kF32}), rows_from_to(90, 100));
}

}  // namespace
}  // namespace headrace::test
