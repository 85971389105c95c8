// Workspace bytes of single ops, for `threads` workers; ops not named here need none.
#pragma once

#include "headrace/ir/graph.h"

namespace headrace {

// A block's scratch for each worker; for an act_q8 output also all rows as f32.
Bytes attention_workspace(const Graph& graph, const Op& op, int threads);
// A score for each kv head and segment, and one for each segment.
Bytes select_kv_workspace(const Op& op);
// The weight as f32; for an act_q8 output also one row for each worker.
Bytes rms_norm_workspace(const Graph& graph, const Op& op, int threads);

}  // namespace headrace
