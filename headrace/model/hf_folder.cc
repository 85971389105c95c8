#include "headrace/model/hf_folder.h"

#include <algorithm>
#include <filesystem>

#include "headrace/model/config_json.h"
#include "headrace/model/extents.h"
#include "headrace/model/json_stream.h"
#include "headrace/model/safetensors.h"

namespace headrace {
namespace {

constexpr Bytes kMaxIndexBytes = 256 * kMiB;
constexpr const char* kIndexName = "model.safetensors.index.json";
constexpr std::string_view kSuffix = ".safetensors";

using WeightMap = std::map<std::string, std::string>;  // tensor -> file name

// {"metadata": anything, "weight_map": {tensor: file}}
class Index : public JsonHandler {
 public:
  WeightMap weight_map;

  bool start_object(size_t) override { return open(); }
  bool end_object() override { return close(); }
  bool start_array(size_t) override {
    return depth_ > 0 ? open() : unexpected("an array");
  }
  bool end_array() override { return close(); }
  bool key(string_t& text) override {
    if (depth_ == 1) in_map_ = text == "weight_map";
    if (depth_ == 2 && in_map_) tensor_ = text;
    return true;
  }
  bool string(string_t& text) override {
    if (!in_map_) return true;
    if (depth_ != 2) return unexpected("a string");
    if (!text.ends_with(kSuffix) ||
        text.find_first_of(std::string_view("/\0", 2)) != std::string::npos) {
      return stop(error(Code::kBadFile,
                        "tensor '%s' is said to be in '%s', not a .safetensors file",
                        printable(tensor_).c_str(), printable(text).c_str()));
    }
    if (!weight_map.emplace(tensor_, text).second) {
      return stop(error(Code::kBadFile, "tensor '%s' is there twice",
                        printable(tensor_).c_str()));
    }
    return true;
  }
  bool null() override { return other("null"); }
  bool boolean(bool) override { return other("a bool"); }
  bool number_integer(number_integer_t) override { return other("an integer"); }
  bool number_unsigned(number_unsigned_t) override { return other("an integer"); }
  bool number_float(number_float_t, const string_t&) override {
    return other("a number");
  }

