// kRopeKv: normalises and rotates q and k, and writes k and v of each row into the tail of its
// sequence or into an open tile.
#include <algorithm>

#include "headrace/kernel/half.h"
#include "headrace/kernel/kv_tiles.h"
#include "headrace/kernel/op_rows.h"
#include "headrace/kernel/ops_cpu.h"
#include "headrace/kernel/rms_norm.h"

namespace headrace {
namespace {

// What is the same for all rows of a step.
struct RopeKv {
  explicit RopeKv(const OpContext& context);

  // Rows [begin, end): of each the q heads, then its k and v heads.
  void rows(int64_t begin, int64_t end) const;

  const OpContext& ctx;
  const RowOps& ops = row_ops();
  int64_t heads, rope_dims;
  KvLayout kv;
  Tiles16 tiles;
  bool bf16;
  double eps;
  bool half_split;
  bool norm_q = false, norm_k = false;
  alignas(64) float q_norm[kMaxHeadDim], k_norm[kMaxHeadDim];

 private:
  void row(int64_t row, uint16_t* tile, int64_t position) const;
  void to_16_bits(const float* x, uint16_t* out) const;
  void expand_table(int64_t row, float* cosines, float* sines) const;
  void head(const float* x, const float* norm, const float* cosines, const float* sines,
            float* out) const;
};

RopeKv::RopeKv(const OpContext& context)
    : ctx(context),
      heads(ctx.op.iattr(Attr::kHeads)),
      rope_dims(input_tensor(ctx, 1).cols),
      kv{ctx.op.iattr(Attr::kKvHeads), ctx.op.iattr(Attr::kHeadDim)},
      tiles(tiles16_of(ctx, kv, ctx.outputs.size() > 1 ? ctx.outputs[1] : nullptr)),
      bf16(ctx.op.iattr(Attr::kKvFormat) == static_cast<int64_t>(KvFormat::kBF16)),
      eps(ctx.op.attr(Attr::kEps)),
      half_split(ctx.op.attr(Attr::kRopeHalfSplit) != 0) {
  HR_CHECK(kv.head_dim <= kMaxHeadDim, "a head fits the kernel's stack");
  HR_CHECK(rope_dims <= kv.head_dim && rope_dims % 2 == 0,
           "rotated pairs lie in the head");
  const bool add_one = ctx.op.attr(Attr::kAddOne) != 0;
  if (const std::byte* weight = optional_input(ctx, 2)) {
    norm_q = true;
    load_norm_weight(input_tensor(ctx, 2), weight, add_one, q_norm);
  }
  if (const std::byte* weight = optional_input(ctx, 3)) {
    norm_k = true;
    load_norm_weight(input_tensor(ctx, 3), weight, add_one, k_norm);
  }
}

// One cosine and one signed sine for each element, so that every head of the row is one
// pass.
void RopeKv::expand_table(int64_t row, float* cosines, float* sines) const {
  const int64_t half = rope_dims / 2;
  const float* table = f32_row(ctx.inputs[1], row, rope_dims);
  for (int64_t i = 0; i < half; ++i) {
    const int64_t first = half_split ? i : 2 * i;
    const int64_t second = half_split ? i + half : 2 * i + 1;
    cosines[first] = cosines[second] = table[i];
    sines[first] = -table[half + i];
    sines[second] = table[half + i];
  }
}

// out [head_dim] = rotate(norm(x)).
void RopeKv::head(const float* x, const float* norm, const float* cosines,
                  const float* sines, float* out) const {
  alignas(64) float normed[kMaxHeadDim];
  const int64_t d = kv.head_dim;
  if (norm != nullptr) {
    ops.scale_weight(x, rms_scale(ops, x, d, eps), norm, nullptr, normed, d);
    x = normed;
  }
  ops.rotate(x, cosines, sines, out, rope_dims, half_split);
  for (int64_t i = rope_dims; i < d; ++i) out[i] = x[i];
}

// A row of K or V, padding included.
void RopeKv::to_16_bits(const float* x, uint16_t* out) const {
  const int64_t d = kv.head_dim;
  if (bf16) {
    std::transform(x, x + d, out, f32_to_bf16);
  } else {
    ops.to_half(x, out, d);
  }
  std::fill(out + d, out + padded_head_dim(d), uint16_t{0});
}

void RopeKv::row(int64_t row, uint16_t* tile, int64_t position) const {
  alignas(64) float cosines[kMaxHeadDim], sines[kMaxHeadDim], rotated[kMaxHeadDim];
  expand_table(row, cosines, sines);
  const int64_t d = kv.head_dim;
  const float* q = f32_row(ctx.inputs[0], row, (heads + 2 * kv.kv_heads) * d);
  float* q_out = f32_row(ctx.outputs[0], row, heads * d);
  for (int64_t h = 0; h < heads; ++h) {
    head(q + h * d, norm_q ? q_norm : nullptr, cosines, sines, q_out + h * d);
  }
  const float* k = q + heads * d;
  const float* v = k + kv.kv_heads * d;
  for (int64_t g = 0; g < kv.kv_heads; ++g) {
    head(k + g * d, norm_k ? k_norm : nullptr, cosines, sines, rotated);
    to_16_bits(rotated, tile + kv.k_offset(g, position % kKvTile));
    to_16_bits(v + g * d, tile + kv.v_offset(g, position % kKvTile));
  }
}

void RopeKv::rows(int64_t begin, int64_t end) const {
  each_run(ctx.rows, [&](const KvRun& run) {
    for (int64_t r = std::max(begin, run.begin); r < std::min(end, run.end); ++r) {
      const int64_t position = run.first + r - run.begin;
      row(r, tiles.at(run, position / kKvTile), position);
    }
  });
}

}  // namespace

void rope_kv_cpu(const OpContext& ctx) {
  const RopeKv op(ctx);
  const int64_t cols = input_tensor(ctx, 0).cols;
  ctx.pool.for_range(ctx.rows.rows(), row_grain(cols),
                     [&](int64_t begin, int64_t end, int) { op.rows(begin, end); });
}

}  // namespace headrace
