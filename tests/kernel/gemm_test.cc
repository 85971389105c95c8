// gemm.h: every instruction set, pool and tiling gives the bits of the scalar reference, and the
// scalar reference gives products.
#include "headrace/kernel/gemm.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "headrace/kernel/gemm_layout.h"
#include "headrace/kernel/half.h"

namespace headrace {
namespace {

constexpr GemmLayout kLayouts[] = {GemmLayout::kLinear, GemmLayout::kDx, GemmLayout::kDw};

constexpr DType kTypes[] = {DType::kF32, DType::kBF16, DType::kF16};

struct Options {
  GemmLayout layout = GemmLayout::kLinear;
  DType type = DType::kF32;
  DType out = DType::kF32;
  int64_t m = 1, n = 1, k = 1;
  bool bias = false, residual = false, residual_is_c = false, add = false;
  float scale = 1;
  int64_t pieces = 1;
  bool extreme = false;  // values whose products are near the ends of the exponents
};

// Operands with guard bytes around what may be written.
class Product {
 public:
  explicit Product(const Options& o) : o_(o), random_(static_cast<uint32_t>(o.m * 31 + o.k)) {
    const bool by_k = o.layout == GemmLayout::kDw;
    a_stride_ = (by_k ? o.m : o.k) + 3;
    a_ = values(o.type, (by_k ? o.k : o.m) * a_stride_, 0);
    const int64_t rows = o.layout == GemmLayout::kLinear ? o.n : o.k;
    const int64_t cols = o.layout == GemmLayout::kLinear ? o.k : o.n;
    for (int64_t piece = 0; piece < o.pieces; ++piece) {
      const int64_t count = rows * (piece + 1) / o.pieces - rows * piece / o.pieces;
      weights_.push_back(values(o.type, count * cols, 1));  // an odd address
      biases_.push_back(values(DType::kF32, count, 1));
      counts_.push_back(count);
    }
    for (size_t i = 0; i < weights_.size(); ++i) {
      const std::byte* bias = o.bias ? biases_[i].data() + 1 : nullptr;
      rows_.push_back({weights_[i].data() + 1, counts_[i], bias});
    }
    c_stride_ = o.n + 5;
    residual_ = values(o.out, o.m * c_stride_, 0);
    c_ = values(o.out, o.m * c_stride_, 0);
    if (o.residual_is_c) residual_ = c_;
  }

  // The bytes of C on this instruction set, and that no other byte was written.
  std::string run(Isa isa, int threads) {
    std::vector<std::byte> c = c_;
    GemmArgs g = args(c);
    const Bytes bytes = gemm_workspace(g, threads), guard = 256;
    std::vector<std::byte> room(static_cast<size_t>(bytes + 2 * guard + kLine), std::byte{0xA5});
    std::byte* aligned = room.data() + guard;
    aligned += (kLine - static_cast<Bytes>(reinterpret_cast<uintptr_t>(aligned) % kLine)) % kLine;
    ThreadPool pool(threads, false);
    force_isa(isa);
    gemm(g, {aligned, static_cast<size_t>(bytes)}, pool);
    for (const std::byte* p = room.data(); p != room.data() + room.size(); ++p) {
      if (p == aligned) p += bytes;
      EXPECT_EQ(*p, std::byte{0xA5}) << "beside the workspace";
    }
    const int64_t element = o_.out == DType::kF32 ? 4 : 2;
    for (int64_t i = 0; i < o_.m; ++i) {
      const int64_t end = (i * c_stride_ + o_.n) * element;
      EXPECT_EQ(std::memcmp(&c[static_cast<size_t>(end)], &c_[static_cast<size_t>(end)],
                            static_cast<size_t>(5 * element)), 0) << "beside C";
    }
    return {reinterpret_cast<const char*>(c.data()), c.size()};
  }

  // Element of C in double precision, and the sum of magnitudes that its rounding goes with.
  std::pair<double, double> exact(int64_t i, int64_t j) const {
    double sum = 0, size = 0;
    for (int64_t p = 0; p < o_.k; ++p) {
      const int64_t at = o_.layout == GemmLayout::kDw ? p * a_stride_ + i : i * a_stride_ + p;
      const double product = number(o_.type, a_.data(), at) *
                             (o_.layout == GemmLayout::kLinear ? weight(j, p) : weight(p, j));
      sum += product;
      size += std::fabs(product);
    }
    sum *= o_.scale;
    size *= std::fabs(o_.scale);
    const auto plus = [&](double value) {
      sum += value;
      size += std::fabs(value);
    };
    if (o_.bias) plus(bias(j));
    if (o_.residual) plus(number(o_.out, residual_.data(), i * c_stride_ + j));
    if (o_.add) plus(number(o_.out, c_.data(), i * c_stride_ + j));
    return {sum, size};
  }
  double result(const std::string& bits, int64_t i, int64_t j) const {
    return number(o_.out, reinterpret_cast<const std::byte*>(bits.data()), i * c_stride_ + j);
  }

