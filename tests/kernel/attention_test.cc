#include "headrace/kernel/attention_block.h"

#include <gtest/gtest.h>

#include <cmath>

#include "headrace/kernel/half.h"
#include "headrace/kernel/quant.h"
#include "tests/kernel/op_harness.h"

namespace headrace::test {
namespace {

struct Shape {
  int64_t heads, kv_heads, head_dim;
  int64_t window = 0;
  double softcap = 0;
};

constexpr int64_t kSegmentTokens = 128;
constexpr int64_t kSegments = 3;
constexpr int64_t kSequences = 2;

// kAttention over a KV filled with random values up to each sequence's length, NaN
// beyond.
class AttentionHarness {
 public:
  AttentionHarness(const Shape& s, int64_t max_rows, DType out_type = DType::kF32)
      : shape(s), ops(OpKind::kAttention, max_rows) {
    q = ops.input(DType::kF32, max_rows, s.heads * s.head_dim);
    kv = {s.kv_heads, s.head_dim, kSegmentTokens};
    slots = ops.kv_slots(kv, kSequences, kSegments, false);
    out = ops.output(out_type, max_rows, s.heads * s.head_dim);
    ops.op.attrs = {{Attr::kHeads, s.heads},      {Attr::kKvHeads, s.kv_heads},
                    {Attr::kHeadDim, s.head_dim}, {Attr::kScale, scale()},
                    {Attr::kWindow, s.window},    {Attr::kSoftcap, s.softcap},
                    {Attr::kSegments, kSegments}, {Attr::kSegmentTokens, kSegmentTokens}};
    fill_normal(ops.f32(q), max_rows * s.heads * s.head_dim, 7);
  }

  double scale() const { return 1 / std::sqrt(static_cast<double>(shape.head_dim)); }

  uint16_t* k_at(int64_t sequence, int64_t position, int64_t kv_head) {
    return slot(sequence, position) + kv.k_offset(kv_head, position % kSegmentTokens);
  }
  uint16_t* v_at(int64_t sequence, int64_t position, int64_t kv_head) {
    return slot(sequence, position) + kv.v_offset(kv_head, position % kSegmentTokens);
  }

  // Writes K and V of positions [0, length).
  void fill_kv(int64_t sequence, int64_t length) {
    const int64_t d = shape.head_dim, padded = padded_head_dim(d);
    for (int64_t p = 0; p < length; ++p) {
      for (int64_t g = 0; g < shape.kv_heads; ++g) {
        const auto seed = static_cast<uint32_t>((sequence * 1000 + p) * 100 + g);
        const auto values = normal_values(2 * d, seed);
        for (int64_t i = 0; i < padded; ++i) {
          k_at(sequence, p, g)[i] = i < d ? f32_to_f16(values[i]) : 0;
          v_at(sequence, p, g)[i] = i < d ? f32_to_f16(values[d + i]) : 0;
        }
      }
    }
  }

  // Row `row` of the output at (sequence, position) in double, in no particular order.
  std::vector<double> expected(int64_t row, int64_t sequence, int64_t position) {
    const int64_t d = shape.head_dim, group = shape.heads / shape.kv_heads;
    std::vector<double> result;
    for (int64_t h = 0; h < shape.heads; ++h) {
      const float* query = ops.f32(q) + (row * shape.heads + h) * d;
      const int64_t first =
          shape.window > 0 ? std::max<int64_t>(0, position - shape.window + 1) : 0;
      double sum = 0;
      std::vector<double> acc(static_cast<size_t>(d));
      for (int64_t p = first; p <= position; ++p) {
        double s = 0;
        for (int64_t i = 0; i < d; ++i) {
          s +=
              static_cast<double>(query[i]) * f16_to_f32(k_at(sequence, p, h / group)[i]);
        }
        s *= scale();
        if (shape.softcap > 0) s = shape.softcap * std::tanh(s / shape.softcap);
        const double weight = std::exp(s);
        sum += weight;
        for (int64_t i = 0; i < d; ++i) {
          acc[i] += weight * f16_to_f32(v_at(sequence, p, h / group)[i]);
        }
      }
      for (double a : acc) result.push_back(a / sum);
    }
    return result;
  }

  // Copies row `from` of q to row `to`.
  void copy_q(int64_t from, int64_t to, const std::vector<float>& source) {
    const int64_t n = shape.heads * shape.head_dim;
    std::copy_n(source.data() + from * n, n, ops.f32(q) + to * n);
  }

