#include <gtest/gtest.h>

#include <cmath>

#include "headrace/kernel/half.h"
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

constexpr int64_t kSegmentTokens = 64, kSegments = 3, kSequences = 2;
constexpr double kEps = 1e-6;

class RopeHarness {
 public:
  RopeHarness(const RopeCase& c, int64_t rows)
      : shape(c),
        h(OpKind::kRopeKv, rows),
        kv{c.kv_heads, c.head_dim, kSegmentTokens},
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
    slots = h.kv_slots(kv, kSequences, kSegments, true);
    h.op.attrs = {{Attr::kHeads, c.heads},
                  {Attr::kKvHeads, c.kv_heads},
                  {Attr::kHeadDim, c.head_dim},
                  {Attr::kEps, kEps},
                  {Attr::kAddOne, c.add_one},
                  {Attr::kRopeHalfSplit, c.half_split},
                  {Attr::kSegmentTokens, kSegmentTokens},
                  {Attr::kSegments, kSegments}};
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

  const uint16_t* slot(int64_t sequence, int64_t position) {
    const auto i = static_cast<size_t>(sequence * kSegments + position / kSegmentTokens);
    return reinterpret_cast<const uint16_t*>(h.bytes(slots + i));
  }
  std::string all_kv() {
    std::string bits;
    for (size_t i = slots; i < slots + kSequences * kSegments; ++i) bits += h.bits(i);
    return bits;
  }

  RopeCase shape;
  OpHarness h;
  KvLayout kv;
  int64_t cols;
  size_t qkv, table, q_norm = 0, k_norm = 0, out, slots;
};

StepRows ragged_step() {
  StepRows step = step_of(5, 62, 0);
  append(step, step_of(1, 191, 1));
  append(step, step_of(2, 0, 1));
  return step;
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
      const uint16_t* slot = t.slot(step.sequences[static_cast<size_t>(row)], position);
      for (int64_t g = 0; g < c.kv_heads; ++g) {
        const auto want =
            t.rotated(row, c.heads + g, c.norms ? t.h.f32(t.k_norm) : nullptr);
        const uint16_t* k = slot + t.kv.k_offset(g, position % kSegmentTokens);
        const uint16_t* v = slot + t.kv.v_offset(g, position % kSegmentTokens);
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
  const std::string untouched(static_cast<size_t>(t.kv.bytes()), '\xFF');
  for (size_t i = 0; i < kSequences * kSegments; ++i) {
    if (i == kSegments + 1) continue;
    EXPECT_EQ(t.h.bits(t.slots + i), untouched) << i;
  }
  const uint16_t* slot = t.slot(1, 70);
  int64_t written = 0;
  for (int64_t i = 0; i < t.kv.bytes() / 2; ++i) written += slot[i] != 0xFFFF;
  EXPECT_EQ(written, 2 * c.kv_heads * c.head_dim);
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

// Rope and attention of rows [begin, end) of a sequence whose qkv and table are given, on
// KV slots that `rope` holds; returns the output rows.
std::string step_through(RopeHarness& rope, const std::vector<float>& qkv,
                         const std::vector<float>& table, int64_t begin, int64_t end) {
  const RopeCase& c = rope.shape;
  const int64_t rows = end - begin, n = c.heads * c.head_dim;
  std::copy_n(qkv.data() + begin * rope.cols, rows * rope.cols, rope.h.f32(rope.qkv));
  std::copy_n(table.data() + begin * c.rope_dims, rows * c.rope_dims,
              rope.h.f32(rope.table));
  rope.h.run(step_of(rows, begin, 1));
  OpHarness attention(OpKind::kAttention, rows);
  const size_t q = attention.input(DType::kF32, rows, n);
  const size_t slots = attention.kv_slots(rope.kv, kSequences, kSegments, false);
  const size_t out = attention.output(DType::kF32, rows, n);
  attention.op.attrs = rope.h.op.attrs;
  attention.op.attrs[Attr::kScale] = 0.125;
  attention.op.attrs[Attr::kWindow] = 90;
  std::memcpy(attention.f32(q), rope.h.f32(rope.out), static_cast<size_t>(rows * n) * 4);
  for (size_t i = 0; i < kSequences * kSegments; ++i) {
    std::memcpy(attention.bytes(slots + i), rope.h.bytes(rope.slots + i),
                static_cast<size_t>(rope.kv.bytes()));
  }
  attention.run(step_of(rows, begin, 1), 2);
  return attention.bits(out);
}

TEST(RopeKv, WithAttentionAChunkedSequenceEqualsTokenByToken) {
  constexpr int64_t kLength = 190;
  const RopeCase c{6, 2, 64, 64, true, true};
  const auto table = normal_values(kLength * c.rope_dims, 12);
  for (Isa isa : all_isas()) {
    IsaScope scope(isa);
    std::string want;
    for (const int64_t chunk : {int64_t{1}, int64_t{7}, int64_t{64}, kLength}) {
      RopeHarness rope(c, chunk);
      const auto qkv = normal_values(kLength * rope.cols, 11);
      std::string got;
      for (int64_t at = 0; at < kLength; at += chunk) {
        got += step_through(rope, qkv, table, at, std::min(at + chunk, kLength));
      }
      if (want.empty()) want = got;
      ASSERT_EQ(got, want) << name_of(isa) << " chunk " << chunk;
    }
  }
}

}  // namespace
}  // namespace headrace::test
