#include "headrace/kernel/quant.h"

#include <cmath>
#include <cstring>
#include <fstream>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "headrace/kernel/half.h"
#include "headrace/kernel/kernel.h"
#include "headrace/kernel/quant_isa.h"
#include "tests/kernel/random_weights.h"

namespace headrace {
namespace {

struct GoldenRow {
  std::vector<std::byte> bytes;
  std::vector<float> values;
};

// tests/data/quant/dequantised.bin, made by tests/reference/make_quant_golden.py with
// gguf-py.
std::map<std::string, GoldenRow> read_golden() {
  std::ifstream in(std::string(HEADRACE_SOURCE_DIR) + "/tests/data/quant/dequantised.bin",
                   std::ios::binary);
  std::map<std::string, GoldenRow> rows;
  char name[9] = {};
  while (in.read(name, 8)) {
    int32_t elements = 0, bytes = 0;
    in.read(reinterpret_cast<char*>(&elements), 4);
    in.read(reinterpret_cast<char*>(&bytes), 4);
    GoldenRow row;
    row.bytes.resize(static_cast<size_t>(bytes));
    row.values.resize(static_cast<size_t>(elements));
    in.read(reinterpret_cast<char*>(row.bytes.data()), bytes);
    in.read(reinterpret_cast<char*>(row.values.data()), elements * 4);
    rows[name] = row;
  }
  return rows;
}

TEST(Dequantise, EveryWeightTypeGivesTheBitsOfGgufPy) {
  const auto golden = read_golden();
  EXPECT_EQ(golden.size(), kWeightTypes.size());
  for (const auto& [name, row] : golden) {
    SCOPED_TRACE(name);
    const DType type = dtype_from_name(name).value();
    const int64_t n = static_cast<int64_t>(row.values.size());
    ASSERT_EQ(row_bytes(type, n), static_cast<Bytes>(row.bytes.size()));
    std::vector<std::byte> shifted(row.bytes.size() + 1);  // an odd address
    std::memcpy(shifted.data() + 1, row.bytes.data(), row.bytes.size());
    std::vector<float> out(row.values.size());
    dequantize_row(type, shifted.data() + 1, n, out.data());
    for (size_t i = 0; i < out.size(); ++i) {
      // Equal, not memcmp: gguf-py and we may differ in the sign of a zero.
      ASSERT_EQ(out[i], row.values[i]) << "element " << i;
    }
  }
}

TEST(Dequantise, ARowOfOneBlockWorks) {
  const auto golden = read_golden();
  for (DType type : {DType::kQ4_0, DType::kQ5_1, DType::kQ8_0}) {
    const GoldenRow& row = golden.at(name_of(type));
    std::vector<float> out(33, -7.0f);
    dequantize_row(type, row.bytes.data(), 32, out.data());
    for (size_t i = 0; i < 32; ++i) EXPECT_EQ(out[i], row.values[i]);
    EXPECT_EQ(out[32], -7.0f) << "nothing is written past the row";
  }
}

TEST(Half, EveryF16SurvivesTheWayToF32AndBack) {
  for (uint32_t h = 0; h < 0x10000; ++h) {
    const float f = f16_to_f32(static_cast<uint16_t>(h));
    if ((h & 0x7fff) > 0x7c00) {
      EXPECT_TRUE(std::isnan(f));
      EXPECT_GT(f32_to_f16(f) & 0x7fff, 0x7c00);
    } else {
      ASSERT_EQ(f32_to_f16(f), h);
    }
  }
}

TEST(Half, TiesGoToTheEvenNeighbour) {
  EXPECT_EQ(f32_to_f16(1.0f + 0x1p-11f), 0x3c00);             // half way, 0 is even
  EXPECT_EQ(f32_to_f16(1.0f + 3 * 0x1p-11f), 0x3c02);         // half way, 1 is odd
  EXPECT_EQ(f32_to_f16(1.0f + 0x1p-11f + 0x1p-23f), 0x3c01);  // just above
  EXPECT_EQ(f32_to_f16(0x1p-25f), 0x0000);                    // half the least subnormal
  EXPECT_EQ(f32_to_f16(0x1.8p-25f), 0x0001);
  EXPECT_EQ(f32_to_f16(65519.0f), 0x7bff);
  EXPECT_EQ(f32_to_f16(65520.0f), 0x7c00);
  EXPECT_EQ(f32_to_f16(-1e-30f), 0x8000);
}

class QuantiseOn : public testing::TestWithParam<Isa> {
 protected:
  void SetUp() override {
    if (!supported(GetParam())) GTEST_SKIP() << "no " << name_of(GetParam()) << " here";
  }
};

TEST_P(QuantiseOn, EveryLengthGivesTheBitsOfTheScalarReference) {
  Random random(1);
  for (int64_t n :
       {1, 2, 31, 32, 33, 63, 64, 65, 96, 100, 255, 256, 257, 576, 1536, 2050}) {
    std::vector<float> x = random.normals(static_cast<size_t>(n));
    x[static_cast<size_t>(n / 2)] *= 30;
    const size_t bytes = static_cast<size_t>(row_bytes(DType::kActQ8, n));
    AlignedBytes want(bytes), got(bytes);
    std::memset(got.data(), 0x55, bytes);
    quantize_row_scalar(x.data(), n, want.data());
    quantize_row_fn(GetParam())(x.data(), n, got.data());
    ASSERT_EQ(std::memcmp(want.data(), got.data(), bytes), 0) << "n = " << n;
  }
}

TEST_P(QuantiseOn, TiesHugeTinyAndNonFiniteBlocksAreAsTheScalarReferenceHasThem) {
  const float inf = std::numeric_limits<float>::infinity();
  std::vector<float> x(32 * 8, 0.0f);
  for (size_t i = 0; i < 32; ++i) x[i] = static_cast<float>(i) - 15.5f;  // ties
  x[31] = 127;
  x[32] = 3e38f, x[33] = -3.4e38f;
  x[64] = 1e-31f, x[65] = 1e-36f;  // below 2^-100
  x[96] = 1e-29f, x[97] = -1e-30f;
  x[128] = inf, x[129] = 1;
  x[160] = std::nanf(""), x[161] = -2;
  x[192] = -0.0f;
  const size_t bytes = static_cast<size_t>(row_bytes(DType::kActQ8, 256));
  AlignedBytes want(bytes), got(bytes);
  quantize_row_scalar(x.data(), 256, want.data());
  quantize_row_fn(GetParam())(x.data(), 256, got.data());
  const ActQ8Row w = act_q8_planes(want.data(), 256), g = act_q8_planes(got.data(), 256);
  EXPECT_EQ(std::memcmp(w.q, g.q, 256), 0);
  for (size_t i = 0; i < 8; ++i) {
    EXPECT_TRUE(w.d[i] == g.d[i] || (std::isnan(w.d[i]) && std::isnan(g.d[i]))) << i;
    EXPECT_EQ(std::isnan(g.d[i]), i == 4 || i == 5) << i;
  }
  EXPECT_EQ(w.d[2], 0.0f);
  EXPECT_GT(w.d[3], 0.0f);
}

TEST_P(QuantiseOn, DequantisedValuesAreWithinHalfAStep) {
  Random random(2);
  const int64_t n = 1000;
  const std::vector<float> x = random.normals(n);
  AlignedBytes row(static_cast<size_t>(row_bytes(DType::kActQ8, n)));
  quantize_row_fn(GetParam())(x.data(), n, row.data());
  std::vector<float> back(n);
  dequantize_row(DType::kActQ8, row.data(), n, back.data());
  const ActQ8Row planes = act_q8_planes(row.data(), n);
  for (size_t i = 0; i < n; ++i) {
    EXPECT_LE(std::abs(back[i] - x[i]), planes.d[i / 32] * 0.5001f) << i;
  }
}

std::string isa_name(const testing::TestParamInfo<Isa>& p) { return name_of(p.param); }

INSTANTIATE_TEST_SUITE_P(Isas, QuantiseOn,
                         testing::Values(Isa::kScalar, Isa::kAvx2, Isa::kAvx512Vnni),
                         isa_name);

}  // namespace
}  // namespace headrace