  std::string row_bits(int64_t row) const {
    const auto bytes = static_cast<size_t>(
        row_bytes(ops.graph.at(ops.op.outputs[0]).dtype, shape.heads * shape.head_dim));
    return ops.bits(out).substr(static_cast<size_t>(row) * bytes, bytes);
  }

  Shape shape;
  OpHarness ops;
  KvLayout kv;
  size_t q, slots, out;

 private:
  uint16_t* slot(int64_t sequence, int64_t position) {
    const auto index =
        static_cast<size_t>(sequence * kSegments + position / kSegmentTokens);
    return reinterpret_cast<uint16_t*>(ops.bytes(slots + index));
  }
};

const std::vector<Shape> kShapes = {
    {9, 3, 64},          {4, 1, 256},     {8, 8, 80},     {16, 2, 128},
    {6, 2, 64, 100},     {4, 1, 256, 64}, {2, 2, 128, 1}, {4, 2, 64, 0, 5},
    {8, 2, 256, 70, 50}, {14, 2, 64},     {4, 2, 16},     {2, 1, 20, 65, 2},
    {3, 1, 512},         {70, 1, 32},
};

// Two sequences in one step: rows at positions that end in different segments.
StepRows ragged_step() {
  StepRows step = step_of(3, 61, 0);
  append(step, step_of(1, 290, 1));
  append(step, step_of(2, 64, 0));
  append(step, step_of(70, 100, 0));
  return step;
}

void fill_ragged(AttentionHarness& h) {
  h.fill_kv(0, 170);
  h.fill_kv(1, 291);
}

TEST(Attention, AgreesWithPlainDoublePrecisionOnEveryShape) {
  for (const Shape& s : kShapes) {
    const StepRows step = ragged_step();
    AttentionHarness h(s, step.rows());
    fill_ragged(h);
    IsaScope scalar(Isa::kScalar);
    h.ops.run(step);
    const int64_t n = s.heads * s.head_dim;
    for (int64_t row = 0; row < step.rows(); row += 3) {
      const auto r = static_cast<size_t>(row);
      const auto want = h.expected(row, step.sequences[r], step.positions[r]);
      for (int64_t i = 0; i < n; ++i) {
        ASSERT_NEAR(h.ops.f32(h.out)[row * n + i], want[i], 2e-6)
            << "heads " << s.heads << " dim " << s.head_dim << " row " << row << " el "
            << i;
      }
    }
  }
}

TEST(Attention, EveryInstructionSetAndThreadCountGivesTheBitsOfTheReference) {
  for (const Shape& s : kShapes) {
    const StepRows step = ragged_step();
    AttentionHarness h(s, step.rows());
    fill_ragged(h);
    std::string want;
    for (Isa isa : all_isas()) {
      IsaScope scope(isa);
      for (int threads : {1, 2, 3}) {
        h.ops.buffers[h.out].fill(0xFF);
        h.ops.run(step, threads);
        if (want.empty()) want = h.ops.bits(h.out);
        ASSERT_EQ(h.ops.bits(h.out), want)
            << name_of(isa) << " threads " << threads << " dim " << s.head_dim;
      }
    }
  }
}

TEST(Attention, ARowAloneEqualsTheRowInAChunk) {
  for (const Shape& s : kShapes) {
    const StepRows step = ragged_step();
    AttentionHarness h(s, step.rows());
    fill_ragged(h);
    for (Isa isa : all_isas()) {
      IsaScope scope(isa);
      h.ops.run(step);
      AttentionHarness alone(s, 1);
      fill_ragged(alone);
      const auto q = h.ops.floats(h.q, step.rows(), s.heads * s.head_dim);
      for (size_t row :
           {size_t{0}, size_t{3}, size_t{5}, size_t{6}, size_t{40}, size_t{75}}) {
        alone.copy_q(static_cast<int64_t>(row), 0, q);
        alone.ops.run(step_of(1, step.positions[row], step.sequences[row]), 2);
        ASSERT_EQ(alone.row_bits(0), h.row_bits(static_cast<int64_t>(row)))
            << name_of(isa) << " row " << row << " dim " << s.head_dim;
      }
    }
  }
}

TEST(Attention, ASlidingWindowThatStartsMidTileSeesNothingBeforeItEvenNaN) {
  const Shape s{6, 2, 64, 100};
  for (Isa isa : all_isas()) {
    IsaScope scope(isa);
    AttentionHarness h(s, 8);
    h.fill_kv(0, 300);
    h.ops.run(step_of(8, 290));
    const std::string want = h.ops.bits(h.out);
    for (int64_t p = 0; p < 191; ++p) {  // 290 - 100 + 1 is the first that any row sees
      for (int64_t g = 0; g < s.kv_heads; ++g) {
        std::memset(h.k_at(0, p, g), 0xFF, 128);
        std::memset(h.v_at(0, p, g), 0xFF, 128);
      }
    }
    h.ops.run(step_of(8, 290));
    EXPECT_EQ(h.ops.bits(h.out), want) << name_of(isa);
  }
}

TEST(Attention, WhatLiesInUnwrittenKvOrInWorkspaceNeverMatters) {
  for (const Shape& s : kShapes) {
    for (Isa isa : all_isas()) {
      IsaScope scope(isa);
      std::string want;
      for (int garbage : {0x00, 0xFF, 0x7C}) {
        const StepRows step = ragged_step();
        AttentionHarness h(s, step.rows());
        for (size_t i = h.slots; i < h.slots + kSequences * kSegments; ++i) {
          h.ops.buffers[i].fill(garbage);
        }
        fill_ragged(h);
        ThreadPool pool(1, false);
        Buffer workspace(workspace_bytes(h.ops.graph, h.ops.op, 1));
        workspace.fill(garbage);
        h.ops.run(step, pool, workspace);
        if (want.empty()) want = h.ops.bits(h.out);
        ASSERT_EQ(h.ops.bits(h.out), want) << name_of(isa) << " dim " << s.head_dim;
      }
    }
  }
}

TEST(Attention, TheSegmentSizeDoesNotMatter) {
  const Shape s{4, 2, 64};
  AttentionHarness h(s, 1);
  h.fill_kv(0, 300);
  h.ops.run(step_of(1, 299));
  // The same positions in segments of 64.
  OpHarness small(OpKind::kAttention, 1);
  const KvLayout kv{2, 64, 64};
  const size_t q = small.input(DType::kF32, 1, 256);
  const size_t slots = small.kv_slots(kv, 1, 5, false);
  const size_t out = small.output(DType::kF32, 1, 256);
  small.op.attrs = h.ops.op.attrs;
  small.op.attrs[Attr::kSegments] = 5;
  small.op.attrs[Attr::kSegmentTokens] = 64;
  std::memcpy(small.f32(q), h.ops.f32(h.q), 256 * 4);
  for (int64_t p = 0; p < 300; ++p) {
    for (int64_t g = 0; g < 2; ++g) {
      auto* slot =
          reinterpret_cast<uint16_t*>(small.bytes(slots + static_cast<size_t>(p / 64)));
      std::memcpy(slot + kv.k_offset(g, p % 64), h.k_at(0, p, g), 128);
      std::memcpy(slot + kv.v_offset(g, p % 64), h.v_at(0, p, g), 128);
    }
  }
  small.run(step_of(1, 299));
  EXPECT_EQ(small.bits(out), h.ops.bits(h.out));
}

TEST(Attention, AnActQ8OutputIsTheF32OutputQuantised) {
  const Shape s{9, 3, 64};
  StepRows step = ragged_step();
  append(step, step_of(200, 0, 1));  // more rows than are held as f32 at a time
  for (Isa isa : all_isas()) {
    IsaScope scope(isa);
    AttentionHarness plain(s, step.rows()), fused(s, step.rows(), DType::kActQ8);
    fill_ragged(plain);
    fill_ragged(fused);
    plain.ops.run(step);
    fused.ops.run(step, 2);
    const int64_t n = s.heads * s.head_dim;
    for (int64_t row = 0; row < step.rows(); ++row) {
      Buffer want(row_bytes(DType::kActQ8, n));
      quantize_row(plain.ops.f32(plain.out) + row * n, n, want.data());
      ASSERT_EQ(fused.row_bits(row), std::string(reinterpret_cast<char*>(want.data()),
                                                 static_cast<size_t>(want.bytes())));
    }
  }
}

TEST(Attention, ScoresOfHundredsDoNotOverflow) {
  const Shape s{2, 1, 64};
  for (Isa isa : all_isas()) {
    IsaScope scope(isa);
    AttentionHarness h(s, 1);
    h.fill_kv(0, 200);
    for (int64_t i = 0; i < 128; ++i) h.ops.f32(h.q)[i] *= 1000;
    h.ops.run(step_of(1, 199));
    for (int64_t i = 0; i < 128; ++i) {
      EXPECT_TRUE(std::isfinite(h.ops.f32(h.out)[i]));
    }
  }
}

}  // namespace
}  // namespace headrace::test
