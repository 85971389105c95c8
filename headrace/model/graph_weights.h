// GraphWeights: hands out the weights of a model as tensors of a Graph, each once, and
// knows which were never asked for. Used by build_graph only.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "headrace/ir/graph.h"
#include "headrace/model/model_file.h"

namespace headrace {

// Rows of each tile of a matrix: multiples of 16 but for the last, differing by at most
// 16, as many tiles as make them at most about `tile_bytes` (and at least one).
std::vector<int64_t> tile_rows(int64_t rows, Bytes bytes_per_row, Bytes tile_bytes);

class GraphWeights {
 public:
  // Both must outlive this object.
  GraphWeights(const ModelFile& model, Graph* graph, Bytes tile_bytes)
      : model_(model), graph_(*graph), tile_bytes_(tile_bytes) {}

  // The weight of that name and shape, marked as used. kBadFile: missing, or of another
  // shape.
  Result<const WeightInfo*> need(const std::string& name, int64_t rows, int64_t cols);
  // The same, but null when there is none.
  Result<const WeightInfo*> find(const std::string& name, int64_t rows, int64_t cols);

  // The tiles of a matrix in row order; made on the first call. kUnsupported for a type
  // that no matmul takes.
  Result<std::vector<TensorId>> tiles(const WeightInfo& weight);
  // A norm's weight [1, cols], whole. kUnsupported unless f32, f16 or bf16.
  Result<TensorId> vector(const std::string& name, int64_t cols);

  // kUnsupported naming the first weight that nobody asked for.
  Status all_used() const;
  // Says that the weight is used in some other way, or need not be.
  void mark(const std::string& name) { used_.insert(name); }

 private:
  const ModelFile& model_;
  Graph& graph_;
  Bytes tile_bytes_;
  std::set<std::string> used_;
  std::map<std::string, std::vector<TensorId>> tiles_;
};

}  // namespace headrace
