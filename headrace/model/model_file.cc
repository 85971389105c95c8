#include "headrace/model/model_file.h"

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "headrace/model/file_reader.h"
#include "headrace/model/gguf.h"
#include "headrace/model/hf_folder.h"

namespace headrace {

size_t MetaValue::size() const {
  return std::visit(
      [](const auto& held) -> size_t {
        using T = std::decay_t<decltype(held)>;
        if constexpr (std::is_arithmetic_v<T> || std::is_same_v<T, std::string> ||
                      std::is_same_v<T, std::monostate>) {
          return 1;
        } else {
          return held.size();
        }
      },
      value);
}

const char* MetaValue::type_name() const {
  static constexpr const char* kNames[] = {"an integer",
                                           "a number",
                                           "a bool",
                                           "a string",
                                           "an array of strings",
                                           "an array of bools",
                                           "an array of int8",
                                           "an array of uint8",
                                           "an array of int32",
                                           "an array of int64",
                                           "an array of float32",
                                           "an array of float64",
                                           "null"};
  static_assert(std::size(kNames) == std::variant_size_v<decltype(value)>);
  return kNames[value.index()];
}

const MetaValue* ModelFile::find(std::string_view key) const {
  const auto it = metadata.find(key);
  if (it == metadata.end() || it->second.as<std::monostate>() != nullptr) return nullptr;
  return &it->second;
}

bool ModelFile::is_null(std::string_view key) const {
  const auto it = metadata.find(key);
  return it != metadata.end() && it->second.as<std::monostate>() != nullptr;
}

const WeightInfo* ModelFile::weight(std::string_view name) const {
  const auto it = std::lower_bound(
      weights.begin(), weights.end(), name,
      [](const WeightInfo& a, std::string_view b) { return a.name < b; });
  return it == weights.end() || it->name != name ? nullptr : &*it;
}

Status ModelFile::missing(std::string_view key) const {
  const bool gguf = format == ModelFormat::kGguf && !paths.empty();
  const std::string file = gguf ? paths[0] : folder + "/config.json";
  return error(Code::kBadFile, "%s: key '%s' is missing", file.c_str(),
               printable(key).c_str());
}

Status ModelFile::wrong_type(std::string_view key, const MetaValue& value,
                             const char* wanted) {
  return error(Code::kBadFile, "key '%s' is %s, not %s", printable(key).c_str(),
               value.type_name(), wanted);
}

Result<int64_t> ModelFile::need_int(std::string_view key, int64_t min,
                                    int64_t max) const {
  const MetaValue* value = find(key);
  if (value == nullptr) return missing(key);
  const int64_t* held = value->as<int64_t>();
  if (held == nullptr) return wrong_type(key, *value, "an integer");
  if (*held < min || *held > max) {
    return error(Code::kBadFile, "key '%s' is %lld, not within %lld to %lld",
                 printable(key).c_str(), static_cast<long long>(*held),
                 static_cast<long long>(min), static_cast<long long>(max));
  }
  return *held;
}

Result<double> ModelFile::need_number(std::string_view key) const {
  const MetaValue* value = find(key);
  if (value == nullptr) return missing(key);
  if (const int64_t* integer = value->as<int64_t>()) return static_cast<double>(*integer);
  const double* held = value->as<double>();
  if (held == nullptr) return wrong_type(key, *value, "a number");
  if (!std::isfinite(*held)) {
    return error(Code::kBadFile, "key '%s' is %g, not a finite number",
                 printable(key).c_str(), *held);
  }
  return *held;
}

Result<bool> ModelFile::need_bool(std::string_view key) const {
  const MetaValue* value = find(key);
  if (value == nullptr) return missing(key);
  const bool* held = value->as<bool>();
  if (held == nullptr) return wrong_type(key, *value, "a bool");
  return *held;
}

Result<std::string> ModelFile::need_string(std::string_view key) const {
  const MetaValue* value = find(key);
  if (value == nullptr) return missing(key);
  const std::string* held = value->as<std::string>();
  if (held == nullptr) return wrong_type(key, *value, "a string");
  return *held;
}

Result<int64_t> ModelFile::int_or(std::string_view key, int64_t min, int64_t max,
                                  int64_t otherwise) const {
  if (find(key) == nullptr) return otherwise;
  return need_int(key, min, max);
}

Result<double> ModelFile::number_or(std::string_view key, double otherwise) const {
  if (find(key) == nullptr) return otherwise;
  return need_number(key);
}

Result<bool> ModelFile::bool_or(std::string_view key, bool otherwise) const {
  if (find(key) == nullptr) return otherwise;
  return need_bool(key);
}

Result<std::string> ModelFile::string_or(std::string_view key,
                                         std::string otherwise) const {
  if (find(key) == nullptr) return otherwise;
  return need_string(key);
}

Bytes weight_bytes(const ModelFile& model) {
  Bytes sum = 0;
  for (const WeightInfo& weight : model.weights) sum += weight.source.bytes;
  return sum;
}

namespace {

// The one GGUF model of a folder: its only .gguf file, or the first part of a split one.
Result<std::string> gguf_of_folder(const std::string& folder) {
  std::vector<std::string> found;
  std::error_code ec;
  for (const auto& entry : std::filesystem::directory_iterator(folder, ec)) {
    const std::string name = entry.path().filename().string();
    if (!name.ends_with(".gguf")) continue;
    const size_t of = name.rfind("-of-");
    const bool part = of != std::string::npos && of >= 6 && name.size() == of + 14;
    if (part && name.compare(of - 6, 6, "-00001") != 0) continue;
    found.push_back(entry.path().string());
  }
  if (ec) {
    return error(Code::kIo, "%s: cannot list: %s", folder.c_str(), ec.message().c_str());
  }
  if (found.size() != 1) {
    return error(
        Code::kBadFile,
        "%s: a model folder holds config.json, or exactly one .gguf model; this one "
        "has no config.json and %zu .gguf models",
        folder.c_str(), found.size());
  }
  return found[0];
}

}  // namespace

Result<ModelFile> open_model(const std::string& path) {
  std::error_code ec;
  if (!std::filesystem::is_directory(path, ec)) return open_gguf(path);
  if (std::filesystem::exists(path + "/config.json", ec)) return open_hf_folder(path);
  HR_ASSIGN(const std::string file, gguf_of_folder(path));
  return open_gguf(file);
}

}  // namespace headrace
