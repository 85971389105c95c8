// kSoftcap: cap * tanh(x / cap).
#include "headrace/kernel/op_rows.h"
#include "headrace/kernel/ops_cpu.h"
#include "headrace/kernel/row_ops.h"

namespace headrace {

// Logits are few rows of very many columns, so the elements are split and not the rows.
void softcap_cpu(const OpContext& ctx) {
  const int64_t n = output_tensor(ctx).cols;
  const RowOps& ops = row_ops();
  const auto cap = static_cast<float>(ctx.op.attr(Attr::kSoftcap));
  constexpr int64_t kGrain = 4096;  // elements, about 2 us
  ctx.pool.for_range(active_rows(ctx, ctx.op.outputs[0]) * n, kGrain,
                     [&](int64_t begin, int64_t end, int) {
                       ops.softcap(f32_row(ctx.inputs[0], 0, n) + begin, cap,
                                   f32_row(ctx.outputs[0], 0, n) + begin, end - begin);
                     });
}

}  // namespace headrace
