#include "headrace/model/graph_weights.h"

#include <algorithm>

#include "headrace/model/file_reader.h"

namespace headrace {
namespace {

// Kernels work on groups of 16 rows; a tile that starts at one never splits a group.
constexpr int64_t kRowUnit = 16;

bool is_float(DType type) {
  return type == DType::kF32 || type == DType::kF16 || type == DType::kBF16;
}

}  // namespace

std::vector<int64_t> tile_rows(int64_t rows, Bytes bytes_per_row, Bytes tile_bytes) {
  const int64_t units = (rows + kRowUnit - 1) / kRowUnit;
  const int64_t wanted = (rows * bytes_per_row + tile_bytes - 1) / tile_bytes;
  const int64_t tiles = std::clamp<int64_t>(wanted, 1, units);
  std::vector<int64_t> out;
  int64_t begin = 0;
  for (int64_t i = 1; i <= tiles; ++i) {
    const int64_t end = std::min(units * i / tiles * kRowUnit, rows);
    out.push_back(end - begin);
    begin = end;
  }
  return out;
}

Result<const WeightInfo*> GraphWeights::find(const std::string& name, int64_t rows,
                                             int64_t cols) {
  const WeightInfo* weight = model_.weight(name);
  if (weight == nullptr) return weight;
  if (weight->rows != rows || weight->cols != cols) {
    return error(Code::kBadFile, "tensor '%s' is %lld x %lld, not %lld x %lld",
                 name.c_str(), static_cast<long long>(weight->rows),
                 static_cast<long long>(weight->cols), static_cast<long long>(rows),
                 static_cast<long long>(cols));
  }
  used_.insert(name);
  return weight;
}

Result<const WeightInfo*> GraphWeights::need(const std::string& name, int64_t rows,
                                             int64_t cols) {
  HR_ASSIGN(const WeightInfo* weight, find(name, rows, cols));
  if (weight == nullptr)
    return error(Code::kBadFile, "tensor '%s' is missing", name.c_str());
  return weight;
}

Result<std::vector<TensorId>> GraphWeights::tiles(const WeightInfo& weight) {
  const auto known = tiles_.find(weight.name);
  if (known != tiles_.end()) return known->second;
  if (!is_float(weight.dtype) && !info(weight.dtype).quantised) {
    return error(Code::kUnsupported, "tensor '%s' has type %s, which no matmul takes",
                 weight.name.c_str(), name_of(weight.dtype));
  }
  const Bytes row = row_bytes(weight.dtype, weight.cols);
  std::vector<TensorId> out;
  int64_t begin = 0;
  for (const int64_t rows : tile_rows(weight.rows, row, tile_bytes_)) {
    Tensor tile;
    tile.name = text_of("%s:%zu", weight.name.c_str(), out.size());
    tile.dtype = weight.dtype;
    tile.role = Role::kWeight;
    tile.rows = rows;
    tile.cols = weight.cols;
    tile.bytes = rows * row;
    tile.source = {weight.source.file, weight.source.offset + begin * row, rows * row};
    out.push_back(graph_.add(std::move(tile)));
    begin += rows;
  }
  tiles_[weight.name] = out;
  return out;
}

Result<TensorId> GraphWeights::vector(const std::string& name, int64_t cols) {
  HR_ASSIGN(const WeightInfo* weight, need(name, 1, cols));
  if (!is_float(weight->dtype)) {
    return error(Code::kUnsupported, "tensor '%s' has type %s, not f32, f16 or bf16",
                 name.c_str(), name_of(weight->dtype));
  }
  Tensor tensor;
  tensor.name = name;
  tensor.dtype = weight->dtype;
  tensor.role = Role::kWeight;
  tensor.cols = cols;
  tensor.bytes = weight->source.bytes;
  tensor.source = weight->source;
  return graph_.add(std::move(tensor));
}

Status GraphWeights::all_used() const {
  for (const WeightInfo& weight : model_.weights) {
    if (used_.count(weight.name) != 0) continue;
    return error(
        Code::kUnsupported,
        "tensor '%s' is in the file, but this architecture is not known to use it",
        printable(weight.name).c_str());
  }
  return {};
}

}  // namespace headrace
