// hr.linear, hr.linear_dx and hr.linear_dw: gemm.h on their operands.
#include <algorithm>
#include <cstring>

#include "headrace/kernel/gemm.h"
#include "headrace/kernel/train_linear.h"
#include "headrace/kernel/train_operands.h"
#include "headrace/kernel/train_rows.h"

namespace headrace {
namespace {

constexpr size_t kMostWeights = 64;  // verify_train_op() allows no more

const Tensor& in(const Graph& graph, const Op& op, size_t i) { return graph.at(op.inputs[i]); }

// The product of an op; addresses are filled in where there is an OpContext. `rows` is room for
// the stored rows of B.
GemmArgs product_of(const Graph& graph, const Op& op, std::span<GemmRows> rows) {
  const Tensor& first = in(graph, op, 0);
  const auto weights = static_cast<size_t>(op.iattr(Attr::kWeights));
  GemmArgs g;
  g.type = g.out_type = first.dtype;
  g.a_stride = first.cols;
  g.scale = static_cast<float>(op.attr(Attr::kScale));
  int64_t n = 0;  // rows of all weights
  for (size_t i = 0; i < weights; ++i) {
    rows[i].rows = in(graph, op, 1 + i).rows;
    n += rows[i].rows;
  }
  if (op.kernel == "hr.linear") {
    g.layout = GemmLayout::kLinear;
    g.m = first.rows, g.n = n, g.k = first.cols;
    g.c_stride = graph.at(op.outputs[0]).cols;
  } else if (op.kernel == "hr.linear_dx") {
    g.layout = GemmLayout::kDx;
    g.c_stride = graph.at(op.outputs[0]).cols;
    g.m = first.rows, g.n = g.c_stride, g.k = n;
  } else {
    const Tensor& x = in(graph, op, 1);
    g.layout = GemmLayout::kDw;
    g.out_type = DType::kF32;
    g.add = !op.updates.empty();
    g.m = graph.at((g.add ? op.updates : op.outputs)[0]).rows;
    g.n = g.c_stride = x.cols;
    g.k = first.rows;
    rows[0].rows = x.rows;
    rows = rows.first(1);
  }
  g.b = rows.first(g.layout == GemmLayout::kDw ? 1 : weights);
  return g;
}

// Elements of type c at column col_begin.
const std::byte* from_column(const OpContext& ctx, const std::byte* base, DType type) {
  return base + row_bytes(type, ctx.op.iattr(Attr::kColBegin));
}

// Columns of y that are not of the product: those of the residual.
void copy_other_columns(const OpContext& ctx, const std::byte* residual, int64_t n) {
  const Tensor& y = output_tensor(ctx);
  const int64_t begin = ctx.op.iattr(Attr::kColBegin), end = begin + n;
  if (n == y.cols) return;
  const Bytes row = row_bytes(y.dtype, y.cols), left = row_bytes(y.dtype, begin);
  const Bytes right = row_bytes(y.dtype, end);
  each_output_row(ctx, y.cols, [&](int64_t r) {
    std::byte* to = ctx.outputs[0] + r * row;
    const std::byte* from = residual + r * row;
    std::memcpy(to, from, static_cast<size_t>(left));
    std::memcpy(to + right, from + right, static_cast<size_t>(row - right));
  });
}

}  // namespace

void column_sums(const ColumnSums& of, ThreadPool& pool) {
  constexpr int64_t kCols = 64;
  const TypedTrainRows& rows = train_rows().of(of.type);
  pool.for_range(of.cols, kCols, [&](int64_t begin, int64_t end, int) {
    for (int64_t j = begin; j < end; j += kCols) {
      const int64_t cols = std::min(kCols, end - j);
      float total[kCols] = {};
      for (int64_t t = 0; t < of.rows; t += kGemmBlock) {
        float block[kCols] = {};
        for (int64_t r = t; r < std::min(t + kGemmBlock, of.rows); ++r) {
          rows.add_to(of.base + r * of.stride + row_bytes(of.type, j), block, cols);
        }
        for (int64_t c = 0; c < cols; ++c) total[c] = t == 0 ? block[c] : total[c] + block[c];
      }
      for (int64_t c = 0; c < cols; ++c) {
        of.out[j + c] = of.add ? of.out[j + c] + total[c] : total[c];
      }
    }
  });
}

Bytes train_linear_workspace(const Graph& graph, const Op& op, int threads) {
  GemmRows rows[kMostWeights];
  return gemm_workspace(product_of(graph, op, rows), threads);
}

void train_linear(const OpContext& ctx) {
  GemmRows rows[kMostWeights];
  GemmArgs g = product_of(ctx.graph, ctx.op, rows);
  const size_t weights = g.b.size();
  const bool bias = ctx.op.iattr(Attr::kBias) > 0;
  for (size_t i = 0; i < weights; ++i) {
    rows[i].data = ctx.inputs[1 + i];
    if (bias) rows[i].bias = ctx.inputs[1 + weights + i];
  }
  g.a = ctx.inputs[0];
  g.c = ctx.outputs[0] + row_bytes(g.out_type, ctx.op.iattr(Attr::kColBegin));
  const std::byte* residual = last_input(ctx, 1 + weights * (bias ? 2 : 1));
  if (residual != nullptr) {
    copy_other_columns(ctx, residual, g.n);
    g.residual = from_column(ctx, residual, g.out_type);
  }
  gemm(g, ctx.workspace, ctx.pool);
}

void train_linear_dx(const OpContext& ctx) {
  GemmRows rows[kMostWeights];
  GemmArgs g = product_of(ctx.graph, ctx.op, rows);
  for (size_t i = 0; i < g.b.size(); ++i) rows[i].data = ctx.inputs[1 + i];
  g.a = from_column(ctx, ctx.inputs[0], g.type);
  g.c = ctx.outputs[0];
  g.residual = last_input(ctx, 1 + g.b.size());
  gemm(g, ctx.workspace, ctx.pool);
}

void train_linear_dw(const OpContext& ctx) {
  GemmRows rows[kMostWeights];
  GemmArgs g = product_of(ctx.graph, ctx.op, rows);
  const Targets targets(ctx);
  rows[0].data = ctx.inputs[1];
  g.a = from_column(ctx, ctx.inputs[0], g.type);
  g.c = reinterpret_cast<std::byte*>(targets.data(0));
  gemm(g, ctx.workspace, ctx.pool);
  if (targets.size() < 2) return;
  const Tensor& dy = input_tensor(ctx, 0);
  column_sums({g.a, row_bytes(g.type, dy.cols), g.type, dy.rows, g.m, g.add, targets.data(1)},
              ctx.pool);
}

}  // namespace headrace
