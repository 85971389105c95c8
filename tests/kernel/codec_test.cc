#include "headrace/kernel/codec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

namespace headrace {
namespace {

using Floats = std::vector<float>;
constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

Bytes most_bytes(Codec codec, size_t elements) {
  Tensor t;
  t.dtype = DType::kF32;
  t.cols = static_cast<int64_t>(elements);
  t.bytes = 4 * t.cols;
  return encoded_bytes(codec, t);
}

struct Coded {
  Bytes bytes = 0;
  std::vector<std::byte> form;
  Floats back;
};

Coded code(Codec codec, const Floats& plain, int threads = 1) {
  ThreadPool pool(threads, false);
  auto scratch = CodecScratch::create(static_cast<int64_t>(plain.size()));
  EXPECT_TRUE(scratch.ok());
  Coded out;
  const auto most = static_cast<size_t>(most_bytes(codec, plain.size()));
  out.form.assign(most + 64, std::byte{0xEE});
  out.bytes = encode(codec, std::as_bytes(std::span(plain)), std::span(out.form).first(most),
                     scratch->get(), pool);
  EXPECT_LE(out.bytes, static_cast<Bytes>(most)) << name_of(codec);
  for (size_t i = most; i < out.form.size(); ++i) EXPECT_EQ(out.form[i], std::byte{0xEE});
  out.form.resize(most);
  out.back.assign(plain.size(), -7);
  const Status s = decode(codec, out.form, std::as_writable_bytes(std::span(out.back)),
                          scratch->get(), pool);
  EXPECT_TRUE(s.ok()) << s.message();
  return out;
}

Floats normal_floats(size_t n, uint64_t seed, float scale = 1) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal(0, scale);
  Floats out(n);
  for (float& f : out) f = normal(random);
  return out;
}

Floats any_bits(size_t n, uint64_t seed) {
  std::mt19937_64 random(seed);
  Floats out(n);
  for (float& f : out) f = std::bit_cast<float>(static_cast<uint32_t>(random()));
  return out;
}

bool same_bits(const Floats& a, const Floats& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), 4 * a.size()) == 0;
}

const std::vector<size_t> kSizes = {1, 2, 7, 8, 9, 63, 64, 65, 1000, 16384, 40000};

TEST(Codec, BytePlanesGiveBackEveryBitPattern) {
  for (size_t n : kSizes) {
    EXPECT_TRUE(same_bits(code(Codec::kBytePlane, any_bits(n, n)).back, any_bits(n, n))) << n;
    EXPECT_TRUE(same_bits(code(Codec::kBytePlane, normal_floats(n, n)).back, normal_floats(n, n)));
    EXPECT_TRUE(same_bits(code(Codec::kBytePlane, Floats(n, 0)).back, Floats(n, 0))) << n;
  }
}

TEST(Codec, BytePlanesShrinkWhatCanShrinkAndNeverExceedThePlainSizeAndAHeader) {
  const size_t n = 100'000;
  EXPECT_LT(code(Codec::kBytePlane, Floats(n, 0)).bytes, 1000);
  const Bytes weights = code(Codec::kBytePlane, normal_floats(n, 1, 0.02f)).bytes;
  EXPECT_LT(weights, static_cast<Bytes>(4 * n * 9 / 10));
  EXPECT_EQ(code(Codec::kBytePlane, any_bits(n, 1)).bytes, static_cast<Bytes>(4 * n + 64));
}

TEST(Codec, DamagedBytePlanesAreAnErrorAndNeverACrash) {
  const Floats plain = normal_floats(5000, 3, 0.02f);
  const Coded good = code(Codec::kBytePlane, plain);
  ThreadPool pool(1, false);
  auto scratch = CodecScratch::create(5000);
  std::mt19937_64 random(1);
  Floats back(5000);
  int refused = 0;
  for (int i = 0; i < 2000; ++i) {
    std::vector<std::byte> bad = good.form;
    const size_t at = i % 2 == 0 ? random() % 64 : random() % static_cast<size_t>(good.bytes);
    bad[at] ^= static_cast<std::byte>(1 + random() % 255);
    if (i % 3 == 0) bad.resize(random() % bad.size());
    const Status s = decode(Codec::kBytePlane, bad, std::as_writable_bytes(std::span(back)),
                            scratch->get(), pool);
    if (s.ok()) continue;
    ++refused;
    EXPECT_EQ(s.code(), Code::kBadFile);
  }
  EXPECT_GT(refused, 500);
}

