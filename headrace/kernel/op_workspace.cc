// Workspace of every op but matmul.
#include "headrace/kernel/op_workspace.h"

#include "headrace/kernel/fused_rows.h"
#include "headrace/kernel/ops_cpu.h"

namespace headrace {

Bytes other_op_workspace(const Graph& graph, const Op& op, int threads) {
  switch (op.kind) {
    case OpKind::kAttention:
      return attention_workspace(graph, op, threads);
    case OpKind::kSelectKv:
      return select_kv_workspace(op);
    case OpKind::kRmsNorm:
      return rms_norm_workspace(graph, op, threads);
    case OpKind::kGatedAct:
      return threads * FusedRows::scratch_bytes(graph.at(op.outputs[0]));
    default:
      return 0;
  }
}

}  // namespace headrace
