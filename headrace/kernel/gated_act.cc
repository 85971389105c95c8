// kGatedAct: act(gate) * up, where a row is gate and up side by side.
#include "headrace/kernel/fused_rows.h"
#include "headrace/kernel/ops_cpu.h"
#include "headrace/kernel/row_ops.h"

namespace headrace {

void gated_act_cpu(const OpContext& ctx) {
  const int64_t n = output_tensor(ctx).cols;
  const RowOps& ops = row_ops();
  const auto act = static_cast<Act>(ctx.op.iattr(Attr::kAct));
  HR_CHECK(act == Act::kSilu || act == Act::kGeluTanh,
           "act is 0 (silu) or 1 (gelu_tanh)");
  const Bytes scratch_bytes = FusedRows::scratch_bytes(output_tensor(ctx));
  ctx.pool.for_range(active_rows(ctx, ctx.op.outputs[0]), row_grain(4 * n),
                     [&](int64_t begin, int64_t end, int worker) {
                       const FusedRows out(ctx,
                                           ctx.workspace.data() + worker * scratch_bytes);
                       for (int64_t row = begin; row < end; ++row) {
                         const float* gate_up = f32_row(ctx.inputs[0], row, 2 * n);
                         ops.gated(gate_up, gate_up + n, out.begin(row), n, act);
                         out.done(row);
                       }
                     });
}

}  // namespace headrace
