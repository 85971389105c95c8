// kRopeKv: normalises and rotates q and k, and writes k and v of each row into its KV
// slot.
#include <cstring>

#include "headrace/kernel/kv_layout.h"
#include "headrace/kernel/op_rows.h"
#include "headrace/kernel/ops_cpu.h"
#include "headrace/kernel/rms_norm.h"

namespace headrace {
namespace {

// What is the same for all rows of a step.
struct RopeKv {
  explicit RopeKv(const OpContext& context);

  // The q heads of one row, then its k and v heads.
  void row(int64_t row) const;

  const OpContext& ctx;
  const RowOps& ops = row_ops();
  int64_t heads, rope_dims, segments;
  KvLayout kv;
  double eps;
  bool half_split;
  bool norm_q = false, norm_k = false;
  alignas(64) float q_norm[kMaxHeadDim], k_norm[kMaxHeadDim];

 private:
  void expand_table(int64_t row, float* cosines, float* sines) const;
  void head(const float* x, const float* norm, const float* cosines, const float* sines,
            float* out) const;
};

RopeKv::RopeKv(const OpContext& context)
    : ctx(context),
      heads(ctx.op.iattr(Attr::kHeads)),
      rope_dims(input_tensor(ctx, 1).cols),
      segments(ctx.op.iattr(Attr::kSegments, 1)),
      kv{ctx.op.iattr(Attr::kKvHeads), ctx.op.iattr(Attr::kHeadDim),
         ctx.op.iattr(Attr::kSegmentTokens)},
      eps(ctx.op.attr(Attr::kEps)),
      half_split(ctx.op.attr(Attr::kRopeHalfSplit) != 0) {
  HR_CHECK(kv.head_dim <= kMaxHeadDim, "a head fits the kernel's stack");
  HR_CHECK(rope_dims <= kv.head_dim && rope_dims % 2 == 0,
           "rotated pairs lie in the head");
  HR_CHECK(kv.segment_tokens % kKvTile == 0, "a segment is whole tiles");
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

void RopeKv::row(int64_t row) const {
  alignas(64) float cosines[kMaxHeadDim], sines[kMaxHeadDim], rotated[kMaxHeadDim];
  expand_table(row, cosines, sines);
  const int64_t d = kv.head_dim, padding = padded_head_dim(d) - d;
  const float* q = f32_row(ctx.inputs[0], row, (heads + 2 * kv.kv_heads) * d);
  float* q_out = f32_row(ctx.outputs[0], row, heads * d);
  for (int64_t h = 0; h < heads; ++h) {
    head(q + h * d, norm_q ? q_norm : nullptr, cosines, sines, q_out + h * d);
  }
  const float* k = q + heads * d;
  const float* v = k + kv.kv_heads * d;
  const int64_t position = ctx.rows.positions[static_cast<size_t>(row)];
  const int64_t sequence = ctx.rows.sequences[static_cast<size_t>(row)];
  const auto slot =
      static_cast<size_t>(sequence * segments + position / kv.segment_tokens);
  HR_CHECK(position / kv.segment_tokens < segments && slot < ctx.updates.size(),
           "a position lies in a segment of its sequence");
  auto* half = reinterpret_cast<uint16_t*>(ctx.updates[slot]);
  for (int64_t g = 0; g < kv.kv_heads; ++g) {
    uint16_t* k_out = half + kv.k_offset(g, position % kv.segment_tokens);
    uint16_t* v_out = half + kv.v_offset(g, position % kv.segment_tokens);
    head(k + g * d, norm_k ? k_norm : nullptr, cosines, sines, rotated);
    ops.to_half(rotated, k_out, d);
    ops.to_half(v + g * d, v_out, d);
    for (int64_t i = 0; i < padding; ++i) k_out[d + i] = v_out[d + i] = 0;
  }
}

}  // namespace

void rope_kv_cpu(const OpContext& ctx) {
  const RopeKv op(ctx);
  const int64_t cols = input_tensor(ctx, 0).cols;
  ctx.pool.for_range(ctx.rows.rows(), row_grain(cols),
                     [&](int64_t begin, int64_t end, int) {
                       for (int64_t row = begin; row < end; ++row) op.row(row);
                     });
}

}  // namespace headrace
