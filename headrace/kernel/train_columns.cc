// hr.columns and hr.scale with their gradients: what some models have between products.
#include <algorithm>
#include <cstring>

#include "headrace/kernel/train.h"
#include "headrace/kernel/train_operands.h"
#include "headrace/kernel/train_rows.h"

namespace headrace {
namespace {

// Rows that a worker copies a run of before it looks for the next run.
constexpr int64_t kRowBlock = 16;
// hr.scale_dw: rows that are summed from 0, columns of a worker at a time.
constexpr int64_t kChunkRows = 64;
constexpr int64_t kColumns = 256;

// Calls fn(source column, column, length) for each run of consecutive sources.
template <typename F>
void each_run(const float* index, int64_t n, F&& fn) {
  for (int64_t at = 0; at < n;) {
    int64_t end = at + 1;
    while (end < n && index[end] == index[end - 1] + 1) ++end;
    fn(static_cast<int64_t>(index[at]), at, end - at);
    at = end;
  }
}

}  // namespace

void train_columns(const OpContext& ctx) {
  const Tensor& out = output_tensor(ctx);
  const float* index = f32_row(ctx.inputs[1], 0, out.cols);
  ctx.pool.for_range(out.rows, row_grain(out.cols), [&](int64_t begin, int64_t end, int) {
    for (int64_t first = begin; first < end; first += kRowBlock) {
      const int64_t last = std::min(end, first + kRowBlock);
      each_run(index, out.cols, [&](int64_t source, int64_t column, int64_t n) {
        const Bytes from = row_bytes(out.dtype, source), to = row_bytes(out.dtype, column);
        for (int64_t row = first; row < last; ++row) {
          std::memcpy(output_row(ctx, 0, row) + to, input_row(ctx, 0, row) + from,
                      static_cast<size_t>(row_bytes(out.dtype, n)));
        }
      });
    }
  });
}

void train_columns_grad(const OpContext& ctx) {
  const Tensor &out = output_tensor(ctx), &dy = input_tensor(ctx, 0);
  const float* index = f32_row(ctx.inputs[1], 0, dy.cols);
  const Bytes row_size = row_bytes(out.dtype, out.cols);
  ctx.pool.for_range(out.rows, row_grain(out.cols), [&](int64_t begin, int64_t end, int) {
    for (int64_t first = begin; first < end; first += kRowBlock) {
      const int64_t last = std::min(end, first + kRowBlock);
      if (dy.cols < out.cols) {
        std::memset(output_row(ctx, 0, first), 0, static_cast<size_t>((last - first) * row_size));
      }
      each_run(index, dy.cols, [&](int64_t source, int64_t column, int64_t n) {
        const Bytes to = row_bytes(out.dtype, source), from = row_bytes(out.dtype, column);
        for (int64_t row = first; row < last; ++row) {
          std::memcpy(output_row(ctx, 0, row) + to, input_row(ctx, 0, row) + from,
                      static_cast<size_t>(row_bytes(out.dtype, n)));
        }
      });
    }
  });
}

void train_scale(const OpContext& ctx) {
  const int64_t n = output_tensor(ctx).cols;
  const TypedTrainRows& rows = train_rows().of(output_tensor(ctx).dtype);
  const auto scale = static_cast<float>(ctx.op.attr(Attr::kScale));
  const std::byte* weight = last_input(ctx, 1);
  each_output_row(ctx, 2 * n, [&](int64_t row) {
    rows.scale(input_row(ctx, 0, row), weight, output_row(ctx, 0, row), n, scale);
  });
}

// Sums of 64 rows of dy x, each from 0, added in ascending order; then times scale.
void train_scale_dw(const OpContext& ctx) {
  const Tensor& dy = input_tensor(ctx, 0);
  const TypedTrainRows& rows = train_rows().of(dy.dtype);
  const Targets targets(ctx);
  const auto scale = static_cast<float>(ctx.op.attr(Attr::kScale));
  const float one = 1;  // the statistic with which a norm's x is x itself
  ctx.pool.for_range(dy.cols, 64, [&](int64_t begin, int64_t end, int) {
    for (int64_t at = begin; at < end; at += kColumns) {
      const int64_t n = std::min(kColumns, end - at);
      const Bytes skip = row_bytes(dy.dtype, at);
      float total[kColumns] = {};
      for (int64_t first = 0; first < dy.rows; first += kChunkRows) {
        float chunk[kColumns] = {};
        for (int64_t t = first; t < std::min(first + kChunkRows, dy.rows); ++t) {
          rows.norm_dw({n, false, 0}, input_row(ctx, 0, t) + skip, input_row(ctx, 1, t) + skip,
                       &one, chunk, nullptr);
        }
        for (int64_t j = 0; j < n; ++j) total[j] += chunk[j];
      }
      float* to = targets.data(0) + at;
      for (int64_t j = 0; j < n; ++j) {
        to[j] = targets.add ? to[j] + scale * total[j] : scale * total[j];
      }
    }
  });
}

}  // namespace headrace
