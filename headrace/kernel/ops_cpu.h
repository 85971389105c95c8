// The CPU kernels, one an OpKind; headrace/ir/graph.h says what each op computes, kernel.h what
// every kernel promises. Reached through find_kernel(); named here for tests and benchmarks.
//
// Common to all: operands are those of the OpContext, with the shapes the Graph gives and
// ctx.rows.rows() rows; nothing is allocated; the call returns when every worker is done; a
// broken precondition (a shape that verify() would refuse) aborts. One call at a time a pool.
#pragma once

#include "headrace/kernel/kernel.h"

namespace headrace {

void embed_cpu(const OpContext& ctx);
void rope_table_cpu(const OpContext& ctx);
void rms_norm_cpu(const OpContext& ctx);
void quantize_cpu(const OpContext& ctx);
void matmul_cpu(const OpContext& ctx);
void rope_kv_cpu(const OpContext& ctx);
void attention_cpu(const OpContext& ctx);
void gated_act_cpu(const OpContext& ctx);
void add_cpu(const OpContext& ctx);
void select_rows_cpu(const OpContext& ctx);
void softcap_cpu(const OpContext& ctx);
void select_kv_cpu(const OpContext& ctx);

// Bytes of workspace for `threads` workers: of a matmul, and of every other op.
Bytes matmul_workspace(const Graph& graph, const Op& op, int threads);
Bytes other_op_workspace(const Graph& graph, const Op& op, int threads);

}  // namespace headrace
