#include "headrace/ir/train_ops.h"
#include "headrace/kernel/kernel.h"
#include "headrace/kernel/ops_cpu.h"
#include "headrace/kernel/synthetic.h"
#include "headrace/kernel/train.h"

namespace headrace {
namespace {

KernelFn find_named(const Op& op) {
  if (!is_train_op(op)) return synthetic_cpu;
  const TrainKernel* kernel = find_train_kernel(op.kernel);
  return kernel == nullptr ? nullptr : kernel->run;
}

}  // namespace

KernelFn find_kernel(const Op& op, DeviceKind device) {
  if (device != DeviceKind::kCpu) return nullptr;
  switch (op.kind) {
    case OpKind::kEmbed: return embed_cpu;
    case OpKind::kRopeTable: return rope_table_cpu;
    case OpKind::kRmsNorm: return rms_norm_cpu;
    case OpKind::kQuantize: return quantize_cpu;
    case OpKind::kMatMul: return matmul_cpu;
    case OpKind::kRopeKv: return rope_kv_cpu;
    case OpKind::kAttention: return attention_cpu;
    case OpKind::kGatedAct: return gated_act_cpu;
    case OpKind::kAdd: return add_cpu;
    case OpKind::kSelectRows: return select_rows_cpu;
    case OpKind::kSoftcap: return softcap_cpu;
    case OpKind::kSelectKv: return select_kv_cpu;
    case OpKind::kKernel: return find_named(op);
  }
  return nullptr;
}

Bytes workspace_bytes(const Graph& graph, const Op& op, int threads) {
  if (op.kind == OpKind::kMatMul) return matmul_workspace(graph, op, threads);
  if (op.kind == OpKind::kKernel) return op.workspace;  // known from outside
  return other_op_workspace(graph, op, threads);
}

}  // namespace headrace
