#include "headrace/kernel/matmul.h"

#include <sys/mman.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <tuple>
#include <vector>

#include "gtest/gtest.h"
#include "headrace/kernel/ops_cpu.h"
#include "headrace/kernel/quant.h"
#include "tests/kernel/random_weights.h"

namespace headrace {
namespace {

// One product y = a . w^T + bias + residual with random operands, run in any way.
class Product {
 public:
  Product(DType type, int64_t m, int64_t n, int64_t k, int skew = 0, uint32_t seed = 7)
      : type_(type),
        m_(m),
        n_(n),
        k_(k),
        skew_(skew),
        weight_(static_cast<size_t>(row_bytes(type, k) * n + skew)),
        a_stride_(row_bytes(a_type(), k)),
        a_(static_cast<size_t>(a_stride_ * m)) {
    Random random(seed);
    random.weights(type, n, k, weight_.data() + skew);
    x_ = random.normals(static_cast<size_t>(m * k));
    bias_ = random.normals(static_cast<size_t>(n));
    residual_ = random.normals(static_cast<size_t>(m * n));
    for (int64_t r = 0; r < m; ++r) {
      const float* x = x_.data() + r * k;
      if (a_type() == DType::kActQ8) {
        quantize_row_scalar_reference(x, a_.data() + r * a_stride_);
      } else {
        std::memcpy(a_.data() + r * a_stride_, x, static_cast<size_t>(k) * 4);
      }
    }
  }

  // Rows [row, row + rows), outputs [begin, end), by spans of `isa`; the rest of y is 0.
  std::vector<float> run(Isa isa, int64_t row, int64_t rows, int64_t begin, int64_t end) {
    std::vector<float> y(static_cast<size_t>(m_ * n_), 0.0f);
    MatmulArgs args = this->args(y.data());
    args.a += row * a_stride_;
    args.y += row * n_;
    args.residual += row * n_;
    args.m = rows;
    AlignedBytes scratch(static_cast<size_t>(matmul_scratch_bytes(type_, k_, rows)));
    matmul_span(isa)(args, begin, end, scratch.data());
    return y;
  }
  std::vector<float> run(Isa isa) { return run(isa, 0, m_, 0, n_); }

  // By matmul(), on `threads` workers, instruction set in force.
  std::vector<float> run_on(int threads) {
    std::vector<float> y(static_cast<size_t>(m_ * n_), 0.0f);
    const size_t bytes =
        static_cast<size_t>(matmul_scratch_bytes(type_, k_, m_) * threads);
    AlignedBytes workspace(bytes);
    ThreadPool pool(threads, false);
    matmul(args(y.data()), n_, {workspace.data(), bytes}, pool);
    return y;
  }

  // In double precision from dequantised operands; `scale` gets the sum of magnitudes.
  double exact(int64_t row, int64_t j, double& scale) {
    std::vector<float> w(static_cast<size_t>(k_)), a(static_cast<size_t>(k_));
    dequantize_row(type_, weight_.data() + skew_ + j * row_bytes(type_, k_), k_,
                   w.data());
    dequantize_row(a_type(), a_.data() + row * a_stride_, k_, a.data());
    const double b = bias_[static_cast<size_t>(j)];
    const double r = residual_[static_cast<size_t>(row * n_ + j)];
    double sum = b + r;
    scale = std::abs(b) + std::abs(r);
    for (size_t i = 0; i < w.size(); ++i) {
      sum += double{w[i]} * double{a[i]};
      scale += std::abs(double{w[i]} * double{a[i]});
    }
    return sum;
  }

  DType a_type() const { return info(type_).quantised ? DType::kActQ8 : DType::kF32; }

 private:
  MatmulArgs args(float* y) {
    MatmulArgs args;
    args.type = type_;
    args.weight = weight_.data() + skew_;
    args.k = k_;
    args.a = a_.data();
    args.a_stride = a_stride_;
    args.m = m_;
    args.y = y;
    args.y_stride = n_;
    args.bias = bias_.data();
    args.residual = residual_.data();
    return args;
  }
  void quantize_row_scalar_reference(const float* x, std::byte* row) {
    quantize_row(x, k_, row);
  }

  DType type_;
  int64_t m_, n_, k_;
  int skew_;
  AlignedBytes weight_;
  Bytes a_stride_;
  AlignedBytes a_;
  std::vector<float> x_, bias_, residual_;
};

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * 4) == 0;
}

