#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "headrace/ir/kv.h"
#include "headrace/kernel/half.h"
#include "headrace/kernel/kv_layout.h"
#include "tests/kernel/op_harness.h"

namespace headrace::test {
namespace {

struct RopeCase {
  int64_t heads, kv_heads, head_dim, rope_dims;
  bool half_split, norms, add_one = false;
};

const RopeCase kCases[] = {
    {9, 3, 64, 64, false, false}, {4, 1, 256, 256, true, true, true},
    {8, 8, 80, 80, true, false},  {16, 2, 128, 128, true, true},
    {4, 2, 128, 64, true, false}, {4, 2, 64, 32, false, true},
    {2, 1, 20, 12, false, false},
};

constexpr int64_t kSequences = 2;
constexpr double kEps = 1e-6;

class RopeHarness {
 public:
  RopeHarness(const RopeCase& c, int64_t rows, KvFormat format = KvFormat::kF16)
      : shape(c),
        h(OpKind::kRopeKv, rows),
        kv{c.kv_heads, c.head_dim},
        cols((c.heads + 2 * c.kv_heads) * c.head_dim) {
    qkv = h.input(DType::kF32, rows, cols);
    table = h.input(DType::kF32, rows, c.rope_dims);
    if (c.norms) {
      q_norm = h.input(DType::kF32, 1, c.head_dim, Role::kWeight);
      k_norm = h.input(DType::kF32, 1, c.head_dim, Role::kWeight);
      fill_normal(h.f32(q_norm), c.head_dim, 3);
      fill_normal(h.f32(k_norm), c.head_dim, 4);
    }
    out = h.output(DType::kF32, rows, c.heads * c.head_dim);
    const int64_t padded = padded_head_dim(c.head_dim), tile = 128 * c.kv_heads;
    open = h.output(DType::kF16, std::max<int64_t>(kv_open_tiles(rows, kSequences), 1) * tile,
                    padded);
    tails = h.update(DType::kF16, tile, padded);
    for (int64_t s = 1; s < kSequences; ++s) h.update(DType::kF16, tile, padded);
    h.op.attrs = {{Attr::kHeads, c.heads},
                  {Attr::kKvHeads, c.kv_heads},
                  {Attr::kHeadDim, c.head_dim},
                  {Attr::kEps, kEps},
                  {Attr::kAddOne, c.add_one},
                  {Attr::kRopeHalfSplit, c.half_split},
                  {Attr::kKvFormat, static_cast<double>(format)}};
    fill_normal(h.f32(qkv), rows * cols, 1);
    fill_normal(h.f32(table), rows * c.rope_dims, 2);
  }

  // Head `head` of the row's q, k, v in double, normalised and rotated by its formula.
  std::vector<double> rotated(int64_t row, int64_t head, const float* norm) {
    const int64_t d = shape.head_dim, half = shape.rope_dims / 2;
    const float* x = h.f32(qkv) + row * cols + head * d;
    std::vector<double> y(x, x + d);
    if (norm != nullptr) {
      double sum = 0;
      for (double v : y) sum += v * v;
      const double scale = 1 / std::sqrt(sum / static_cast<double>(d) + kEps);
      for (int64_t i = 0; i < d; ++i) y[i] *= scale * (norm[i] + (shape.add_one ? 1 : 0));
    }
    const float* cosines = h.f32(table) + row * shape.rope_dims;
    for (int64_t i = 0; i < half; ++i) {
      const int64_t a = shape.half_split ? i : 2 * i;
      const int64_t b = shape.half_split ? i + half : 2 * i + 1;
      const double ya = y[a], yb = y[b], c = cosines[i], s = cosines[half + i];
      y[a] = ya * c - yb * s;
      y[b] = yb * c + ya * s;
    }
    return y;
  }

  // The tail of `sequence`, and an open tile.
  const uint16_t* tail(int64_t sequence) {
    return reinterpret_cast<const uint16_t*>(h.bytes(tails + static_cast<size_t>(sequence)));
  }
  const uint16_t* open_tile(int64_t i) {
    return reinterpret_cast<const uint16_t*>(h.bytes(open)) + i * kv.tile_elements();
  }
  std::string all_kv() { return h.bits(tails) + h.bits(tails + 1) + h.bits(open); }