TEST(Codec, Bf16RoundsToNearestEvenWithinTheStatedError) {
  const Coded c = code(Codec::kBf16, {1.0f, 1.00390625f, 1.01171875f, 1.004f, -0.0f});
  EXPECT_EQ(c.back[0], 1.0f);
  EXPECT_EQ(c.back[1], 1.0f);        // half way: to the even one below
  EXPECT_EQ(c.back[2], 1.015625f);   // half way: to the even one above
  EXPECT_EQ(c.back[3], 1.0078125f);  // just above half way
  EXPECT_TRUE(std::signbit(c.back[4]));
  for (size_t n : kSizes) {
    const Floats plain = any_bits(n, n + 5);
    const Floats back = code(Codec::kBf16, plain).back;
    for (size_t i = 0; i < n; ++i) {
      const double x = plain[i], y = back[i];
      if (std::isnan(x)) {
        EXPECT_TRUE(std::isnan(y));
      } else if (std::fabs(x) >= 0x1p128 - 0x1p119) {
        EXPECT_EQ(y, std::copysign(kInf, x));
      } else {
        EXPECT_LE(std::fabs(x - y), std::max(std::fabs(x) * 0x1p-8, 0x1p-134)) << x;
      }
    }
  }
}

TEST(Codec, Bf16KeepsNanInfinityAndSubnormals) {
  const Floats plain = {kNan, -kNan, kInf, -kInf, std::bit_cast<float>(0x7f800001u),
                        std::numeric_limits<float>::max(), 0x1p-133f, 0x1p-149f};
  const Floats back = code(Codec::kBf16, plain).back;
  EXPECT_TRUE(std::isnan(back[0]) && std::isnan(back[1]) && std::isnan(back[4]));
  EXPECT_EQ(back[2], kInf);
  EXPECT_EQ(back[3], -kInf);
  EXPECT_EQ(back[5], kInf);
  EXPECT_EQ(back[6], 0x1p-133f);
  EXPECT_EQ(back[7], 0.0f);
}

TEST(Codec, Int8BlocksAreWithinTheirLargestMagnitudeOver254) {
  for (const float scale : {1e-42f, 1e-30f, 0.02f, 1.0f, 1e37f}) {
    for (size_t n : kSizes) {
      const Floats plain = normal_floats(n, n + 9, scale);
      const Floats back = code(Codec::kInt8Block, plain).back;
      for (size_t b = 0; b < n; b += 64) {
        float most = 0;
        for (size_t i = b; i < std::min(b + 64, n); ++i) most = std::max(most, std::fabs(plain[i]));
        for (size_t i = b; i < std::min(b + 64, n); ++i) {
          const double bound = static_cast<double>(most) / 254 * (1 + 1e-6) +
                               std::fabs(static_cast<double>(back[i])) * 0x1p-24 + 0x1p-150;
          EXPECT_LE(std::fabs(static_cast<double>(plain[i]) - back[i]), bound)
              << plain[i] << " in a block of " << most;
        }
      }
    }
  }
}

TEST(Codec, Int8BlocksShowWhatIsNotFiniteAsNanAndKeepTheRest) {
  Floats plain = normal_floats(130, 4);
  plain[3] = kNan;
  plain[5] = kInf;
  plain[70] = -kInf;
  const Floats back = code(Codec::kInt8Block, plain).back;
  for (size_t i = 0; i < plain.size(); ++i) {
    EXPECT_EQ(std::isnan(back[i]), !std::isfinite(plain[i])) << i;
    if (std::isfinite(plain[i])) {
      EXPECT_NEAR(back[i], plain[i], 4.0 / 254);
    }
  }
  const Floats zeros = code(Codec::kInt8Block, Floats(65, -0.0f)).back;
  for (float f : zeros) EXPECT_EQ(f, 0.0f);
}

TEST(Codec, MasksSayWhichElementsAreAboveZero) {
  for (size_t n : kSizes) {
    Floats plain = normal_floats(n, n + 2);
    plain[0] = kNan;
    if (n > 8) plain[5] = 0, plain[6] = -0.0f, plain[7] = 0x1p-149f, plain[8] = kInf;
    const Floats back = code(Codec::kMask, plain).back;
    for (size_t i = 0; i < n; ++i) {
      EXPECT_EQ(back[i], plain[i] > 0 ? 1.0f : 0.0f) << i;
    }
  }
}

TEST(Codec, TheFormIsTheSameForAnyNumberOfThreads) {
  const Floats plain = normal_floats(100'003, 8);
  for (const Codec codec : {Codec::kBf16, Codec::kInt8Block, Codec::kMask, Codec::kBytePlane}) {
    const Coded one = code(codec, plain, 1);
    const Coded three = code(codec, plain, 3);
    const auto size = static_cast<size_t>(one.bytes);
    EXPECT_EQ(one.bytes, three.bytes);
    EXPECT_EQ(std::memcmp(one.form.data(), three.form.data(), size), 0) << name_of(codec);
    EXPECT_TRUE(same_bits(one.back, three.back));
    EXPECT_EQ(one.bytes <= most_bytes(codec, plain.size()), true);
  }
}

}  // namespace
}  // namespace headrace