 private:
  bool other(const char* what) {
    return in_map_ || depth_ == 0 ? unexpected(what) : true;
  }
  bool open() {
    if (in_map_ && depth_ >= 2) return unexpected("a nested value");
    ++depth_;
    return true;
  }
  bool close() {
    --depth_;
    if (depth_ == 1) in_map_ = false;
    return true;
  }
  int64_t depth_ = 0;
  bool in_map_ = false;
  std::string tensor_;
};

Result<WeightMap> read_index(const std::string& path) {
  HR_ASSIGN(FileReader in, FileReader::open(path));
  if (in.size() > kMaxIndexBytes) {
    return error(Code::kBadFile, "%s: %lld bytes; at most %lld are accepted",
                 path.c_str(), static_cast<long long>(in.size()),
                 static_cast<long long>(kMaxIndexBytes));
  }
  Index index;
  HR_TRY(parse_json(&in, in.size(), &index));
  if (index.weight_map.empty()) {
    return error(Code::kBadFile, "%s: no 'weight_map'", path.c_str());
  }
  return std::move(index.weight_map);
}

// "NAME-00002-of-00005.safetensors": how many parts there are; 0 for any other name.
int64_t parts_of(const std::string& name) {
  const size_t tail = std::string_view("-00001-of-00001.safetensors").size();
  if (name.size() < tail) return 0;
  const std::string_view end = std::string_view(name).substr(name.size() - tail);
  if (end[0] != '-' || end.substr(6, 4) != "-of-") return 0;
  int64_t parts = 0;
  for (const size_t i : {1, 2, 3, 4, 5, 10, 11, 12, 13, 14}) {
    if (end[i] < '0' || end[i] > '9') return 0;
    if (i >= 10) parts = parts * 10 + (end[i] - '0');
  }
  return parts;
}

// Every part that a part's name says there is must be in the list (which is sorted).
Status check_parts(const std::string& folder, const std::vector<std::string>& names) {
  for (const std::string& name : names) {
    const int64_t parts = parts_of(name);
    for (int64_t part = 1; part <= parts; ++part) {
      const std::string stem = name.substr(0, name.size() - 27);
      const std::string wanted =
          text_of("%s-%05lld-of-%05lld.safetensors", stem.c_str(),
                  static_cast<long long>(part), static_cast<long long>(parts));
      if (std::binary_search(names.begin(), names.end(), wanted)) continue;
      return error(Code::kBadFile, "%s: part %lld of %lld is missing: %s", folder.c_str(),
                   static_cast<long long>(part), static_cast<long long>(parts),
                   wanted.c_str());
    }
  }
  return {};
}

// The weight files of a folder without an index: model.safetensors, or its parts, or
// whatever there is (other programs' copies of the same weights lie beside them in some
// folders).
Result<std::vector<std::string>> list_files(const std::string& folder) {
  std::vector<std::string> all, parts;
  std::error_code ec;
  for (const auto& entry : std::filesystem::directory_iterator(folder, ec)) {
    const std::string name = entry.path().filename().string();
    if (!name.ends_with(kSuffix)) continue;
    if (name == "model.safetensors") return std::vector<std::string>{name};
    all.push_back(name);
    if (name.starts_with("model-") && parts_of(name) > 0) parts.push_back(name);
  }
  if (ec)
    return error(Code::kIo, "%s: cannot list: %s", folder.c_str(), ec.message().c_str());
  if (all.empty()) {
    return error(Code::kBadFile, "%s: config.json, but no .safetensors file",
                 folder.c_str());
  }
  std::vector<std::string> out = parts.empty() ? all : parts;
  std::sort(out.begin(), out.end());
  HR_TRY(check_parts(folder, out));
  return out;
}

std::vector<std::string> files_of(const WeightMap& index) {
  std::vector<std::string> out;
  for (const auto& [tensor, file] : index) out.push_back(file);
  std::sort(out.begin(), out.end());
  out.erase(std::unique(out.begin(), out.end()), out.end());
  return out;
}

// Both must say the same of `file`.
Status check_index(const WeightMap& index, const std::string& file,
                   const std::vector<WeightInfo>& weights) {
  size_t wanted = 0;
  for (const auto& [tensor, where] : index) wanted += where == file ? 1 : 0;
  size_t found = 0;
  for (const WeightInfo& weight : weights) {
    const auto it = index.find(weight.name);
    if (it == index.end() || it->second != file) {
      return error(Code::kBadFile, "tensor '%s' is in %s, but %s does not say so",
                   printable(weight.name).c_str(), file.c_str(), kIndexName);
    }
    ++found;
  }
  if (found != wanted) {
    return error(Code::kBadFile, "%s has %zu tensors, but %s says %zu", file.c_str(),
                 found, kIndexName, wanted);
  }
  return {};
}

// Tensors that no text model needs: rotation frequencies, which older files keep although
// the config says them, and the eyes of multimodal models.
bool is_beside_the_text_model(std::string_view name) {
  return name.ends_with(".rotary_emb.inv_freq") || name.starts_with("vision_tower.") ||
         name.starts_with("model.vision_tower.") ||
         name.starts_with("multi_modal_projector.") ||
         name.starts_with("model.multi_modal_projector.");
}

}  // namespace

Result<ModelFile> open_hf_folder(const std::string& folder) {
  ModelFile model;
  model.format = ModelFormat::kHuggingFace;
  model.folder = folder;
  HR_ASSIGN(model.metadata, read_config_json(folder + "/config.json"));
  HR_ASSIGN(const std::string type, model.need_string("model_type"));
  WeightMap index;
  std::vector<std::string> names;
  const std::string index_path = folder + "/" + kIndexName;
  if (std::filesystem::exists(index_path)) {
    HR_ASSIGN(index, read_index(index_path));
    names = files_of(index);
  } else {
    HR_ASSIGN(names, list_files(folder));
  }
  for (const std::string& name : names) {
    const std::string path = folder + "/" + name;
    if (!std::filesystem::exists(path)) {
      return error(Code::kBadFile, "%s: %s names the file %s, which is missing",
                   folder.c_str(), kIndexName, printable(name).c_str());
    }
    const auto file = static_cast<int32_t>(model.paths.size());
    HR_ASSIGN(SafetensorsFile part, read_safetensors(path, file));
    if (!index.empty()) HR_TRY(check_index(index, name, part.weights).within(folder));
    for (WeightInfo& weight : part.weights) {
      if (is_beside_the_text_model(weight.name)) continue;
      weight.name = gguf_name(type, weight.name);
      model.weights.push_back(std::move(weight));
    }
    model.paths.push_back(path);
    model.file_bytes.push_back(part.file_bytes);
  }
  HR_TRY(sort_by_name(&model.weights).within(folder));
  return model;
}

}  // namespace headrace
