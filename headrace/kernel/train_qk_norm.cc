// hr.qk_norm, hr.qk_norm_dx, hr.qk_norm_dw: norms of queries and keys, of each head (Henry et al.,
// arXiv 2010.04245; Qwen3) or of all heads of a row together (OLMo 2, arXiv 2501.00656). The rows
// of train_norm.cc, called for runs of the columns of qkv.
#include <algorithm>
#include <cstring>

#include "headrace/kernel/train.h"
#include "headrace/kernel/train_operands.h"
#include "headrace/kernel/train_rows.h"

namespace headrace {
namespace {

constexpr int64_t kChunkRows = 64;  // hr.qk_norm_dw: rows that are summed from 0
constexpr int64_t kColumns = 256;   // of a worker at a time

// What one weight normalises: `count` runs of n columns each, one after another.
struct Runs {
  int64_t column = 0, count = 0, n = 0;
  int64_t stat = 0;  // column of the first run's statistics
};

struct QkNorm {
  const OpContext& ctx;
  const int64_t stats;  // of a run
  const int64_t head_dim, heads, kv_heads;
  const Tensor& qkv;
  Runs q, k;
  const TypedTrainRows& rows;

  // The weights (or targets) of q and k.
  QkNorm(const OpContext& context, const Tensor& of_qkv, const Tensor& q_weight,
         const Tensor& k_weight)
      : ctx(context),
        stats(1 + ctx.op.iattr(Attr::kAct)),
        head_dim(ctx.op.iattr(Attr::kHeadDim)),
        heads(ctx.op.iattr(Attr::kHeads)),
        kv_heads(ctx.op.iattr(Attr::kKvHeads)),
        qkv(of_qkv),
        rows(train_rows().of(qkv.dtype)) {
    q = {0, heads * head_dim / q_weight.cols, q_weight.cols, 0};
    k = {heads * head_dim, kv_heads * head_dim / k_weight.cols, k_weight.cols, q.count * stats};
  }

  NormKind kind(int64_t n) const {
    return {n, stats == 2, ctx.op.attr(Attr::kEps), ctx.op.iattr(Attr::kAddOne) == 1};
  }
  int64_t stat_cols() const { return (q.count + k.count) * stats; }
  // Calls fn(byte offset in a row of qkv, number of its first statistic) for each run.
  template <typename F>
  void each(const Runs& runs, F&& fn) const {
    for (int64_t i = 0; i < runs.count; ++i) {
      fn(row_bytes(qkv.dtype, runs.column + i * runs.n), runs.stat + i * stats);
    }
  }
  void copy_v(const std::byte* from, std::byte* to) const {
    const Bytes at = row_bytes(qkv.dtype, (heads + kv_heads) * head_dim);
    std::memcpy(to + at, from + at, static_cast<size_t>(row_bytes(qkv.dtype, qkv.cols) - at));
  }

  // Columns [begin, begin + n) of a target, n <= kColumns.
  void sum_columns(const Runs& runs, int64_t begin, int64_t n, bool add, float* to) const {
    float total[kColumns] = {};
    const Bytes skip = row_bytes(qkv.dtype, begin);
    for (int64_t first = 0; first < qkv.rows; first += kChunkRows) {
      float chunk[kColumns] = {};
      for (int64_t t = first; t < std::min(first + kChunkRows, qkv.rows); ++t) {
        const float* stat = f32_row(ctx.inputs[2], t, stat_cols());
        each(runs, [&](Bytes at, int64_t s) {
          rows.norm_dw(kind(n), input_row(ctx, 0, t) + at + skip, input_row(ctx, 1, t) + at + skip,
                       stat + s, chunk, nullptr);
        });
      }
      for (int64_t j = 0; j < n; ++j) total[j] += chunk[j];
    }
    for (int64_t j = 0; j < n; ++j) to[begin + j] = add ? to[begin + j] + total[j] : total[j];
  }
};

}  // namespace

void train_qk_norm(const OpContext& ctx) {
  const QkNorm job(ctx, output_tensor(ctx), input_tensor(ctx, 1), input_tensor(ctx, 2));
  each_output_row(ctx, 4 * job.qkv.cols, [&](int64_t row) {
    const std::byte* x = input_row(ctx, 0, row);
    std::byte* y = output_row(ctx, 0, row);
    float* stat = f32_row(ctx.outputs[1], row, job.stat_cols());
    for (const auto& [runs, weight] : {std::pair(job.q, ctx.inputs[1]),
                                       std::pair(job.k, ctx.inputs[2])}) {
      job.each(runs, [&, w = weight, n = runs.n](Bytes at, int64_t s) {
        job.rows.norm(job.kind(n), x + at, w, nullptr, y + at, stat + s);
      });
    }
    job.copy_v(x, y);
  });
}

void train_qk_norm_dx(const OpContext& ctx) {
  const QkNorm job(ctx, output_tensor(ctx), input_tensor(ctx, 2), input_tensor(ctx, 3));
  each_output_row(ctx, 4 * job.qkv.cols, [&](int64_t row) {
    const std::byte *dy = input_row(ctx, 0, row), *x = input_row(ctx, 1, row);
    std::byte* dx = output_row(ctx, 0, row);
    const float* stat = f32_row(ctx.inputs[4], row, job.stat_cols());
    for (const auto& [runs, weight] : {std::pair(job.q, ctx.inputs[2]),
                                       std::pair(job.k, ctx.inputs[3])}) {
      job.each(runs, [&, w = weight, n = runs.n](Bytes at, int64_t s) {
        job.rows.norm_dx(job.kind(n), dy + at, x + at, w, stat + s, nullptr, dx + at);
      });
    }
    job.copy_v(dy, dx);
  });
}

void train_qk_norm_dw(const OpContext& ctx) {
  const Targets targets(ctx);
  const QkNorm job(ctx, input_tensor(ctx, 1), targets.tensor(0), targets.tensor(1));
  for (size_t i = 0; i < 2; ++i) {
    const Runs& runs = i == 0 ? job.q : job.k;
    ctx.pool.for_range(runs.n, 64, [&](int64_t begin, int64_t end, int) {
      for (int64_t at = begin; at < end; at += kColumns) {
        job.sum_columns(runs, at, std::min(kColumns, end - at), targets.add, targets.data(i));
      }
    });
  }
}

}  // namespace headrace