// Row lengths of whole blocks: odd counts of blocks and chunks, partial groups, many
// groups.
std::vector<int64_t> lengths(DType type) {
  const int block = info(type).block_elements;
  if (block == 256) return {256, 512, 768, 2304};
  if (block == 32) return {32, 64, 96, 224, 256, 288, 576, 1120, 1536};
  return {1, 7, 15, 16, 17, 33, 64, 100, 257, 576};
}

class MatmulOf : public testing::TestWithParam<std::tuple<DType, Isa>> {
 protected:
  void SetUp() override {
    if (!supported(isa())) GTEST_SKIP() << "no " << name_of(isa()) << " here";
  }
  DType type() const { return std::get<0>(GetParam()); }
  Isa isa() const { return std::get<1>(GetParam()); }
};

TEST_P(MatmulOf, EveryShapeGivesTheBitsOfTheScalarReference) {
  for (int64_t k : lengths(type())) {
    for (int64_t m : {1, 2, 3, 4, 5, 6, 7, 8, 9, 13, 17}) {
      for (int64_t n : {1, 2, 3, 4, 5, 7, 19}) {
        Product product(type(), m, n, k, static_cast<int>((m + n) % 5));
        ASSERT_TRUE(same_bits(product.run(isa()), product.run(Isa::kScalar)))
            << "m = " << m << ", n = " << n << ", k = " << k;
      }
    }
  }
}

TEST_P(MatmulOf, AManyRowProductGivesTheBitsOfTheScalarReference) {
  Product product(type(), 64, 70, 768, 1);
  EXPECT_TRUE(same_bits(product.run(isa()), product.run(Isa::kScalar)));
}

TEST_P(MatmulOf, AWeightMayStartAtAnyAddress) {
  const std::vector<float> aligned = Product(type(), 5, 9, 768, 0).run(isa());
  const std::vector<float> alone = Product(type(), 1, 9, 768, 0).run(isa());
  for (int skew = 1; skew < 64; ++skew) {
    EXPECT_TRUE(same_bits(Product(type(), 5, 9, 768, skew).run(isa()), aligned)) << skew;
    EXPECT_TRUE(same_bits(Product(type(), 1, 9, 768, skew).run(isa()), alone)) << skew;
  }
}

TEST_P(MatmulOf, ARowDoesNotDependOnTheOtherRows) {
  const int64_t m = 23, n = 11, k = 768;
  Product product(type(), m, n, k);
  const std::vector<float> whole = product.run(isa());
  for (int64_t rows : {1, 2, 3, 4, 5, 10}) {
    for (int64_t row = 0; row + rows <= m; row += 3) {
      const std::vector<float> part = product.run(isa(), row, rows, 0, n);
      EXPECT_EQ(std::memcmp(&part[static_cast<size_t>(row * n)],
                            &whole[static_cast<size_t>(row * n)],
                            static_cast<size_t>(rows * n) * 4),
                0)
          << rows << " rows from " << row;
    }
  }
}

TEST_P(MatmulOf, AnOutputDoesNotDependOnTheSpan) {
  const int64_t n = 41;
  for (int64_t m : {1, 6}) {
    Product product(type(), m, n, 512);
    const std::vector<float> whole = product.run(isa());
    for (int64_t begin : {0, 1, 2, 5, 17, 40}) {
      for (int64_t end : {int64_t{18}, n}) {
        if (begin >= end) continue;
        const std::vector<float> part = product.run(isa(), 0, m, begin, end);
        for (int64_t i = 0; i < m * n; ++i) {
          const size_t at = static_cast<size_t>(i);
          const bool inside = i % n >= begin && i % n < end;
          EXPECT_EQ(part[at], inside ? whole[at] : 0.0f)
              << "outputs outside stay untouched";
        }
      }
    }
  }
}

