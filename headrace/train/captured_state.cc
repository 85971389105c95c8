#include "headrace/train/captured_state.h"

#include <algorithm>

#include "headrace/base/json_text.h"
#include "headrace/train/convert.h"

namespace headrace {
namespace {

constexpr int64_t kBlock = 1 << 20;  // elements: 4 MiB of f32

}  // namespace

const char* name_of(ParameterState state) {
  switch (state) {
    case ParameterState::kValue: return "value";
    case ParameterState::kFirst: return "first moment";
    case ParameterState::kSecond: return "second moment";
    case ParameterState::kMaster: break;
  }
  return "master";
}

struct CapturedState::Part {
  const Entry* entry;
  ParameterState state;
  DType dtype;  // of the caller's bytes
  int64_t begin, end;

  Bytes bytes_to(int64_t element) const { return (element - begin) * row_bytes(dtype, 1); }
};

CapturedState::CapturedState(const CapturedForward& forward, const TrainStep& step) : step_(step) {
  for (const CapturedParameter& p : forward.parameters) {
    Entry entry{&p, {}};
    for (const Parameter& tile : step.parameters) {
      if (tile.name == p.name) entry.tiles.push_back(&tile);
    }
    for (const std::string& alias : p.aliases) entries_[alias] = entry;
    entries_[p.name] = std::move(entry);
  }
}

const Tensor* CapturedState::tensor_of(const Parameter& tile, ParameterState state) const {
  TensorId id = tile.master;
  if (state == ParameterState::kFirst) id = tile.m;
  if (state == ParameterState::kSecond) id = tile.v;
  if (state == ParameterState::kValue && !id.valid()) id = tile.param;
  return id.valid() ? &step_.workload.graph.at(id) : nullptr;
}

Result<Bytes> CapturedState::bytes_of(std::string_view name, ParameterState state) const {
  const auto found = entries_.find(name);
  if (found == entries_.end()) {
    return error(Code::kUsage, "the step has no parameter '%s'",
                 printable(std::string(name)).c_str());
  }
  const Entry& entry = found->second;
  if (tensor_of(*entry.tiles[0], state) == nullptr) return Bytes{0};
  const DType dtype = state == ParameterState::kValue ? entry.parameter->dtype : DType::kF32;
  return entry.parameter->rows * row_bytes(dtype, entry.parameter->cols);
}

Result<CapturedState::Part> CapturedState::part_of(std::string_view name, ParameterState state,
                                                   Bytes begin, Bytes size) const {
  HR_ASSIGN(const Bytes all, bytes_of(name, state));
  const Entry& entry = entries_.find(name)->second;
  if (all == 0) {
    return error(Code::kUsage, "parameter '%s' has no %s", entry.parameter->name.c_str(),
                 name_of(state));
  }
  const DType dtype = state == ParameterState::kValue ? entry.parameter->dtype : DType::kF32;
  const Bytes element = row_bytes(dtype, 1);
  const bool whole = begin % element == 0 && size % element == 0;
  if (!whole || begin < 0 || size < 0 || begin > all || size > all - begin) {
    return error(Code::kUsage,
                 "%s of '%s': bytes %lld to %lld of %lld are not whole elements of it",
                 name_of(state), entry.parameter->name.c_str(), static_cast<long long>(begin),
                 static_cast<long long>(begin + size), static_cast<long long>(all));
  }
  return Part{&entry, state, dtype, begin / element, (begin + size) / element};
}

Status CapturedState::load(TrainEngine* engine, const Tensor& tensor, int64_t at,
                           std::span<float> values) {
  const Bytes element = row_bytes(tensor.dtype, 1);
  bytes_.resize(values.size() * static_cast<size_t>(element));
  HR_TRY(engine->read(tensor.name, at * element, bytes_));
  convert(tensor.dtype, bytes_.data(), values);
  return {};
}

// With a master, what products read is written as well.
Status CapturedState::store(TrainEngine* engine, const Parameter& tile, ParameterState state,
                            int64_t at, std::span<const float> values) {
  const auto put = [&](const Tensor& tensor) {
    const Bytes element = row_bytes(tensor.dtype, 1);
    bytes_.resize(values.size() * static_cast<size_t>(element));
    convert(values, tensor.dtype, bytes_.data());
    return engine->write(tensor.name, at * element, bytes_);
  };
  HR_TRY(put(*tensor_of(tile, state)));
  const bool value = state == ParameterState::kValue || state == ParameterState::kMaster;
  return value && tile.master.valid() ? put(step_.workload.graph.at(tile.param)) : Status();
}

Status CapturedState::write(TrainEngine* engine, std::string_view name, ParameterState state,
                            Bytes begin, std::span<const std::byte> bytes) {
  HR_ASSIGN(const Part part, part_of(name, state, begin, static_cast<Bytes>(bytes.size())));
  if (part.entry->parameter->transposed) return transposed(engine, part, bytes.data(), nullptr);
  for (const Parameter* tile : part.entry->tiles) {
    const int64_t first = tile->row_begin * tile->cols;
    const int64_t last = std::min(part.end, first + tile->row_count * tile->cols);
    for (int64_t at = std::max(part.begin, first); at < last; at += kBlock) {
      values_.resize(static_cast<size_t>(std::min(kBlock, last - at)));
      convert(part.dtype, bytes.data() + part.bytes_to(at), values_);
      HR_TRY(store(engine, *tile, state, at - first, values_));
    }
  }
  return {};
}

Status CapturedState::read(TrainEngine* engine, std::string_view name, ParameterState state,
                           Bytes begin, std::span<std::byte> out) {
  HR_ASSIGN(const Part part, part_of(name, state, begin, static_cast<Bytes>(out.size())));
  if (part.entry->parameter->transposed) return transposed(engine, part, nullptr, out.data());
  for (const Parameter* tile : part.entry->tiles) {
    const int64_t first = tile->row_begin * tile->cols;
    const int64_t last = std::min(part.end, first + tile->row_count * tile->cols);
    for (int64_t at = std::max(part.begin, first); at < last; at += kBlock) {
      values_.resize(static_cast<size_t>(std::min(kBlock, last - at)));
      HR_TRY(load(engine, *tensor_of(*tile, state), at - first, values_));
      convert(values_, part.dtype, out.data() + part.bytes_to(at));
    }
  }
  return {};
}

// Our [rows, cols] in blocks of rows; the caller's element (c, r) is number c * rows + r. With
// `from` they are written, keeping what is outside the part; else read to `to`.
Status CapturedState::transposed(TrainEngine* engine, const Part& part, const std::byte* from,
                                 std::byte* to) {
  const Parameter& tile = *part.entry->tiles[0];
  const int64_t rows = tile.rows, cols = tile.cols;
  const bool whole = part.begin == 0 && part.end == rows * cols;
  const int64_t step = std::max<int64_t>(1, kBlock / cols);
  for (int64_t r0 = 0; r0 < rows; r0 += step) {
    const int64_t r1 = std::min(rows, r0 + step);
    values_.resize(static_cast<size_t>((r1 - r0) * cols));
    if (to != nullptr || !whole) {
      HR_TRY(load(engine, *tensor_of(tile, part.state), r0 * cols, values_));
    }
    for (int64_t c = 0; c < cols; ++c) {
      const int64_t begin = std::max(part.begin, c * rows + r0);
      const int64_t end = std::min(part.end, c * rows + r1);
      for (int64_t at = begin; at < end; ++at) {
        float* value = &values_[static_cast<size_t>((at - c * rows - r0) * cols + c)];
        if (from != nullptr) convert(part.dtype, from + part.bytes_to(at), {value, 1});
        if (to == nullptr) continue;
        convert(std::span<const float>(value, 1), part.dtype, to + part.bytes_to(at));
      }
    }
    if (from != nullptr) HR_TRY(store(engine, tile, part.state, r0 * cols, values_));
  }
  return {};
}

}  // namespace headrace