 private:
  GemmArgs args(std::vector<std::byte>& c) const {
    GemmArgs g;
    g.layout = o_.layout, g.type = o_.type, g.out_type = o_.out;
    g.m = o_.m, g.n = o_.n, g.k = o_.k;
    g.a = a_.data(), g.a_stride = a_stride_;
    g.b = rows_;
    g.c = c.data(), g.c_stride = c_stride_;
    g.add = o_.add, g.scale = o_.scale;
    if (o_.residual) g.residual = o_.residual_is_c ? c.data() : residual_.data();
    return g;
  }
  double weight(int64_t row, int64_t col) const {
    const int64_t cols = o_.layout == GemmLayout::kLinear ? o_.k : o_.n;
    size_t piece = 0;
    for (; row >= counts_[piece]; ++piece) row -= counts_[piece];
    return number(o_.type, weights_[piece].data() + 1, row * cols + col);
  }
  double bias(int64_t row) const {
    size_t piece = 0;
    for (; row >= counts_[piece]; ++piece) row -= counts_[piece];
    return number(DType::kF32, biases_[piece].data() + 1, row);
  }
  static double number(DType type, const std::byte* p, int64_t i) {
    if (type != DType::kF32) {
      uint16_t half;
      std::memcpy(&half, p + i * 2, 2);
      return type == DType::kF16 ? f16_to_f32(half) : bf16_to_f32(half);
    }
    float value;
    std::memcpy(&value, p + i * 4, 4);
    return value;
  }
  std::vector<std::byte> values(DType type, int64_t count, size_t skew) {
    const size_t element = type == DType::kF32 ? 4 : 2;
    std::vector<std::byte> bytes(static_cast<size_t>(count) * element + skew);
    std::normal_distribution<float> normal;
    for (size_t i = 0; i < static_cast<size_t>(count); ++i) {
      float value = normal(random_);
      const bool f16 = type == DType::kF16;
      if (o_.extreme && f16) value = std::ldexp(value, static_cast<int>(random_() % 34) - 24);
      if (o_.extreme && !f16) value = std::ldexp(value, static_cast<int>(random_() % 24) - 76);
      if (o_.extreme && !f16 && random_() % 8 == 0) value = std::ldexp(value, -60);
      const uint16_t half = f16 ? f32_to_f16(value) : f32_to_bf16(value);
      std::memcpy(bytes.data() + skew + i * element,
                  element == 2 ? static_cast<const void*>(&half) : &value, element);
    }
    return bytes;
  }

  Options o_;
  std::mt19937 random_;
  int64_t a_stride_ = 0, c_stride_ = 0;
  std::vector<std::byte> a_, residual_, c_;
  std::vector<std::vector<std::byte>> weights_, biases_;
  std::vector<int64_t> counts_;
  std::vector<GemmRows> rows_;
};

class Gemm : public testing::Test {
 protected:
  void TearDown() override {
    force_isa(best_);
    gemm_set_bf16_dot(dot_);
  }
  static void expect_equal_bits(const Options& o) {
    Product product(o);
    const std::string reference = product.run(Isa::kScalar, 1);
    const std::string what = "layout " + std::to_string(static_cast<int>(o.layout)) + ", " +
                             name_of(o.type) + " " + std::to_string(o.m) + " x " +
                             std::to_string(o.n) + " x " + std::to_string(o.k);
    for (const Isa isa : {Isa::kScalar, Isa::kAvx2, Isa::kAvx512Vnni}) {
      if (!supported(isa)) continue;
      for (const int threads : {1, 2, 3}) {
        if (isa == Isa::kScalar && threads != 3) continue;
        EXPECT_TRUE(product.run(isa, threads) == reference)
            << name_of(isa) << ", " << threads << " threads: " << what;
      }
    }
    if (o.type == DType::kBF16 && supported(Isa::kAvx512Vnni)) {
      gemm_set_bf16_dot(false);
      EXPECT_TRUE(product.run(Isa::kAvx512Vnni, 1) == reference) << "without the dot: " << what;
      gemm_set_bf16_dot(true);
    }
  }