  RopeCase shape;
  OpHarness h;
  KvLayout kv;
  int64_t cols;
  size_t qkv, table, q_norm = 0, k_norm = 0, out, open, tails;
};

// Sequence 0 in its tail and one open tile, sequence 1 in its tail and two more.
StepRows ragged_step() {
  StepRows step = step_of(5, 62, 0);
  append(step, step_of(70, 190, 1));
  return step;
}
const uint16_t* tile_of(RopeHarness& t, int64_t sequence, int64_t position) {
  if (sequence == 0) return position < 64 ? t.tail(0) : t.open_tile(0);
  return position < 192 ? t.tail(1) : t.open_tile(position < 256 ? 1 : 2);
}

TEST(RopeKv, NormalisesAndRotatesQAndWritesKAndVAtTheRowsPlace) {
  for (const RopeCase& c : kCases) {
    const StepRows step = ragged_step();
    RopeHarness t(c, step.rows());
    IsaScope scalar(Isa::kScalar);
    t.h.run(step);
    const int64_t d = c.head_dim;
    for (int64_t row = 0; row < step.rows(); ++row) {
      for (int64_t head = 0; head < c.heads; ++head) {
        const auto want = t.rotated(row, head, c.norms ? t.h.f32(t.q_norm) : nullptr);
        for (int64_t i = 0; i < d; ++i) {
          ASSERT_NEAR(t.h.f32(t.out)[(row * c.heads + head) * d + i], want[i], 1e-5) << d;
        }
      }
      const int64_t position = step.positions[static_cast<size_t>(row)];
      const uint16_t* tile = tile_of(t, step.sequences[static_cast<size_t>(row)], position);
      for (int64_t g = 0; g < c.kv_heads; ++g) {
        const auto want =
            t.rotated(row, c.heads + g, c.norms ? t.h.f32(t.k_norm) : nullptr);
        const uint16_t* k = tile + t.kv.k_offset(g, position % kKvTile);
        const uint16_t* v = tile + t.kv.v_offset(g, position % kKvTile);
        const float* v_in =
            t.h.f32(t.qkv) + row * t.cols + (c.heads + c.kv_heads + g) * d;
        for (int64_t i = 0; i < d; ++i) {
          ASSERT_NEAR(f16_to_f32(k[i]), want[i], 2e-3 * (1 + std::fabs(want[i])));
          ASSERT_EQ(v[i], f32_to_f16(v_in[i]));
        }
        for (int64_t i = d; i < padded_head_dim(d); ++i) {
          ASSERT_EQ(k[i], 0);
          ASSERT_EQ(v[i], 0);
        }
      }
    }
  }
}

TEST(RopeKv, TouchesNoOtherPosition) {
  const RopeCase c = kCases[0];
  RopeHarness t(c, 1);
  t.h.run(step_of(1, 70, 1));
  const std::string untouched(static_cast<size_t>(t.kv.tile_elements() * 2), '\xFF');
  EXPECT_EQ(t.h.bits(t.tails), untouched);
  EXPECT_EQ(t.h.bits(t.open), untouched);
  int64_t written = 0;
  for (int64_t i = 0; i < t.kv.tile_elements(); ++i) written += t.tail(1)[i] != 0xFFFF;
  EXPECT_EQ(written, 2 * c.kv_heads * c.head_dim);
}

TEST(RopeKv, WritesBf16WhenKvIsBf16) {
  const RopeCase c{4, 2, 20, 20, true, false};
  RopeHarness half(c, 3), brain(c, 3, KvFormat::kBF16);
  half.h.run(step_of(3, 10));
  brain.h.run(step_of(3, 10));
  EXPECT_EQ(half.h.bits(half.out), brain.h.bits(brain.out));
  for (int64_t row = 0; row < 3; ++row) {
    const float* v = half.h.f32(half.qkv) + row * half.cols + (c.heads + c.kv_heads) * c.head_dim;
    for (int64_t i = 0; i < 32; ++i) {
      const int64_t at = half.kv.v_offset(0, 10 + row) + i;
      EXPECT_EQ(brain.tail(0)[at], i < 20 ? f32_to_bf16(v[i]) : 0) << i;
      EXPECT_EQ(half.tail(0)[at], i < 20 ? f32_to_f16(v[i]) : 0) << i;
    }
  }
}

TEST(RopeKv, IsTheSameOnEveryInstructionSetAndThreadCount) {
  for (const RopeCase& c : kCases) {
    StepRows step = step_of(100, 60, 0);
    append(step, step_of(50, 3, 1));
    std::string want_q, want_kv;
    for (Isa isa : all_isas()) {
      IsaScope scope(isa);
      for (int threads : {1, 2, 3}) {
        RopeHarness t(c, step.rows());
        t.h.run(step, threads);
        if (want_q.empty()) {
          want_q = t.h.bits(t.out);
          want_kv = t.all_kv();
        }
        ASSERT_EQ(t.h.bits(t.out), want_q) << name_of(isa) << " " << c.head_dim;
        ASSERT_EQ(t.all_kv(), want_kv) << name_of(isa) << " " << c.head_dim;
      }
    }
  }
}

}  // namespace
}  // namespace headrace::test