// Bytes whose end is the end of readable memory.
class GuardedBytes {
 public:
  explicit GuardedBytes(size_t bytes) : mapped_((bytes + 4095) / 4096 * 4096 + 4096) {
    base_ = static_cast<std::byte*>(mmap(nullptr, mapped_, PROT_READ | PROT_WRITE,
                                         MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    mprotect(base_ + mapped_ - 4096, 4096, PROT_NONE);
    data_ = base_ + mapped_ - 4096 - bytes;
  }
  ~GuardedBytes() { munmap(base_, mapped_); }
  std::byte* data() { return data_; }

 private:
  size_t mapped_;
  std::byte* base_;
  std::byte* data_;
};

TEST_P(MatmulOf, NothingIsReadPastTheWeight) {
  for (int64_t k : lengths(type())) {
    for (int64_t m : {1, 6}) {
      const int64_t n = 5;
      GuardedBytes weight(static_cast<size_t>(row_bytes(type(), k) * n));
      Random(11).weights(type(), n, k, weight.data());
      const bool quantised = info(type()).quantised;
      const Bytes stride = row_bytes(quantised ? DType::kActQ8 : DType::kF32, k);
      GuardedBytes a(static_cast<size_t>(stride * m));
      AlignedBytes scratch(static_cast<size_t>(matmul_scratch_bytes(type(), k, m)));
      std::vector<float> y(static_cast<size_t>(n * m));
      std::memset(a.data(), 0, static_cast<size_t>(stride * m));
      MatmulArgs args;
      args.type = type();
      args.weight = weight.data();
      args.k = k;
      args.a = a.data();
      args.a_stride = stride;
      args.m = m;
      args.y = y.data();
      args.y_stride = n;
      matmul_span(isa())(args, 0, n, scratch.data());
      EXPECT_EQ(y, std::vector<float>(y.size(), 0.0f));
    }
  }
}

TEST_P(MatmulOf, AnInfiniteActivationGivesNaNOrInfinityInItsRowOnly) {
  const int64_t k = 256, n = 6;
  const bool quantised = info(type()).quantised;
  const Bytes stride = row_bytes(quantised ? DType::kActQ8 : DType::kF32, k);
  for (int64_t m : {2, 8}) {
    AlignedBytes weight(static_cast<size_t>(row_bytes(type(), k) * n));
    Random random(12);
    random.weights(type(), n, k, weight.data());
    AlignedBytes a(static_cast<size_t>(stride * m));
    for (int64_t r = 0; r < m; ++r) {
      std::vector<float> x = random.normals(static_cast<size_t>(k));
      if (r == 1) x[77] = std::numeric_limits<float>::infinity();
      if (quantised)
        quantize_row(x.data(), k, a.data() + r * stride);
      else
        std::memcpy(a.data() + r * stride, x.data(), x.size() * 4);
    }
    AlignedBytes scratch(static_cast<size_t>(matmul_scratch_bytes(type(), k, m)));
    std::vector<float> y(static_cast<size_t>(n * m));
    MatmulArgs args;
    args.type = type();
    args.weight = weight.data();
    args.k = k;
    args.a = a.data();
    args.a_stride = stride;
    args.m = m;
    args.y = y.data();
    args.y_stride = n;
    matmul_span(isa())(args, 0, n, scratch.data());
    for (int64_t i = 0; i < n * m; ++i) {
      EXPECT_EQ(std::isfinite(y[static_cast<size_t>(i)]), i / n != 1) << i;
    }
  }
}

TEST_P(MatmulOf, ThreadsDoNotChangeABit) {
  force_isa(isa());
  for (int64_t m : {1, 3, 9}) {
    Product product(type(), m, 37, 512);
    const std::vector<float> one = product.run_on(1);
    for (int threads : {2, 3, 7})
      EXPECT_TRUE(same_bits(product.run_on(threads), one)) << threads;
  }
}

TEST_P(MatmulOf, TheResultIsCloseToADoublePrecisionDot) {
  for (int64_t k : lengths(type())) {
    Product product(type(), 5, 6, k);
    const std::vector<float> y = product.run(isa());
    for (int64_t r = 0; r < 5; ++r) {
      for (int64_t j = 0; j < 6; ++j) {
        double scale = 0;
        const double want = product.exact(r, j, scale);
        EXPECT_NEAR(y[static_cast<size_t>(r * 6 + j)], want, 2e-6 * scale) << "k = " << k;
      }
    }
  }
}

std::string case_name(const testing::TestParamInfo<std::tuple<DType, Isa>>& p) {
  return std::string(name_of(std::get<0>(p.param))) + "_" + name_of(std::get<1>(p.param));
}

INSTANTIATE_TEST_SUITE_P(Types, MatmulOf,
                         testing::Combine(testing::ValuesIn(kWeightTypes),
                                          testing::Values(Isa::kScalar, Isa::kAvx2,
                                                          Isa::kAvx512Vnni)),
                         case_name);

TEST(Isa, ForcingOneChangesWhatIsInForce) {
  const Isa before = current_isa();
  for (Isa isa : {Isa::kScalar, Isa::kAvx2, Isa::kAvx512Vnni}) {
    if (!supported(isa)) continue;
    force_isa(isa);
    EXPECT_EQ(current_isa(), isa);
  }
  force_isa(before);
}

TEST(Isa, TheBestOneIsInForceAtFirst) {
  EXPECT_TRUE(supported(Isa::kScalar));
  EXPECT_TRUE(supported(current_isa()));
}

TEST(Registry, EveryOpKindHasACpuKernel) {
  for (int i = 0; i < kOpKindCount; ++i) {
    Op op;
    op.kind = static_cast<OpKind>(i);
    EXPECT_NE(find_kernel(op, DeviceKind::kCpu), nullptr) << i;
  }
}

// A graph of one quantise and one matmul of a tile at column 6 of 16, with bias and
// residual.
struct TileGraph {
  Graph graph;
  TensorId x, a, w, bias, residual, y;

  explicit TileGraph(DType type) {
    graph.max_rows = 5;
    const auto add = [&](const char* name, DType dtype, int64_t rows, int64_t cols) {
      Tensor t;
      t.name = name;
      t.dtype = dtype;
      t.rows = rows;
      t.cols = cols;
      t.bytes = rows * row_bytes(dtype, cols);
      return graph.add(t);
    };
    x = add("x", DType::kF32, 5, 256);
    a = add("a", DType::kActQ8, 5, 256);
    w = add("w", type, 7, 256);
    bias = add("bias", DType::kF32, 1, 16);
    residual = add("residual", DType::kF32, 5, 16);
    y = add("y", DType::kF32, 5, 16);
    Op quantise;
    quantise.kind = OpKind::kQuantize;
    quantise.inputs = {x};
    quantise.outputs = {a};
    Op matmul;
    matmul.kind = OpKind::kMatMul;
    matmul.inputs = {a, w, bias, residual};
    matmul.outputs = {y};
    matmul.attrs[Attr::kColBegin] = 6;
    graph.ops = {quantise, matmul};
  }
};

TEST(MatmulOp, WritesItsColumnsOfTheStepsRowsAndMayShareTheResidualsExtent) {
  TileGraph t(DType::kQ4_1);
  Random random(3);
  const std::vector<float> x = random.normals(5 * 256), bias = random.normals(16);
  const std::vector<float> residual = random.normals(5 * 16);
  AlignedBytes xs(x.size() * 4), a(static_cast<size_t>(t.graph.at(t.a).bytes)), bs(64);
  AlignedBytes w(static_cast<size_t>(t.graph.at(t.w).bytes) + 3), y(residual.size() * 4);
  std::memcpy(xs.data(), x.data(), x.size() * 4);
  std::memcpy(bs.data(), bias.data(), 64);
  std::memcpy(y.data(), residual.data(), residual.size() * 4);
  random.weights(DType::kQ4_1, 7, 256, w.data() + 3);

  StepRows rows;
  rows.tokens = {1, 2, 3, 4};  // one fewer than the graph allows
  ThreadPool pool(2, false);
  const Bytes bytes = workspace_bytes(t.graph, t.graph.ops[1], 2);
  AlignedBytes workspace(static_cast<size_t>(bytes));
  const std::byte* quantise_in[] = {xs.data()};
  std::byte* quantise_out[] = {a.data()};
  find_kernel(t.graph.ops[0], DeviceKind::kCpu)(
      {t.graph, t.graph.ops[0], quantise_in, quantise_out, {}, {}, rows, pool});
  const std::byte* in[] = {a.data(), w.data() + 3, bs.data(), y.data()};
  std::byte* out[] = {y.data()};
  find_kernel(t.graph.ops[1],
              DeviceKind::kCpu)({t.graph,
                                 t.graph.ops[1],
                                 in,
                                 out,
                                 {},
                                 {workspace.data(), static_cast<size_t>(bytes)},
                                 rows,
                                 pool});

  std::vector<float> wf(7 * 256), af(5 * 256);
  for (int64_t j = 0; j < 7; ++j) {
    dequantize_row(DType::kQ4_1, w.data() + 3 + j * row_bytes(DType::kQ4_1, 256), 256,
                   wf.data() + j * 256);
  }
  for (size_t r = 0; r < 5; ++r) {
    dequantize_row(DType::kActQ8,
                   a.data() + static_cast<Bytes>(r) * row_bytes(DType::kActQ8, 256), 256,
                   af.data() + r * 256);
    for (size_t c = 0; c < 16; ++c) {
      double want = residual[r * 16 + c];
      if (r < 4 && c >= 6 && c < 13) {
        want += bias[c];
        for (size_t i = 0; i < 256; ++i)
          want += double{wf[(c - 6) * 256 + i]} * af[r * 256 + i];
      }
      EXPECT_NEAR(y.floats()[r * 16 + c], want, 1e-4) << "row " << r << ", column " << c;
    }
  }
}

}  // namespace
}  // namespace headrace
