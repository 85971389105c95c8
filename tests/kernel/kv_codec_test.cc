#include "headrace/kernel/kv_codec.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "headrace/kernel/half.h"
#include "tests/kernel/op_harness.h"

namespace headrace::test {
namespace {

constexpr int64_t kHeadDims[] = {16, 18, 48, 64, 72, 80, 96, 128, 192, 256, 512};
constexpr KvFormat kFormats[] = {KvFormat::kF16, KvFormat::kBF16, KvFormat::kQ8, KvFormat::kQ4};

// kLine-aligned bytes of one part, filled with 0xcd.
class Part {
 public:
  Part(KvFormat format, int64_t head_dim)
      : size_(kv_tile_bytes(format, 1, head_dim) / 2),
        bytes_(static_cast<size_t>(size_ + kLine), std::byte{0xcd}) {}
  std::byte* data() {
    const auto at = reinterpret_cast<uintptr_t>(bytes_.data());
    return bytes_.data() + (static_cast<uintptr_t>(round_up(static_cast<Bytes>(at), kLine)) - at);
  }
  std::string text() { return {reinterpret_cast<const char*>(data()), static_cast<size_t>(size_)}; }

 private:
  Bytes size_;
  std::vector<std::byte> bytes_;
};

int64_t padded_of(int64_t head_dim) { return round_up(head_dim, 16); }

uint16_t bits_of(KvFormat format, float x) {
  return format == KvFormat::kBF16 ? f32_to_bf16(x) : f32_to_f16(x);
}
float value_of(KvFormat format, uint16_t bits) {
  return format == KvFormat::kBF16 ? bf16_to_f32(bits) : f16_to_f32(bits);
}

// 64 rows of 16 bits, normal with that deviation; the padding is NaN: it must not be read.
std::vector<uint16_t> normal_rows(KvFormat format, int64_t head_dim, uint32_t seed, float sigma) {
  const int64_t padded = padded_of(head_dim);
  const auto values = normal_values(kKvTile * head_dim, seed, sigma);
  std::vector<uint16_t> rows(static_cast<size_t>(kKvTile * padded), 0x7fff);
  for (int64_t r = 0; r < kKvTile; ++r) {
    for (int64_t i = 0; i < head_dim; ++i) {
      rows[static_cast<size_t>(r * padded + i)] =
          bits_of(format, values[static_cast<size_t>(r * head_dim + i)]);
    }
  }
  return rows;
}

// Encoded and decoded, on the instruction set in force.
std::vector<float> round_trip(KvFormat format, const std::vector<uint16_t>& rows,
                              int64_t head_dim) {
  Part part(format, head_dim);
  kv_encode_part(format, rows.data(), head_dim, part.data());
  std::vector<float> out(rows.size(), -77.0f);
  kv_decode_rows(format, part.data(), head_dim, 0, kKvTile, out.data());
  return out;
}

// The row that kv_decode_rows approximates.
std::vector<float> exact_row(KvFormat format, const uint16_t* row, int64_t head_dim) {
  std::vector<float> x(static_cast<size_t>(head_dim));
  for (int64_t i = 0; i < head_dim; ++i) x[static_cast<size_t>(i)] = value_of(format, row[i]);
  if (kv_rotates(format)) hadamard_rotate(x.data(), head_dim, padded_of(head_dim));
  return x;
}

// Half a step of the group's grid and a little for its rounded scale and minimum.
float bound_of(KvFormat format, const float* group, int64_t n) {
  if (!kv_rotates(format) && format != KvFormat::kQ8) return 0;
  const auto [low, high] = std::minmax_element(group, group + n);
  const float most = std::max(std::fabs(*low), std::fabs(*high));
  if (format == KvFormat::kQ8) return most / 127 * 0.5f + most * 0x1p-10f + 0x1p-18f;
  return (*high - *low) / 15 * 0.5f + most * 0x1p-9f + 0x1p-18f;
}

void expect_within_bounds(KvFormat format, const std::vector<uint16_t>& rows, int64_t head_dim) {
  const int64_t padded = padded_of(head_dim);
  const auto out = round_trip(format, rows, head_dim);
  for (int64_t r = 0; r < kKvTile; ++r) {
    const auto x = exact_row(format, rows.data() + r * padded, head_dim);
    const float* got = out.data() + r * padded;
    for (int64_t i = 0; i < head_dim; ++i) {
      const int64_t group = i / 32 * 32;
      const float bound =
          bound_of(format, x.data() + group, std::min<int64_t>(32, head_dim - group));
      ASSERT_LE(std::fabs(got[i] - x[static_cast<size_t>(i)]), bound)
          << name_of(format) << " head_dim " << head_dim << " row " << r << " element " << i;
    }
    for (int64_t i = head_dim; i < padded; ++i) {
      ASSERT_EQ(std::signbit(got[i]), false);
      ASSERT_EQ(got[i], 0.0f) << "padding " << i;
    }
  }
}

TEST(KvCodec, KeepsEveryElementWithinHalfAStepOfItsGroup) {
  for (KvFormat format : kFormats) {
    for (int64_t head_dim : kHeadDims) {
      for (float sigma : {1e-6f, 1e-3f, 1.0f, 300.0f}) {
        const auto rows = normal_rows(format, head_dim, static_cast<uint32_t>(head_dim), sigma);
        expect_within_bounds(format, rows, head_dim);
      }
    }
  }
}

TEST(KvCodec, KeepsGroupsWithOneLargeElement) {
  for (int64_t head_dim : kHeadDims) {
    auto rows = normal_rows(KvFormat::kQ8, head_dim, 7, 0.5f);
    for (int64_t r = 0; r < kKvTile; ++r) {
      rows[static_cast<size_t>(r * padded_of(head_dim) + r % head_dim)] = f32_to_f16(200);
    }
    expect_within_bounds(KvFormat::kQ8, rows, head_dim);
    expect_within_bounds(KvFormat::kQ4, rows, head_dim);
  }
}

TEST(KvCodec, SixteenBitFormatsAreExactAndCopied) {
  for (KvFormat format : {KvFormat::kF16, KvFormat::kBF16}) {
    const auto rows = normal_rows(format, 64, 3, 1);
    Part part(format, 64);
    kv_encode_part(format, rows.data(), 64, part.data());
    EXPECT_EQ(std::memcmp(part.data(), rows.data(), rows.size() * 2), 0);
    expect_within_bounds(format, rows, 64);
  }
}

TEST(KvCodec, ZerosStayZeros) {
  for (KvFormat format : kFormats) {
    const std::vector<uint16_t> rows(static_cast<size_t>(kKvTile * 80), 0);
    for (float x : round_trip(format, rows, 80)) ASSERT_EQ(x, 0.0f) << name_of(format);
  }
}

TEST(KvCodec, TheLargestAndTheSmallestValuesStayFinite) {
  for (KvFormat format : {KvFormat::kQ8, KvFormat::kQ4}) {
    for (uint16_t bits : {uint16_t{0x7bff}, uint16_t{0xfbff}, uint16_t{0x0001}, uint16_t{0x8001}}) {
      std::vector<uint16_t> rows(static_cast<size_t>(kKvTile * 512), bits);
      for (float x : round_trip(format, rows, 512)) ASSERT_TRUE(std::isfinite(x));
      for (size_t i = 0; i < rows.size(); i += 3) rows[i] ^= 0x8000;
      for (float x : round_trip(format, rows, 512)) ASSERT_TRUE(std::isfinite(x));
    }
  }
}

TEST(KvCodec, AGroupThatIsNotFiniteIsNanAndTheOthersOfQ8Stay) {
  for (uint16_t bits : {uint16_t{0x7c00}, uint16_t{0xfc00}, uint16_t{0x7e01}, uint16_t{0xfdff}}) {
    auto rows = normal_rows(KvFormat::kQ8, 96, 5, 1);
    rows[2 * 96 + 40] = bits;  // row 2, its second group
    const auto q8 = round_trip(KvFormat::kQ8, rows, 96);
    for (size_t i = 0; i < q8.size(); ++i) {
      ASSERT_EQ(std::isnan(q8[i]), i >= 2 * 96 + 32 && i < 2 * 96 + 64) << i;
    }
    // Blocks of 32 are rotated, so the same group.
    const auto q4 = round_trip(KvFormat::kQ4, rows, 96);
    for (size_t i = 0; i < q4.size(); ++i) {
      ASSERT_EQ(std::isnan(q4[i]), i >= 2 * 96 + 32 && i < 2 * 96 + 64) << i;
    }
  }
}

TEST(KvCodec, DecodesOnlyTheRowsAskedFor) {
  for (KvFormat format : kFormats) {
    const auto rows = normal_rows(format, 80, 11, 1);
    Part part(format, 80);
    kv_encode_part(format, rows.data(), 80, part.data());
    std::vector<float> all(rows.size()), some(rows.size(), -77.0f);
    kv_decode_rows(format, part.data(), 80, 0, kKvTile, all.data());
    kv_decode_rows(format, part.data(), 80, 5, 9, some.data());
    kv_decode_rows(format, part.data(), 80, 20, 20, some.data());
    for (size_t i = 0; i < some.size(); ++i) {
      ASSERT_EQ(some[i], i >= 5 * 80 && i < 9 * 80 ? all[i] : -77.0f) << i;
    }
  }
}

TEST(KvCodec, ARowsBytesDependOnThatRowAlone) {
  for (KvFormat format : {KvFormat::kQ8, KvFormat::kQ4}) {
    const auto rows = normal_rows(format, 96, 21, 1);
    std::vector<uint16_t> copies(rows.size());
    for (size_t i = 0; i < rows.size(); ++i) copies[i] = rows[17 * 96 + i % 96];
    const auto of_row = round_trip(format, copies, 96);
    const auto of_tile = round_trip(format, rows, 96);
    EXPECT_EQ(std::memcmp(of_row.data(), of_tile.data() + 17 * 96, 96 * 4), 0);
    EXPECT_EQ(std::memcmp(of_row.data() + 63 * 96, of_tile.data() + 17 * 96, 96 * 4), 0);
  }
}

// Any 16 bits at all, or normal values with some such among them.
std::vector<uint16_t> odd_rows(int64_t head_dim, uint32_t seed) {
  auto rows = normal_rows(KvFormat::kF16, head_dim, seed, 2);
  uint32_t state = seed * 2654435761u + 1;
  const auto next = [&state] { return state = state * 1664525u + 1013904223u; };
  for (uint16_t& bits : rows) {
    if (seed % 2 == 0 || next() >> 24 < 3) bits = static_cast<uint16_t>(next() >> 13);
  }
  return rows;
}

TEST(KvCodec, GivesTheSameBytesAndFloatsOnEveryInstructionSet) {
  for (KvFormat format : kFormats) {
    for (int64_t head_dim : kHeadDims) {
      for (uint32_t seed = 0; seed < 8; ++seed) {
        const auto rows = odd_rows(head_dim, seed);
        std::string bytes;
        std::vector<float> floats;
        for (Isa isa : all_isas()) {
          IsaScope scope(isa);
          Part part(format, head_dim);
          kv_encode_part(format, rows.data(), head_dim, part.data());
          const auto out = round_trip(format, rows, head_dim);
          if (isa == Isa::kScalar) {
            bytes = part.text();
            floats = out;
          }
          ASSERT_EQ(part.text(), bytes) << name_of(isa) << ' ' << name_of(format) << ' ' << head_dim
                                        << " seed " << seed;
          ASSERT_EQ(std::memcmp(out.data(), floats.data(), out.size() * 4), 0)
              << name_of(isa) << ' ' << name_of(format) << ' ' << head_dim << " seed " << seed;
        }
      }
    }
  }
}

TEST(HadamardRotate, IsOrthonormalAndItsOwnInverse) {
  for (int64_t head_dim : kHeadDims) {
    std::vector<std::vector<float>> columns;
    for (int64_t c = 0; c < head_dim; ++c) {
      std::vector<float> e(static_cast<size_t>(padded_of(head_dim)), 0.0f);
      e[static_cast<size_t>(c)] = 1;
      hadamard_rotate(e.data(), head_dim, padded_of(head_dim));
      columns.push_back(e);
    }
    for (size_t a = 0; a < columns.size(); a += 5) {
      for (size_t b = 0; b < columns.size(); ++b) {
        double dot = 0;
        for (size_t i = 0; i < columns[a].size(); ++i) {
          dot += static_cast<double>(columns[a][i]) * static_cast<double>(columns[b][i]);
        }
        ASSERT_NEAR(dot, a == b ? 1 : 0, 1e-6) << head_dim;
        ASSERT_EQ(columns[a][b], columns[b][a]);
      }
    }
    const auto x = normal_values(padded_of(head_dim), 9, 1);
    auto y = x;
    hadamard_rotate(y.data(), head_dim, padded_of(head_dim));
    hadamard_rotate(y.data(), head_dim, padded_of(head_dim));
    for (size_t i = 0; i < x.size(); ++i) ASSERT_NEAR(y[i], x[i], 4e-6);
  }
}

TEST(HadamardRotate, OfFourIsTheMatrixOfSylvester) {
  float row[16] = {1, 2, 4, 8};
  hadamard_rotate(row, 4, 16);
  EXPECT_EQ(row[0], 7.5f);
  EXPECT_EQ(row[1], -2.5f);
  EXPECT_EQ(row[2], -4.5f);
  EXPECT_EQ(row[3], 1.5f);
  for (int i = 4; i < 16; ++i) EXPECT_EQ(row[i], 0.0f);
}

TEST(HadamardRotate, IsTheSameOnEveryInstructionSet) {
  for (int64_t head_dim : kHeadDims) {
    const auto x = normal_values(padded_of(head_dim), 13, 4);
    std::vector<float> first;
    for (Isa isa : all_isas()) {
      IsaScope scope(isa);
      auto y = x;
      hadamard_rotate(y.data(), head_dim, padded_of(head_dim));
      if (isa == Isa::kScalar) first = y;
      ASSERT_EQ(std::memcmp(y.data(), first.data(), y.size() * 4), 0) << head_dim;
    }
  }
}

}  // namespace
}  // namespace headrace::test
