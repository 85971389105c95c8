#include "headrace/kernel/attention_block.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "headrace/kernel/float_math.h"
#include "headrace/kernel/half.h"
#include "headrace/kernel/kv_codec.h"
#include "headrace/kernel/quant.h"
#include "tests/kernel/kv_rig.h"

namespace headrace::test {
namespace {

constexpr KvFormat kFormats[] = {KvFormat::kF16, KvFormat::kBF16, KvFormat::kQ8, KvFormat::kQ4};

const std::vector<RigShape> kShapes = {
    {9, 3, 64},          {4, 1, 256},  {8, 8, 80},     {6, 2, 64, 100}, {2, 2, 128, 1},
    {4, 2, 64, 0, 5},    {4, 2, 16},   {2, 1, 20, 65, 2}, {3, 1, 512},  {70, 1, 32},
};
// Fewer of them, for tests that run many steps.
const std::vector<RigShape> kFewShapes = {{6, 2, 64}, {3, 1, 80, 0, 5}, {10, 1, 32}};

RigOptions options(const RigShape& shape, int64_t max_rows, KvFormat format = KvFormat::kF16) {
  RigOptions o;
  o.shape = shape;
  o.max_rows = max_rows;
  o.format = format;
  return o;
}

// Two sequences in one step, at positions that end in different segments.
StepRows ragged_step() {
  StepRows step = step_of(1, 230, 1);
  append(step, step_of(90, 100, 0));
  return step;
}
std::string ragged(KvRig& rig, int threads = 1) {
  rig.feed(0, 100, 100, 0, threads);
  rig.feed(0, 230, 100, 1, threads);
  return rig.step(ragged_step(), threads);
}

// A row of K or V as a query at `position` sees it, unrotated.
std::vector<float> seen_row(const KvRig& rig, bool v, int64_t sequence, int64_t at,
                            int64_t kv_head, int64_t position) {
  const int64_t d = rig.o.shape.head_dim, padded = round_up(d, 16);
  const auto plain = [&](int64_t p) {
    auto x = v ? rig.v_row(sequence, p, kv_head) : rig.k_row(sequence, p, kv_head);
    const bool bf16 = rig.o.format == KvFormat::kBF16;
    for (float& e : x) e = bf16 ? bf16_to_f32(f32_to_bf16(e)) : f16_to_f32(f32_to_f16(e));
    return x;
  };
  if (at / kKvTile == position / kKvTile || rig.o.format < KvFormat::kQ8) return plain(at);
  // A row's bytes depend on that row alone.
  std::vector<uint16_t> rows(static_cast<size_t>(kKvTile * padded), 0);
  const auto x = plain(at);
  std::transform(x.begin(), x.end(), rows.begin(), [&](float e) { return rig.to16(e); });
  Buffer part(kv_tile_bytes(rig.o.format, 1, d) / 2);
  kv_encode_part(rig.o.format, rows.data(), d, part.data());
  std::vector<float> out(static_cast<size_t>(kKvTile * padded));
  kv_decode_rows(rig.o.format, part.data(), d, 0, 1, out.data());
  if (kv_rotates(rig.o.format)) hadamard_rotate(out.data(), d, padded);
  out.resize(static_cast<size_t>(d));
  return out;
}

// The output row at (sequence, position) in double, in no particular order.
std::vector<double> expected(const KvRig& rig, int64_t sequence, int64_t position) {
  const RigShape& s = rig.o.shape;
  const auto q = rig.q_row(sequence, position);
  const int64_t first = s.window > 0 ? std::max<int64_t>(0, position - s.window + 1) : 0;
  std::vector<double> acc(q.size()), sum(static_cast<size_t>(s.heads));
  for (int64_t p = first; p <= position; ++p) {
    for (int64_t g = 0; g < s.kv_heads; ++g) {
      const auto k = seen_row(rig, false, sequence, p, g, position);
      const auto v = seen_row(rig, true, sequence, p, g, position);
      for (int64_t h = g * s.heads / s.kv_heads; h < (g + 1) * s.heads / s.kv_heads; ++h) {
        double score = 0;
        for (size_t i = 0; i < k.size(); ++i) {
          score += static_cast<double>(q[static_cast<size_t>(h * s.head_dim) + i]) * k[i];
        }
        score *= rig.scale();
        if (s.softcap > 0) score = s.softcap * std::tanh(score / s.softcap);
        sum[static_cast<size_t>(h)] += std::exp(score);
        for (size_t i = 0; i < v.size(); ++i) {
          acc[static_cast<size_t>(h * s.head_dim) + i] += std::exp(score) * v[i];
        }
      }
    }
  }
  for (size_t i = 0; i < acc.size(); ++i) acc[i] /= sum[i / static_cast<size_t>(s.head_dim)];
  return acc;
}

std::vector<float> floats(const std::string& bits) {
  std::vector<float> x(bits.size() / 4);
  std::memcpy(x.data(), bits.data(), bits.size());
  return x;
}

TEST(Attention, AgreesWithPlainDoublePrecisionOnEveryShapeAndFormat) {
  for (const RigShape& s : kShapes) {
    for (KvFormat format : kFormats) {
      IsaScope best(all_isas().back());
      KvRig rig(options(s, 130, format));
      const auto got = floats(ragged(rig));
      const StepRows step = ragged_step();
      const size_t n = static_cast<size_t>(s.heads * s.head_dim);
      for (size_t row : {size_t{0}, size_t{1}, size_t{28}, size_t{29}, size_t{90}}) {
        const auto want = expected(rig, step.sequences[row], step.positions[row]);
        for (size_t i = 0; i < n; ++i) {
          ASSERT_NEAR(got[row * n + i], want[i], 1e-5)
              << name_of(format) << " dim " << s.head_dim << " row " << row << " el " << i;
        }
      }
    }
  }
}

float lanes_sum(float* lane) {
  for (int width = 8; width > 0; width /= 2) {
    for (int l = 0; l < width; ++l) lane[l] += lane[l + width];
  }
  return lane[0];
}

// One head by the frozen arithmetic (docs/decisions/0002-attention-tile.md) over plain arrays of
// f16 K and V of all positions: no tails, no slots.
std::vector<float> frozen_head(const std::vector<std::vector<float>>& k,
                               const std::vector<std::vector<float>>& v, const float* q,
                               const RigShape& s, float scale, int64_t position) {
  const size_t d = static_cast<size_t>(s.head_dim);
  const int64_t first = s.window > 0 ? std::max<int64_t>(0, position - s.window + 1) : 0;
  std::vector<float> acc(d);
  float max = -std::numeric_limits<float>::infinity(), sum = 0;
  for (int64_t tile = first / 64; tile <= position / 64; ++tile) {
    const auto lo = static_cast<size_t>(std::max(first, tile * 64));
    const auto hi = static_cast<size_t>(std::min(position + 1, tile * 64 + 64));
    std::vector<float> p(hi);
    float next = max;
    for (size_t j = lo; j < hi; ++j) {
      float lane[16] = {};
      for (size_t i = 0; i < d; ++i) lane[i % 16] = std::fmaf(q[i], k[j][i], lane[i % 16]);
      p[j] = lanes_sum(lane) * scale;
      if (s.softcap > 0) p[j] = softcap_f32(p[j], static_cast<float>(s.softcap));
      next = next < p[j] ? p[j] : next;
    }
    const float rescale = exp_f32(max - next);
    float lane[16] = {};
    for (size_t j = lo; j < hi; ++j) lane[j % 16] += p[j] = exp_f32(p[j] - next);
    max = next;
    sum = std::fmaf(sum, rescale, lanes_sum(lane));
    for (size_t i = 0; i < d; ++i) {
      acc[i] *= rescale;
      for (size_t j = lo; j < hi; ++j) acc[i] = std::fmaf(p[j], v[j][i], acc[i]);
    }
  }
  const float inverse = 1.0f / sum;
  for (float& x : acc) x *= inverse;
  return acc;
}

TEST(Attention, OfF16IsTheFrozenArithmeticOverPlainArraysBitForBit) {
  for (const RigShape& s : kShapes) {
    for (Isa isa : all_isas()) {
      IsaScope scope(isa);
      RigOptions o = options(s, 130);
      if (s.window == 0) o.parts = {1, 2};
      KvRig rig(o);
      const std::string bits = ragged(rig);
      const auto got = floats(bits);
      const StepRows step = ragged_step();
      for (size_t row : {size_t{0}, size_t{1}, size_t{28}, size_t{90}}) {
        const auto q = rig.q_row(step.sequences[row], step.positions[row]);
        for (int64_t h = 0; h < s.heads; h += std::max<int64_t>(1, s.heads / 3)) {
          std::vector<std::vector<float>> k, v;
          const int64_t g = h / (s.heads / s.kv_heads);
          for (int64_t p = 0; p <= step.positions[row]; ++p) {
            k.push_back(seen_row(rig, false, step.sequences[row], p, g, p));
            v.push_back(seen_row(rig, true, step.sequences[row], p, g, p));
          }
          const auto want = frozen_head(k, v, q.data() + h * s.head_dim, s,
                                        static_cast<float>(rig.scale()), step.positions[row]);
          const float* at = got.data() + (static_cast<int64_t>(row) * s.heads + h) * s.head_dim;
          ASSERT_EQ(std::memcmp(at, want.data(), want.size() * 4), 0)
              << name_of(isa) << " dim " << s.head_dim << " row " << row << " head " << h;
        }
      }
    }
  }
}

TEST(Attention, EveryInstructionSetAndThreadCountGivesTheBitsOfTheReference) {
  for (const RigShape& s : kShapes) {
    for (KvFormat format : kFormats) {
      std::string want;
      for (Isa isa : all_isas()) {
        IsaScope scope(isa);
        for (int threads : {1, 4}) {
          if (isa == Isa::kScalar && threads > 1) continue;
          KvRig rig(options(s, 130, format));
          const std::string got = ragged(rig, threads);
          if (want.empty()) want = got;
          ASSERT_EQ(got == want, true) << name_of(isa) << " threads " << threads << " "
                                       << name_of(format) << " dim " << s.head_dim;
        }
      }
    }
  }
}

TEST(Attention, InPartsOfAnyNumberOfSegmentsEqualsOneOpBitForBit) {
  for (const RigShape& s : kFewShapes) {
    for (KvFormat format : kFormats) {
      for (Isa isa : all_isas()) {
        IsaScope scope(isa);
        KvRig whole(options(s, 130, format));
        const std::string want = ragged(whole);
        for (const std::vector<int64_t>& parts :
             {std::vector<int64_t>{1, 2}, {2, 1}, {1, 1, 1}, {1, 1, 1, 1, 1}}) {
          RigOptions o = options(s, 130, format);
          o.parts = parts;
          for (int threads : {1, 3}) {
            if (isa == Isa::kScalar && threads > 1) continue;  // slow
            KvRig rig(o);
            ASSERT_EQ(ragged(rig, threads) == want, true)
                << name_of(isa) << " " << name_of(format) << " parts " << parts.size();
          }
        }
      }
    }
  }
}

TEST(Attention, PrefillInChunksOfAnySizeEqualsOneRowAtATimeBitForBit) {
  constexpr int64_t kLength = 210;
  for (KvFormat format : kFormats) {
    for (const RigShape& s : kFewShapes) {
      std::string want;
      for (Isa isa : all_isas()) {
        IsaScope scope(isa);
        for (int64_t chunk : {int64_t{1}, int64_t{7}, int64_t{64}, int64_t{100}, kLength}) {
          RigOptions o = options(s, chunk, format);
          if (chunk == 7) o.parts = {1, 1, 1};
          KvRig rig(o);
          const std::string got = rig.feed(0, kLength, chunk, 0, 2);
          if (want.empty()) want = got;
          ASSERT_EQ(got == want, true)
              << name_of(isa) << " " << name_of(format) << " chunk " << chunk;
        }
      }
    }
  }
}

TEST(Attention, RowsOfSeveralSequencesEqualEachAlone) {
  for (KvFormat format : kFormats) {
    for (const RigShape& s : kFewShapes) {
      IsaScope scope(all_isas().back());
      KvRig together(options(s, 130, format)), alone(options(s, 130, format));
      const std::string got = ragged(together, 2);
      alone.feed(0, 230, 41, 1);
      alone.feed(0, 100, 13, 0);
      const std::string one = alone.feed(230, 231, 1, 1);
      ASSERT_EQ(got == one + alone.feed(100, 190, 90, 0), true) << name_of(format);
    }
  }
}

TEST(Attention, APoolOfShuffledBlocksEqualsSlots) {
  for (KvFormat format : kFormats) {
    for (const std::vector<int64_t>& parts : {std::vector<int64_t>{3}, {1, 1, 1}}) {
      KvRig slots(options({6, 2, 64}, 130, format));
      RigOptions o = options({6, 2, 64}, 130, format);
      o.parts = parts;
      o.blocks = {4, 0, -1, 3, 5, -1};
      KvRig pool(o);
      ASSERT_EQ(ragged(pool, 2) == ragged(slots), true) << name_of(format);
    }
  }
}

TEST(Attention, SlotsOfAWindowThatAreUsedOverAndOverEqualSlotsForAllPositions) {
  for (KvFormat format : kFormats) {
    for (int64_t chunk : {int64_t{1}, int64_t{30}, int64_t{64}}) {
      RigOptions all = options({4, 2, 32, 100}, chunk, format);
      all.segment_tokens = 64;
      all.parts = {10};
      RigOptions few = all;
      few.parts = {5};
      KvRig a(all), b(few);
      ASSERT_EQ(a.feed(0, 600, chunk) == b.feed(0, 600, chunk), true)
          << name_of(format) << " chunk " << chunk;
    }
  }
}

TEST(Attention, WhatLiesInUnwrittenKvOrInWorkspaceNeverMatters) {
  for (const RigShape& s : kShapes) {
    for (KvFormat format : kFormats) {
      for (Isa isa : all_isas()) {
        if (isa == Isa::kScalar && s.head_dim > 20) continue;  // slow
        IsaScope scope(isa);
        std::string want;
        for (int garbage : {0x00, 0xFF, 0x7C}) {
          RigOptions o = options(s, 130, format);
          o.garbage = garbage;
          if (s.window == 0) o.parts = {1, 1, 1};
          KvRig rig(o);
          const std::string got = ragged(rig);
          if (want.empty()) want = got;
          ASSERT_EQ(got == want, true) << name_of(isa) << " " << name_of(format) << " dim "
                                       << s.head_dim << " garbage " << garbage;
        }
      }
    }
  }
}

TEST(Attention, GoingBackWithinTheTailsTileAndAgainGivesTheSameBits) {
  for (KvFormat format : kFormats) {
    RigOptions o = options({6, 2, 64}, 100, format);
    o.parts = {1, 1, 1};
    KvRig rig(o), once(o);
    rig.feed(0, 128, 100);  // the tail's tile is sealed
    const std::string got = rig.feed(90, 150, 50);
    once.feed(0, 90, 45);
    ASSERT_EQ(got == once.feed(90, 150, 60), true) << name_of(format);
  }
}

TEST(Attention, AnActQ8OutputIsTheF32OutputQuantised) {
  const RigShape s{9, 3, 64};
  for (Isa isa : all_isas()) {
    IsaScope scope(isa);
    RigOptions o = options(s, 300);  // more rows than are held as f32 at a time
    KvRig plain(o);
    o.out = DType::kActQ8;
    o.parts = {1, 2};
    KvRig fused(o);
    const int64_t n = s.heads * s.head_dim;
    const auto want = floats(plain.feed(0, 300, 300));
    const std::string got = fused.feed(0, 300, 300, 0, 2);
    const auto bytes = static_cast<size_t>(row_bytes(DType::kActQ8, n));
    for (int64_t row = 0; row < 300; ++row) {
      Buffer q(row_bytes(DType::kActQ8, n));
      quantize_row(want.data() + row * n, n, q.data());
      ASSERT_EQ(got.substr(static_cast<size_t>(row) * bytes, bytes),
                std::string(reinterpret_cast<char*>(q.data()), bytes));
    }
  }
}

TEST(Attention, ScoresOfHundredsDoNotOverflow) {
  for (Isa isa : all_isas()) {
    IsaScope scope(isa);
    RigOptions o = options({2, 1, 64}, 100);
    o.q_scale = 1000;
    KvRig rig(o);
    for (float x : floats(rig.feed(0, 200, 100))) ASSERT_TRUE(std::isfinite(x));
  }
}

}  // namespace
}  // namespace headrace::test
