// ModelFile: what a model's files say, before anybody asks what the model is. One view of
// a GGUF file (split ones too) and of a Hugging Face folder.
//
// Vocabulary
//   metadata  the key/value pairs of a GGUF header, or the members of config.json,
//   flattened:
//             {"rope_scaling": {"factor": 8}} is the key "rope_scaling.factor".
//   weight    a named matrix [rows, cols] that is one extent of one file. Its bytes are
//   not
//             read here. Names are GGUF's ("blk.3.ffn_up.weight") in either format.
//   big array an array of metadata with one entry a token (texts, merges, scores, kinds):
//   up
//             to 262k entries, so it is held packed and can be moved out with take().
//
// Promises
//   1. Every count, length, offset, dimension and type of a file is checked before it is
//   used:
//      extents lie inside their file, do not overlap, and have the bytes their shape
//      needs.
//   2. Opening reads headers only, through one small buffer, and never maps a file. The
//   peak
//      memory of opening stays near what the returned ModelFile holds.
//   3. A ModelFile is a plain value: no descriptor stays open; copies are independent.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "headrace/base/status.h"
#include "headrace/base/types.h"
#include "headrace/ir/dtype.h"
#include "headrace/ir/graph.h"

namespace headrace {

// Many strings in one pool of characters: 4 bytes an entry beyond the text itself.
struct StringList {
  std::string pool;
  std::vector<uint32_t> ends;  // entry i is pool[ends[i - 1], ends[i]), the first from 0

  size_t size() const { return ends.size(); }
  // Valid while the list lives unchanged. Precondition: i < size().
  std::string_view operator[](size_t i) const {
    const uint32_t begin = i == 0 ? 0 : ends[i - 1];
    return std::string_view(pool).substr(begin, ends[i] - begin);
  }
  void push_back(std::string_view text) {
    pool.append(text);
    ends.push_back(static_cast<uint32_t>(pool.size()));
  }
};

// One value of the metadata. Integers of every width are int64_t, floats of both widths
// double. Arrays are packed: int8 and uint8 as bytes, int16, uint16 and int32 as int32_t,
// uint32 and wider as int64_t, float32 as float, float64 as double, strings as a
// StringList. monostate is JSON's null.
struct MetaValue {
  using Bools = std::vector<bool>;
  std::variant<int64_t, double, bool, std::string, StringList, Bools, std::vector<int8_t>,
               std::vector<uint8_t>, std::vector<int32_t>, std::vector<int64_t>,
               std::vector<float>, std::vector<double>, std::monostate>
      value;

  // The value when it has exactly this type, else null.
  template <typename T>
  const T* as() const {
    return std::get_if<T>(&value);
  }
  template <typename T>
  T* as() {
    return std::get_if<T>(&value);
  }
  bool is_array() const { return value.index() >= 4 && value.index() < 12; }
  // Entries of an array; 1 for anything else.
  size_t size() const;
  // "integer", "array of strings", ...: for messages.
  const char* type_name() const;
};

struct WeightInfo {
  std::string name;  // "blk.3.ffn_up.weight"
  DType dtype = DType::kF32;
  // [rows, cols], cols contiguous; vectors are [1, cols]; a third dimension counts as
  // rows.
  int64_t rows = 1;
  int64_t cols = 0;
  FileExtent source;
};

enum class ModelFormat : uint8_t { kGguf, kHuggingFace };

struct ModelFile {
  ModelFormat format = ModelFormat::kGguf;
  std::string folder;               // a Hugging Face model's folder; empty for GGUF
  std::vector<std::string> paths;   // FileExtent::file is an index of it
  std::vector<Bytes> file_bytes;    // sizes of the files, in the order of `paths`
  std::vector<WeightInfo> weights;  // ordered by name
  std::map<std::string, MetaValue, std::less<>> metadata;

  // The value of the key; null when there is none or it is JSON's null. Valid while the
  // ModelFile lives unchanged.
  const MetaValue* find(std::string_view key) const;
  // The key is there and its value is JSON's null.
  bool is_null(std::string_view key) const;
  // The weight of that name, or null.
  const WeightInfo* weight(std::string_view name) const;
  // Moves the value of `key` out of the metadata, so that a big array is not held twice;
  // kBadFile when there is none or when it is not exactly a T.
  template <typename T>
  Result<T> take(std::string_view key);

  // Typed reading. An absent key, another type or an integer outside [min, max] is
  // kBadFile naming the key; integers are accepted where a number is asked for.
  Result<int64_t> need_int(std::string_view key, int64_t min, int64_t max) const;
  Result<double> need_number(std::string_view key) const;
  Result<bool> need_bool(std::string_view key) const;
  Result<std::string> need_string(std::string_view key) const;
  // The same, but an absent key (or JSON's null) gives `otherwise`.
  Result<int64_t> int_or(std::string_view key, int64_t min, int64_t max,
                         int64_t otherwise) const;
  Result<double> number_or(std::string_view key, double otherwise) const;
  Result<bool> bool_or(std::string_view key, bool otherwise) const;
  Result<std::string> string_or(std::string_view key, std::string otherwise) const;

  // What a value that is missing or of the wrong type is reported as.
  Status missing(std::string_view key) const;
  static Status wrong_type(std::string_view key, const MetaValue& value,
                           const char* wanted);
};

// Opens a .gguf file (any part of a split one opens all parts), a folder with config.json
// and
// *.safetensors (with or without an index), or a folder that holds exactly one GGUF
// model. kIo: a file cannot be opened or read; kBadFile: it breaks its format, and key or
// tensor are named; kUnsupported: it is valid but uses something we do not read, named.
Result<ModelFile> open_model(const std::string& path);

// Sum of the bytes of all weights.
Bytes weight_bytes(const ModelFile& model);

template <typename T>
Result<T> ModelFile::take(std::string_view key) {
  const auto it = metadata.find(key);
  if (it == metadata.end()) return missing(key);
  T* held = it->second.as<T>();
  if (held == nullptr) return wrong_type(key, it->second, MetaValue{T{}}.type_name());
  T out = std::move(*held);
  metadata.erase(it);
  return out;
}

}  // namespace headrace