 private:
  Isa best_ = current_isa();
  bool dot_ = gemm_uses_bf16_dot();
};

TEST_F(Gemm, OddShapesGiveTheReferencesBitsOnEveryInstructionSetAndPool) {
  const int64_t shapes[][3] = {{1, 1, 1},   {3, 5, 7},    {14, 32, 16},  {15, 33, 17}, {6, 16, 8},
                               {29, 47, 9}, {2, 300, 31}, {130, 16, 40}, {16, 8, 120}, {7, 31, 2}};
  for (const DType type : kTypes) {
    for (const GemmLayout layout : kLayouts) {
      for (const auto& s : shapes) {
        Options o;
        o.layout = layout, o.type = type, o.m = s[0], o.n = s[1], o.k = s[2];
        o.scale = 0.75f;
        o.bias = layout == GemmLayout::kLinear;
        expect_equal_bits(o);
      }
    }
  }
}

TEST_F(Gemm, SeveralBlocksOfKAreAddedInOrder) {
  for (const DType type : kTypes) {
    for (const GemmLayout layout : kLayouts) {
      for (const int64_t k : {kGemmBlock - 1, kGemmBlock, kGemmBlock + 1, 2 * kGemmBlock + 3}) {
        Options o;
        o.layout = layout, o.type = type, o.m = 17, o.n = 35, o.k = k;
        expect_equal_bits(o);
        o.out = type;
        o.residual = true;
        expect_equal_bits(o);
        o.residual_is_c = true;
        expect_equal_bits(o);
        o.residual = o.residual_is_c = false;
        o.out = DType::kF32;
        o.add = true;
        o.scale = 0.3f;
        expect_equal_bits(o);
      }
    }
  }
}

TEST_F(Gemm, MoreThanOneTileOfRowsAndColumns) {
  Options o;
  o.layout = GemmLayout::kDw;
  o.m = gemm_layout::kTileRows * 2 + 80, o.n = 50, o.k = kGemmBlock + 2;
  o.add = true;
  expect_equal_bits(o);
  o.m = 20, o.n = gemm_layout::kTileCols + 40;
  expect_equal_bits(o);
  o.layout = GemmLayout::kLinear;
  o.k = 40, o.n = 3 * gemm_layout::kTileCols + 1;
  expect_equal_bits(o);
}

TEST_F(Gemm, PiecesOfAWeightGiveTheBitsOfTheWhole) {
  for (const GemmLayout layout : kLayouts) {
    Options o;
    o.layout = layout, o.m = 19, o.n = 61, o.k = 77, o.pieces = 5;
    o.bias = layout == GemmLayout::kLinear;
    expect_equal_bits(o);
    for (const DType type : {DType::kBF16, DType::kF16}) {
      o.type = o.out = type;
      expect_equal_bits(o);
    }
  }
}

TEST_F(Gemm, SubnormalProductsAreTheSameWithAndWithoutTheDotInstruction) {
  for (const GemmLayout layout : kLayouts) {
    Options o;
    o.layout = layout, o.type = DType::kBF16, o.m = 40, o.n = 70, o.k = 65;
    o.extreme = true;
    expect_equal_bits(o);
    o.out = DType::kBF16;
    expect_equal_bits(o);
  }
}

TEST_F(Gemm, SubnormalsOfF16CountAndResultsItCannotHoldAreInfinite) {
  for (const GemmLayout layout : kLayouts) {
    Options o;
    o.layout = layout, o.type = o.out = DType::kF16, o.m = 40, o.n = 70, o.k = 65;
    o.extreme = true;
    expect_equal_bits(o);
    Product product(o);
    const std::string y = product.run(Isa::kScalar, 1);
    bool infinite = false;
    for (int64_t i = 0; i < o.m; ++i) {
      for (int64_t j = 0; j < o.n; ++j) {
        const auto [value, size] = product.exact(i, j);
        const double got = product.result(y, i, j);
        infinite |= std::isinf(got);
        if (std::isinf(got)) {
          ASSERT_GT(std::fabs(value), 65500);
        } else {
          ASSERT_NEAR(got, value, 0x1p-25 + 0x1p-11 * std::fabs(value) + 1e-5 * size);
        }
      }
    }
    EXPECT_TRUE(infinite);
  }
}

TEST_F(Gemm, AddingIsWritingAndThenAdding) {
  for (const GemmLayout layout : kLayouts) {
    Options o;
    o.layout = layout, o.m = 21, o.n = 40, o.k = 2 * kGemmBlock + 7;
    o.scale = 0.7f;
    Product written(o);
    o.add = true;
    Product added(o);
    const std::string y = written.run(Isa::kScalar, 1), sum = added.run(Isa::kScalar, 1);
    Options nothing = o;
    nothing.scale = 0;
    const std::string before = Product(nothing).run(Isa::kScalar, 1);  // C + 0
    for (int64_t i = 0; i < o.m; ++i) {
      for (int64_t j = 0; j < o.n; ++j) {
        const float expected = static_cast<float>(added.result(before, i, j)) +
                               static_cast<float>(written.result(y, i, j));
        ASSERT_EQ(static_cast<float>(added.result(sum, i, j)), expected);
      }
    }
  }
}

TEST_F(Gemm, TheReferenceIsWithinRoundingOfDoublePrecision) {
  for (const DType type : kTypes) {
    for (const GemmLayout layout : kLayouts) {
      for (const bool add : {false, true}) {
        Options o;
        o.layout = layout, o.type = type, o.m = 9, o.n = 23, o.k = kGemmBlock + 90;
        o.scale = 1.5f, o.pieces = 2;
        o.bias = layout == GemmLayout::kLinear;
        o.residual = true;
        o.add = add;
        Product product(o);
        const std::string y = product.run(Isa::kScalar, 1);
        for (int64_t i = 0; i < o.m; ++i) {
          for (int64_t j = 0; j < o.n; ++j) {
            const auto [value, size] = product.exact(i, j);
            ASSERT_NEAR(product.result(y, i, j), value, 1e-5 * size);
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace headrace
