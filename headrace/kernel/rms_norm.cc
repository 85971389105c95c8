// kRmsNorm: residual + x / sqrt(mean(x^2) + eps) * (weight + add_one), row by row.
#include "headrace/kernel/rms_norm.h"

#include <cmath>

#include "headrace/kernel/fused_rows.h"
#include "headrace/kernel/op_workspace.h"
#include "headrace/kernel/ops_cpu.h"
#include "headrace/kernel/quant.h"

namespace headrace {

float rms_scale(const RowOps& ops, const float* x, int64_t n, double eps) {
  const double mean = ops.sum_squares(x, n) / static_cast<double>(n);
  return static_cast<float>(1.0 / std::sqrt(mean + eps));
}

void load_norm_weight(const Tensor& weight, const std::byte* bytes, bool add_one,
                      float* out) {
  dequantize_row(weight.dtype, bytes, weight.cols, out);
  if (!add_one) return;
  for (int64_t i = 0; i < weight.cols; ++i) out[i] += 1.0f;
}

Bytes rms_norm_workspace(const Graph& graph, const Op& op, int threads) {
  const Tensor& out = graph.at(op.outputs[0]);
  return round_up(out.cols * 4, kLine) + threads * FusedRows::scratch_bytes(out);
}

void rms_norm_cpu(const OpContext& ctx) {
  const int64_t n = input_tensor(ctx, 0).cols;
  const RowOps& ops = row_ops();
  const double eps = ctx.op.attr(Attr::kEps);
  const std::byte* residual = optional_input(ctx, 2);
  float* weight = reinterpret_cast<float*>(ctx.workspace.data());
  load_norm_weight(input_tensor(ctx, 1), ctx.inputs[1], ctx.op.attr(Attr::kAddOne) != 0,
                   weight);
  std::byte* scratch = ctx.workspace.data() + round_up(n * 4, kLine);
  const Bytes scratch_bytes = FusedRows::scratch_bytes(output_tensor(ctx));
  ctx.pool.for_range(active_rows(ctx, ctx.op.outputs[0]), row_grain(n),
                     [&](int64_t begin, int64_t end, int worker) {
                       const FusedRows out(ctx, scratch + worker * scratch_bytes);
                       for (int64_t row = begin; row < end; ++row) {
                         const float* x = f32_row(ctx.inputs[0], row, n);
                         const float* added =
                             residual != nullptr ? f32_row(residual, row, n) : nullptr;
                         ops.scale_weight(x, rms_scale(ops, x, n, eps), weight, added,
                                          out.begin(row), n);
                         out.done(row);
                       }
                     });
}

}  // namespace headrace
