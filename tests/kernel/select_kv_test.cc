// Selection of KV segments: bounds of their keys, what is chosen, and attention that passes over what
// is not, against plain references.
#include "headrace/kernel/select_kv.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "tests/kernel/kv_rig.h"

namespace headrace {
namespace {

using test::KvRig;
using test::OpHarness;
using test::RigOptions;

constexpr int64_t kSegment = 128;

RigOptions rig_options(KvFormat format, int64_t segments, bool mask) {
  RigOptions o;
  o.shape = {4, 2, 24};
  o.format = format;
  o.segment_tokens = kSegment;
  o.parts.assign(static_cast<size_t>(segments), 1);
  o.sequences = 1;
  o.sparse_tokens = 3 * kSegment;
  o.masked = mask;
  return o;
}

StepRows one_row(int64_t position, bool dense = false) {
  StepRows rows = test::step_of(1, position, 0);
  rows.dense = dense;
  return rows;
}

class SelectKvFormats : public ::testing::TestWithParam<KvFormat> {};

TEST_P(SelectKvFormats, AMaskOfAllSegmentsGivesTheBitsOfNoMask) {
  KvRig plain(rig_options(GetParam(), 4, false)), masked(rig_options(GetParam(), 4, true));
  plain.o.sparse_tokens = 0;
  std::fill_n(masked.mask(), 4, 1.0f);
  EXPECT_EQ(masked.feed(0, 300, 1), plain.feed(0, 300, 1));
}

TEST_P(SelectKvFormats, ADenseStepGivesTheBitsOfNoMaskWhateverTheMaskSays) {
  KvRig plain(rig_options(GetParam(), 4, false)), masked(rig_options(GetParam(), 4, true));
  std::fill_n(masked.mask(), 4, 1.0f);
  plain.feed(0, 400, 1);
  masked.feed(0, 400, 1);
  for (const float x : {0.0f, 1.0f}) {
    masked.mask()[1] = x;
    masked.mask()[2] = x;
    EXPECT_EQ(masked.step(one_row(400, true)), plain.step(one_row(400)));
  }
}

// The reference attends positions that the mask leaves, in double, over K and V as they were given.
TEST_P(SelectKvFormats, OnlySegmentsOfTheMaskAreAttendedAndTheRowsOwnTile) {
  KvRig rig(rig_options(GetParam(), 4, true));
  std::fill_n(rig.mask(), 4, 1.0f);
  constexpr int64_t kAt = 410;
  rig.feed(0, kAt, 1);
  rig.mask()[1] = rig.mask()[2] = 0;
  const std::string bits = rig.step(one_row(kAt));
  const auto* got = reinterpret_cast<const float*>(bits.data());
  const auto q = rig.q_row(0, kAt);
  const double tolerance = GetParam() == KvFormat::kQ4   ? 0.3
                           : GetParam() == KvFormat::kQ8 ? 0.03
                                                         : 0.02;
  for (int64_t h = 0; h < 4; ++h) {
    std::vector<double> want(24, 0);
    double sum = 0;
    for (int64_t p = 0; p <= kAt; ++p) {
      if (p / kSegment == 1 || p / kSegment == 2) continue;
      const auto k = rig.k_row(0, p, h / 2), v = rig.v_row(0, p, h / 2);
      double dot = 0;
      for (size_t i = 0; i < 24; ++i) dot += static_cast<double>(q[static_cast<size_t>(h) * 24 + i]) * k[i];
      const double e = std::exp(dot * rig.scale());
      sum += e;
      for (size_t i = 0; i < 24; ++i) want[i] += e * v[i];
    }
    for (size_t i = 0; i < 24; ++i) {
      EXPECT_NEAR(got[static_cast<size_t>(h) * 24 + i], want[i] / sum, tolerance) << h << ' ' << i;
    }
  }
}

TEST_P(SelectKvFormats, TheShareOfSelectedSegmentsIsWhatAPlainSumSays) {
  KvRig rig(rig_options(GetParam(), 4, true));
  std::fill_n(rig.mask(), 4, 1.0f);
  constexpr int64_t kAt = 500;
  rig.feed(0, kAt, 1);
  rig.step(one_row(kAt, true));
  EXPECT_NEAR(rig.recall(), 1, 1e-6);
  rig.feed(kAt + 1, kAt + 2, 1);
  rig.mask()[2] = 0;
  rig.step(one_row(kAt + 2, true), 3);
  double share = 0;
  const auto q = rig.q_row(0, kAt + 2);
  for (int64_t h = 0; h < 4; ++h) {
    double all = 0, selected = 0;
    for (int64_t p = 0; p <= kAt + 2; ++p) {
      const auto k = rig.k_row(0, p, h / 2);
      double dot = 0;
      for (size_t i = 0; i < 24; ++i) dot += static_cast<double>(q[static_cast<size_t>(h) * 24 + i]) * k[i];
      const double e = std::exp(dot * rig.scale());
      all += e;
      if (p / kSegment != 2) selected += e;
    }
    share += selected / all / 4;
  }
  EXPECT_NEAR(rig.recall(), share, GetParam() == KvFormat::kQ4 ? 0.05 : 0.005);
}

TEST_P(SelectKvFormats, BoundsAreThoseOfTheDecodedKeysInWhateverChunksTheyCame) {
  KvRig single(rig_options(GetParam(), 4, false));
  single.feed(0, 450, 1);
  RigOptions wide = rig_options(GetParam(), 4, false);
  wide.max_rows = 200;
  KvRig chunks(wide);
  chunks.feed(0, 450, 150, 0, 3);
  const auto cols = static_cast<size_t>(key_bounds_cols(2, 24));
  // 7 sealed tiles: three whole segments and one tile of the fourth.
  for (size_t i = 0; i < 4 * cols; ++i) {
    EXPECT_EQ(std::memcmp(single.keys() + i, chunks.keys() + i, 4), 0) << i;
  }
  if (GetParam() != KvFormat::kF16) return;
  for (int64_t g = 0; g < 2; ++g) {
    for (size_t i = 0; i < 24; ++i) {
      float least = 1e9f, most = -1e9f;
      for (int64_t p = 128; p < 256; ++p) {
        const float x = f16_to_f32(f32_to_f16(single.k_row(0, p, g)[i]));
        least = std::min(least, x);
        most = std::max(most, x);
      }
      const float* row = single.keys() + cols + static_cast<size_t>(g) * 2 * 32;
      EXPECT_EQ(row[i], least);
      EXPECT_EQ(row[32 + i], most);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Formats, SelectKvFormats,
                         ::testing::Values(KvFormat::kF16, KvFormat::kBF16, KvFormat::kQ8,
                                           KvFormat::kQ4),
                         [](const auto& info) { return std::string(name_of(info.param)); });

// One head, keys of one element different from zero.
struct Selector {
  explicit Selector(int64_t segments, int64_t sparse, int64_t heads = 1, int64_t kv_heads = 1)
      : h(OpKind::kSelectKv, 1), n(segments), kv(kv_heads) {
    q = h.input(DType::kF32, 1, heads * 16);
    keys = h.input(DType::kF32, segments + 1, key_bounds_cols(kv_heads, 16), Role::kState);
    out = h.output(DType::kF32, 1, segments);
    h.op.attrs = {{Attr::kHeads, static_cast<double>(heads)},
                  {Attr::kKvHeads, static_cast<double>(kv_heads)},
                  {Attr::kHeadDim, 16},
                  {Attr::kScale, 1},
                  {Attr::kSegmentTokens, 64},
                  {Attr::kSegments, static_cast<double>(segments)},
                  {Attr::kSparseTokens, static_cast<double>(sparse)}};
    std::fill_n(h.f32(q), heads * 16, 0.0f);
    std::fill_n(h.f32(keys), (segments + 1) * key_bounds_cols(kv_heads, 16), 0.0f);
  }
  void bound(int64_t segment, int64_t head, float least, float most) {
    float* row = h.f32(keys) + segment * key_bounds_cols(kv, 16) + head * 32;
    row[0] = least;
    row[16] = most;
  }
  std::vector<int64_t> at(int64_t position, int threads = 1) {
    h.run(test::step_of(1, position, 0), threads);
    std::vector<int64_t> out_segments;
    for (int64_t i = 0; i < n; ++i) {
      const float x = h.f32(out)[i];
      EXPECT_TRUE(x == 0 || x == 1);
      if (x == 1) out_segments.push_back(i);
    }
    return out_segments;
  }
  OpHarness h;
  int64_t n, kv;
  size_t q, keys, out;
};

using Segments = std::vector<int64_t>;

TEST(SelectKv, TheFirstTheLastTwoAndThoseThatMayScoreHighestAreChosen) {
  Selector s(20, 5 * 64);
  s.h.f32(s.q)[0] = -2;
  s.bound(7, 0, -3, 0);   // at most 6
  s.bound(11, 0, -1, 9);  // at most 2
  s.bound(13, 0, 0, 9);   // at most 0
  EXPECT_EQ(s.at(18 * 64 + 5), (Segments{0, 7, 11, 17, 18}));
  EXPECT_EQ(s.at(18 * 64 + 5, 3), (Segments{0, 7, 11, 17, 18}));
}

TEST(SelectKv, EverythingIsAttendedUntilThereIsMoreThanIsSelected) {
  Selector s(20, 5 * 64);
  EXPECT_EQ(s.at(0), (Segments{0}));
  EXPECT_EQ(s.at(4 * 64 + 63), (Segments{0, 1, 2, 3, 4}));
  // Of segments that are alike the first ones.
  EXPECT_EQ(s.at(5 * 64), (Segments{0, 1, 2, 4, 5}));
}

TEST(SelectKv, HeadsHaveTheirSaySeparatelyAndNoneOutshoutsTheOthers) {
  Selector s(20, 5 * 64, 2, 2);
  s.h.f32(s.q)[0] = 1;
  s.h.f32(s.q)[16] = 1;
  for (int64_t i = 4; i < 8; ++i) s.bound(i, 0, 0, 100);
  s.bound(9, 1, 0, 10);
  EXPECT_EQ(s.at(19 * 64), (Segments{0, 4, 9, 18, 19}));
}

TEST(SelectKv, OfAGroupOfQueriesTheOneThatScoresHighestCounts) {
  Selector s(20, 4 * 64, 3, 1);
  s.h.f32(s.q)[16] = 5;
  s.h.f32(s.q)[32] = -1;
  s.bound(3, 0, -4, 0);  // 4 by the third query
  s.bound(6, 0, 0, 1);   // 5 by the second
  EXPECT_EQ(s.at(19 * 64), (Segments{0, 6, 18, 19}));
}

}  // namespace
}  // namespace headrace
