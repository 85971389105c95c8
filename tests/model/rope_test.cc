#include "headrace/model/rope.h"

#include <gtest/gtest.h>

#include <cmath>

namespace headrace {
namespace {

constexpr double kTwoPi = 6.283185307179586;

TEST(Rope, WithoutScalingFrequenciesFallGeometrically) {
  RopeConfig rope;
  rope.base = 10000;
  const auto f = inverse_frequencies(rope, 8);
  ASSERT_TRUE(f.ok());
  ASSERT_EQ(f->size(), 4u);
  EXPECT_FLOAT_EQ((*f)[0], 1.0f);
  EXPECT_FLOAT_EQ((*f)[1], 0.1f);
  EXPECT_FLOAT_EQ((*f)[2], 0.01f);
  EXPECT_FLOAT_EQ((*f)[3], 0.001f);
  EXPECT_EQ(rope_mscale(rope), 1);
}

TEST(Rope, LinearScalingDividesEveryFrequency) {
  RopeConfig rope;
  rope.scaling = RopeScaling::kLinear;
  rope.factor = 8;
  const auto f = inverse_frequencies(rope, 8);
  ASSERT_TRUE(f.ok());
  EXPECT_FLOAT_EQ((*f)[0], 1 / 8.0f);
  EXPECT_FLOAT_EQ((*f)[3], 0.001f / 8);
}

// The bands as the Llama 3.1 release states them: by wavelength.
TEST(Rope, Llama3KeepsShortWavesDividesLongOnesAndBlendsBetween) {
  RopeConfig rope;
  rope.base = 500000;
  rope.scaling = RopeScaling::kLlama3;
  rope.factor = 8;
  rope.original_context = 8192;
  rope.low_freq_factor = 1;
  rope.high_freq_factor = 4;
  const auto f = inverse_frequencies(rope, 128);
  ASSERT_TRUE(f.ok());
  int kept = 0, divided = 0, blended = 0;
  for (int i = 0; i < 64; ++i) {
    const double plain = std::pow(500000.0, -2.0 * i / 128);
    const double wave = kTwoPi / plain;
    double want = plain;
    if (wave > 8192 / 1.0) {
      want = plain / 8;
      ++divided;
    } else if (wave >= 8192 / 4.0) {
      const double smooth = (8192 / wave - 1) / (4 - 1);
      want = (1 - smooth) * plain / 8 + smooth * plain;
      ++blended;
    } else {
      ++kept;
    }
    EXPECT_NEAR((*f)[static_cast<size_t>(i)], want, 1e-6 * want) << i;
  }
  EXPECT_GT(kept, 10);
  EXPECT_GT(divided, 10);
  EXPECT_GT(blended, 2);
}

TEST(Rope, DivisorsOfTheFileDivide) {
  RopeConfig rope;
  rope.divisors = {1, 2, 4, 8};
  const auto f = inverse_frequencies(rope, 8);
  ASSERT_TRUE(f.ok());
  EXPECT_FLOAT_EQ((*f)[2], 0.01f / 4);
  EXPECT_FALSE(inverse_frequencies(rope, 16).ok());
  rope.divisors = {1, 2, 0, 8};
  EXPECT_FALSE(inverse_frequencies(rope, 8).ok());
}

// Against the closed form of the paper: pairs that rotate more than beta_fast times
// within the original context stay, those below beta_slow are interpolated.
TEST(Rope, YarnLeavesFastPairsAndInterpolatesSlowOnes) {
  RopeConfig rope;
  rope.base = 10000;
  rope.scaling = RopeScaling::kYarn;
  rope.factor = 4;
  rope.original_context = 4096;
  const auto f = inverse_frequencies(rope, 128);
  ASSERT_TRUE(f.ok());
  for (int i = 0; i < 64; ++i) {
    const double plain = std::pow(10000.0, -2.0 * i / 128);
    const double turns = 4096 * plain / kTwoPi;
    const double got = (*f)[static_cast<size_t>(i)];
    if (turns > 32 * 1.2) {
      EXPECT_NEAR(got, plain, 1e-6 * plain) << i;
    }
    if (turns < 1 / 1.2) {
      EXPECT_NEAR(got, plain / 4, 1e-6 * plain) << i;
    }
    EXPECT_LE(got, plain * (1 + 1e-6));
    EXPECT_GE(got, plain / 4 * (1 - 1e-6));
  }
  EXPECT_NEAR(rope_mscale(rope), 0.1 * std::log(4.0) + 1, 1e-12);
  rope.attention_factor = 1.25;
  EXPECT_EQ(rope_mscale(rope), 1.25);
}

TEST(Rope, RefusesParametersThatMakeNoSense) {
  const auto refused = [](auto change) {
    RopeConfig rope;
    rope.original_context = 4096;
    change(&rope);
    return !inverse_frequencies(rope, 64).ok();
  };
  EXPECT_TRUE(refused([](RopeConfig* r) { r->base = 0; }));
  EXPECT_TRUE(refused([](RopeConfig* r) { r->base = NAN; }));
  EXPECT_TRUE(refused([](RopeConfig* r) { r->factor = 0; }));
  EXPECT_TRUE(refused([](RopeConfig* r) { r->factor = -1; }));
  EXPECT_TRUE(refused([](RopeConfig* r) {
    r->scaling = RopeScaling::kLlama3;
    r->original_context = 0;
  }));
  EXPECT_TRUE(refused([](RopeConfig* r) {
    r->scaling = RopeScaling::kLlama3;
    r->high_freq_factor = r->low_freq_factor;
  }));
  EXPECT_TRUE(refused([](RopeConfig* r) {
    r->scaling = RopeScaling::kYarn;
    r->beta_slow = 0;
  }));
}

}  // namespace
}  // namespace headrace
