// kAdd: a + b.
#include "headrace/kernel/op_rows.h"
#include "headrace/kernel/ops_cpu.h"
#include "headrace/kernel/row_ops.h"

namespace headrace {

void add_cpu(const OpContext& ctx) {
  const int64_t n = output_tensor(ctx).cols;
  const RowOps& ops = row_ops();
  ctx.pool.for_range(active_rows(ctx, ctx.op.outputs[0]), row_grain(n),
                     [&](int64_t begin, int64_t end, int) {
                       ops.add(f32_row(ctx.inputs[0], begin, n),
                               f32_row(ctx.inputs[1], begin, n),
                               f32_row(ctx.outputs[0], begin, n), (end - begin) * n);
                     });
}

}  // namespace headrace
