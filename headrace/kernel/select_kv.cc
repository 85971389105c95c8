// kSelectKv: the segments whose keys may matter most to one row.
#include "headrace/kernel/select_kv.h"

#include <algorithm>

#include "headrace/kernel/float_math.h"
#include "headrace/kernel/kv_codec.h"
#include "headrace/kernel/op_rows.h"
#include "headrace/kernel/op_workspace.h"
#include "headrace/kernel/ops_cpu.h"

namespace headrace {

void add_key_bounds(KvFormat format, const std::byte* k_part, int64_t head_dim, bool first,
                    float* bounds, float* scratch) {
  const int64_t d = padded_head_dim(head_dim);
  kv_decode_rows(format, k_part, head_dim, 0, kKvTile, scratch);
  for (int64_t j = 0; kv_rotates(format) && j < kKvTile; ++j) {
    hadamard_rotate(scratch + j * d, head_dim, d);
  }
  float* const least = bounds;
  float* const most = bounds + d;
  if (first) {
    std::copy_n(scratch, d, least);
    std::copy_n(scratch, d, most);
  }
  for (int64_t j = first ? 1 : 0; j < kKvTile; ++j) {
    const float* k = scratch + j * d;
    for (int64_t i = 0; i < d; ++i) {
      least[i] = k[i] < least[i] ? k[i] : least[i];
      most[i] = most[i] < k[i] ? k[i] : most[i];
    }
  }
}

float most_score(const float* q, const float* bounds, int64_t padded) {
  float lane[16] = {};
  const float* const most = bounds + padded;
  for (int64_t i = 0; i < padded; i += 16) {
    for (int64_t l = 0; l < 16; ++l) {
      const float low = q[i + l] * bounds[i + l], high = q[i + l] * most[i + l];
      lane[l] += low < high ? high : low;
    }
  }
  for (int width = 8; width > 0; width /= 2) {
    for (int l = 0; l < width; ++l) lane[l] += lane[l + width];
  }
  return lane[0];
}

namespace {

struct SelectKv {
  explicit SelectKv(const OpContext& context)
      : ctx(context),
        heads(ctx.op.iattr(Attr::kHeads)),
        kv_heads(ctx.op.iattr(Attr::kKvHeads)),
        head_dim(ctx.op.iattr(Attr::kHeadDim)),
        d(padded_head_dim(head_dim)),
        segments(ctx.op.iattr(Attr::kSegments)),
        tile(ctx.rows.positions[0] / kKvTile),
        tiles(ctx.op.iattr(Attr::kSegmentTokens) / kKvTile),
        mask(reinterpret_cast<float*>(ctx.outputs[0])),
        scores(reinterpret_cast<float*>(ctx.workspace.data())),
        total(scores + kv_heads * segments) {
    HR_CHECK(ctx.rows.rows() == 1, "segments are selected for one row");
    HR_CHECK(head_dim <= kMaxHeadDim, "a head fits the kernel's stack");
  }

  // The row's own segment.
  int64_t own() const { return tile / tiles; }
  // Of one that has sealed tiles: the highest that a query of the kv head's group may reach.
  float score(int64_t segment, int64_t kv_head) const;
  void add_shares() const;
  void choose(int64_t most) const;

  const OpContext& ctx;
  int64_t heads, kv_heads, head_dim, d, segments;
  int64_t tile, tiles;
  float* mask;
  float* scores;  // [kv_heads][segments]
  float* total;   // [segments]
};

float SelectKv::score(int64_t segment, int64_t kv_head) const {
  const int64_t group = heads / kv_heads;
  const auto scale = static_cast<float>(ctx.op.attr(Attr::kScale, 1));
  const auto softcap = static_cast<float>(ctx.op.attr(Attr::kSoftcap));
  const float* bounds = f32_row(ctx.inputs[1], segment, key_bounds_cols(kv_heads, head_dim)) +
                        2 * kv_head * d;
  float best = 0;
  for (int64_t h = kv_head * group; h < (kv_head + 1) * group; ++h) {
    alignas(64) float q[kMaxHeadDim];
    std::copy_n(f32_row(ctx.inputs[0], 0, heads * head_dim) + h * head_dim, head_dim, q);
    std::fill(q + head_dim, q + d, 0.0f);
    float s = most_score(q, bounds, d) * scale;
    if (softcap > 0) s = softcap_f32(s, softcap);
    if (h == kv_head * group || best < s) best = s;
  }
  return best;
}

// Scores of a head become shares of one, which are added up over heads.
void SelectKv::add_shares() const {
  const int64_t n = own();
  std::fill(total, total + n, 0.0f);
  for (int64_t g = 0; g < kv_heads; ++g) {
    float* s = scores + g * segments;
    const float most = *std::max_element(s, s + n);
    float sum = 0;
    for (int64_t i = 0; i < n; ++i) sum += s[i] = exp_f32(s[i] - most);
    for (int64_t i = 0; i < n; ++i) total[i] += s[i] / sum;
  }
}

// The best `most` of those that are not attended yet; the lower index where two are alike.
void SelectKv::choose(int64_t most) const {
  for (; most > 0; --most) {
    int64_t best = -1;
    for (int64_t i = 0; i < own(); ++i) {
      if (mask[i] == 0 && (best < 0 || total[best] < total[i])) best = i;
    }
    if (best < 0) return;
    mask[best] = 1;
  }
}

}  // namespace

void select_kv_cpu(const OpContext& ctx) {
  const SelectKv op(ctx);
  const int64_t own = op.own();
  HR_CHECK(own < op.segments, "a position lies in a segment");
  const int64_t most = std::max(
      kLeastSegments, ctx.op.iattr(Attr::kSparseTokens) / ctx.op.iattr(Attr::kSegmentTokens));
  std::fill(op.mask, op.mask + op.segments, 0.0f);
  if (own < most) {
    std::fill(op.mask, op.mask + own + 1, 1.0f);
    return;
  }
  for (const int64_t i : {int64_t{0}, own - 1, own}) op.mask[i] = 1;
  ctx.pool.for_range(own, 4, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) {
      for (int64_t g = 0; g < op.kv_heads; ++g) op.scores[g * op.segments + i] = op.score(i, g);
    }
  });
  op.add_shares();
  op.choose(most - kLeastSegments);
}

Bytes select_kv_workspace(const Op& op) {
  return round_up((op.iattr(Attr::kKvHeads) + 1) * op.iattr(Attr::kSegments) * 4, kLine);
}

}  // namespace headrace
