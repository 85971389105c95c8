// kEmbed: the table row of each token, dequantised and scaled.
#include "headrace/kernel/op_rows.h"
#include "headrace/kernel/ops_cpu.h"
#include "headrace/kernel/quant.h"
#include "headrace/kernel/row_ops.h"

namespace headrace {
namespace {

// The table row of the token of row `row`.
const std::byte* table_row(const OpContext& ctx, int64_t row) {
  const int32_t token = ctx.rows.tokens[static_cast<size_t>(row)];
  const Tensor& first = input_tensor(ctx, 0);
  if (first.role == Role::kGathered) {
    return ctx.inputs[0] + row * gathered_row_stride(first) + gathered_skew(first, token);
  }
  int64_t in_tile = token;
  for (size_t i = 0; i < ctx.inputs.size(); ++i) {
    const Tensor& tile = input_tensor(ctx, i);
    if (in_tile < tile.rows)
      return ctx.inputs[i] + in_tile * row_bytes(tile.dtype, tile.cols);
    in_tile -= tile.rows;
  }
  HR_CHECK(false, "a token is a row of the embedding table");
  return nullptr;
}

}  // namespace

void embed_cpu(const OpContext& ctx) {
  const Tensor& table = input_tensor(ctx, 0);
  const RowOps& ops = row_ops();
  const auto scale = static_cast<float>(ctx.op.attr(Attr::kScale, 1));
  ctx.pool.for_range(
      ctx.rows.rows(), row_grain(table.cols), [&](int64_t begin, int64_t end, int) {
        for (int64_t row = begin; row < end; ++row) {
          float* out = f32_row(ctx.outputs[0], row, table.cols);
          dequantize_row(table.dtype, table_row(ctx, row), table.cols, out);
          if (scale != 1.0f) ops.scale(out, scale, out, table.cols);
        }
      });
}

}  // namespace headrace
