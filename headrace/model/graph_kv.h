// GraphKv: the KV tensors of a model's layers, and how many bytes they are (ir/kv.h says what slots,
// tails and open tiles are).
#pragma once

#include <vector>

#include "headrace/ir/graph.h"
#include "headrace/model/build_graph.h"

namespace headrace {

// Slots of one sequence in a layer: those of its context, or, in a layer with a window, as many as
// GraphOptions::window_positions fill when those are fewer.
int64_t kv_segments(const ModelConfig& config, const GraphOptions& options, int64_t layer);

// Makes them; used by build_graph only.
class GraphKv {
 public:
  struct Layer {
    int64_t segments = 0;          // a sequence
    std::vector<TensorId> tails;   // [sequences], or one of all of them, of pools
    std::vector<TensorId> slots;   // [sequences][segments], or the pool alone
    TensorId open;                 // invalid: a step's rows fill no tile but their first
    TensorId keys;                 // bounds of each segment's; invalid: none are ever selected
  };

  // All must outlive this object.
  GraphKv(const ModelConfig& config, const GraphOptions& options, Graph* graph)
      : c_(config), o_(options), graph_(*graph) {}

  // The tensors of the next layer; each layer is asked for once.
  Layer layer(int64_t layer);
  // What an attention op hands on to the next: f32 [max_rows, heads (padded d + 2)], of one that
  // selects a float more a head.
  TensorId softmax_state(int64_t layer);

 private:
  TensorId tail(const std::string& name, int64_t sequences);
  TensorId slot(const std::string& name, int64_t tiles, KvSlot at);

  const ModelConfig& c_;
  const GraphOptions& o_;
  Graph& graph_;
};

}  // namespace headrace
