#include "headrace/kernel/row_ops.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>

#include "headrace/kernel/float_math.h"
#include "headrace/kernel/half.h"
#include "tests/kernel/op_harness.h"

namespace headrace::test {
namespace {

std::vector<const RowOps*> fast_tables() {
  std::vector<const RowOps*> tables;
  for (Isa isa : all_isas()) {
    IsaScope scope(isa);
    if (isa != Isa::kScalar) tables.push_back(&row_ops());
  }
  return tables;
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * 4) == 0;
}

// Normal values of many magnitudes, with the odd ones (zeros, subnormals, infinities)
// among them.
std::vector<float> odd_values(int64_t n, uint32_t seed) {
  auto values = normal_values(n, seed, 3);
  const float special[] = {0.0f,
                           -0.0f,
                           1e-40f,
                           -1e-40f,
                           1e-20f,
                           88.0f,
                           -88.0f,
                           0.625f,
                           -0.625f,
                           1e4f,
                           -1e4f,
                           65504.0f,
                           65519.0f,
                           65520.0f,
                           6e-8f,
                           2e-8f,
                           std::numeric_limits<float>::infinity(),
                           -std::numeric_limits<float>::infinity()};
  std::mt19937 random(seed);
  for (int64_t i = 0; i < n; i += 5) {
    values[static_cast<size_t>(i)] = special[random() % std::size(special)];
  }
  return values;
}

const int64_t kLengths[] = {1, 2, 7, 15, 16, 17, 31, 33, 64, 80, 100, 576, 1536};

TEST(RowOps, EveryTableGivesTheBitsOfTheReference) {
  const RowOps& ref = reference_row_ops();
  for (const RowOps* ops : fast_tables()) {
    for (int64_t n : kLengths) {
      const auto size = static_cast<size_t>(n);
      const auto x = odd_values(n, 1), y = odd_values(n, 2);
      const auto normal = normal_values(n, 3), weight = normal_values(n, 4);
      std::vector<float> want(size), got(size);
      const auto check = [&](const char* what) {
        EXPECT_TRUE(same_bits(want, got)) << what << " n " << n;
      };
      EXPECT_EQ(std::bit_cast<uint64_t>(ref.sum_squares(normal.data(), n)),
                std::bit_cast<uint64_t>(ops->sum_squares(normal.data(), n)))
          << n;
      EXPECT_EQ(std::bit_cast<uint64_t>(ref.sum_exp(x.data(), n)),
                std::bit_cast<uint64_t>(ops->sum_exp(x.data(), n)))
          << n;
      for (const float* residual : {static_cast<const float*>(nullptr), y.data()}) {
        ref.scale_weight(normal.data(), 0.37f, weight.data(), residual, want.data(), n);
        ops->scale_weight(normal.data(), 0.37f, weight.data(), residual, got.data(), n);
        check("scale_weight");
      }
      for (Act act : {Act::kSilu, Act::kGeluTanh}) {
        ref.gated(x.data(), weight.data(), want.data(), n, act);
        ops->gated(x.data(), weight.data(), got.data(), n, act);
        for (size_t i = 0; i < size;
             ++i) {  // a NaN (of -inf) is a NaN, whatever its sign
          if (std::isnan(want[i]) && std::isnan(got[i])) got[i] = want[i];
        }
        check("gated");
      }
      ref.add(normal.data(), y.data(), want.data(), n);
      ops->add(normal.data(), y.data(), got.data(), n);
      check("add");
      ref.scale(x.data(), 24.5f, want.data(), n);
      ops->scale(x.data(), 24.5f, got.data(), n);
      check("scale");
      ref.softcap(x.data(), 30.0f, want.data(), n);
      ops->softcap(x.data(), 30.0f, got.data(), n);
      check("softcap");
      std::vector<uint16_t> half_want(size), half_got(size);
      ref.to_half(x.data(), half_want.data(), n);
      ops->to_half(x.data(), half_got.data(), n);
      EXPECT_EQ(half_want, half_got) << n;
      if (n % 2 != 0) continue;
      for (bool half_split : {false, true}) {
        ref.rotate(normal.data(), x.data(), y.data(), want.data(), n, half_split);
        ops->rotate(normal.data(), x.data(), y.data(), got.data(), n, half_split);
        for (size_t i = 0; i < size; ++i) {  // inf - inf
          if (std::isnan(want[i]) && std::isnan(got[i])) got[i] = want[i];
        }
        check("rotate");
      }
    }
  }
}

TEST(RowOps, WritingInPlaceGivesTheSame) {
  for (Isa isa : all_isas()) {
    IsaScope scope(isa);
    const auto x = normal_values(100, 1), w = normal_values(100, 2);
    std::vector<float> want(100), got = x;
    row_ops().scale_weight(x.data(), 2, w.data(), x.data(), want.data(), 100);
    row_ops().scale_weight(got.data(), 2, w.data(), got.data(), got.data(), 100);
    EXPECT_TRUE(same_bits(want, got));
    row_ops().gated(x.data(), w.data(), want.data(), 100, Act::kSilu);
    got = x;
    row_ops().gated(got.data(), w.data(), got.data(), 100, Act::kSilu);
    EXPECT_TRUE(same_bits(want, got));
  }
}

TEST(RowOps, HalvesAreThoseOfTheProcessorForEveryMagnitudeAndTie) {
  // Floats around every half and every tie between two halves, and NaNs.
  std::vector<float> x;
  for (uint32_t h = 0; h < 0x7c00; ++h) {
    const auto a = f16_to_f32(static_cast<uint16_t>(h));
    const auto b = h == 0x7bff ? 65536.0f : f16_to_f32(static_cast<uint16_t>(h + 1));
    const float tie = a + (b - a) / 2;
    for (float v : {a, std::nextafter(tie, 0.0f), tie, std::nextafter(tie, 1e9f)}) {
      x.push_back(v);
      x.push_back(-v);
    }
  }
  for (uint32_t bits : {0x7f800000u, 0xff800000u, 0x7f800001u, 0xff812345u, 0x7fc00000u,
                        0xffffffffu, 0x7f802000u}) {
    x.push_back(std::bit_cast<float>(bits));
  }
  const auto n = static_cast<int64_t>(x.size());
  std::vector<uint16_t> want(x.size()), got(x.size());
  reference_row_ops().to_half(x.data(), want.data(), n);
  for (const RowOps* ops : fast_tables()) {
    ops->to_half(x.data(), got.data(), n);
    EXPECT_EQ(want, got);
  }
}

}  // namespace
}  // namespace headrace::test
