#include "headrace/train/export.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "headrace/kernel/half.h"
#include "headrace/kernel/quant.h"
#include "headrace/train/export_parts.h"
#include "headrace/train/model_source.h"

namespace headrace {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kBuffer = kMiB;
constexpr Bytes kWindow = 16 * kMiB;  // of a weight that is turned

void convert(std::span<const float> from, DType dtype, std::vector<std::byte>* to) {
  const size_t element = static_cast<size_t>(row_bytes(dtype, 1));
  const size_t at = to->size();
  to->resize(at + from.size() * element);
  if (dtype == DType::kF32) {
    std::memcpy(to->data() + at, from.data(), from.size_bytes());
    return;
  }
  for (size_t i = 0; i < from.size(); ++i) {
    const uint16_t half = dtype == DType::kF16 ? f32_to_f16(from[i]) : f32_to_bf16(from[i]);
    std::memcpy(to->data() + at + 2 * i, &half, 2);
  }
}

// Our row that lies in row `row` of a file with paired rows: the other way of paired_row().
int64_t unpaired_row(int64_t row, int64_t head_dim) {
  const int64_t head = row / head_dim, within = row % head_dim;
  return head * head_dim + within % 2 * (head_dim / 2) + within / 2;
}

class TensorWriter {
 public:
  TensorWriter(TrainedWeights& weights, const ExportTensor& tensor, Bytes* done, Bytes total,
               const ExportOptions& options, OutFile* out)
      : w_(weights), t_(tensor), done_(done), total_(total), options_(options), out_(out) {}

  Status run() {
    if (!t_.values.empty()) {
      HR_TRY(add(t_.values));
    } else if (t_.turned) {
      HR_TRY(turned());
    } else {
      std::vector<float> row(static_cast<size_t>(t_.cols));
      for (int64_t r = 0; r < t_.rows; ++r) {
        const int64_t ours = t_.paired ? unpaired_row(r, w_.model().head_dim) : r;
        HR_TRY(w_.row(t_.parameter, ours, row));
        HR_TRY(add(row));
      }
    }
    return flush();
  }

 private:
  // The file's rows are our columns: as many at a time as the window holds.
  Status turned() {
    const int64_t most =
        std::max<int64_t>(1, kWindow / (t_.cols * static_cast<Bytes>(sizeof(float))));
    std::vector<float> window, row(static_cast<size_t>(t_.rows));
    for (int64_t begin = 0; begin < t_.rows; begin += most) {
      const int64_t n = std::min(most, t_.rows - begin);
      window.resize(static_cast<size_t>(n * t_.cols));
      for (int64_t c = 0; c < t_.cols; ++c) {
        HR_TRY(w_.row(t_.parameter, c, row));
        for (int64_t i = 0; i < n; ++i) {
          window[static_cast<size_t>(i * t_.cols + c)] = row[static_cast<size_t>(begin + i)];
        }
      }
      HR_TRY(add(window));
    }
    return {};
  }
  Status add(std::span<const float> values) {
    convert(values, t_.dtype, &buffer_);
    return buffer_.size() >= kBuffer ? flush() : Status();
  }
  Status flush() {
    HR_TRY(out_->append(buffer_));
    *done_ += static_cast<Bytes>(buffer_.size());
    buffer_.clear();
    if (options_.progress && !options_.progress(*done_, total_)) {
      return error(Code::kCancelled, "stopped on request");
    }
    return {};
  }

  TrainedWeights& w_;
  const ExportTensor& t_;
  Bytes* done_;
  Bytes total_;
  const ExportOptions& options_;
  OutFile* out_;
  std::vector<std::byte> buffer_;
};

const char* safetensors_name(DType dtype) {
  return dtype == DType::kF32 ? "F32" : dtype == DType::kF16 ? "F16" : "BF16";
}

// Whether another program's parts would be read in place of ours, or beside it.
Status check_folder(const std::string& folder) {
  std::error_code ec;
  if (!std::filesystem::exists(folder, ec)) return make_folders(folder);
  if (!std::filesystem::is_directory(folder, ec)) {
    return error(Code::kUsage,
                 "%s is a file: name one that ends in .safetensors or .gguf, or a folder",
                 folder.c_str());
  }
  for (auto it = std::filesystem::directory_iterator(folder, ec);
       !ec && it != std::filesystem::directory_iterator(); it.increment(ec)) {
    const std::string name = it->path().filename().string();
    if (name == "model.safetensors.index.json" ||
        (name.ends_with(".safetensors") && name != "model.safetensors" &&
         name != "adapter_model.safetensors") ||
        name.ends_with(".gguf")) {
      return error(Code::kUsage, "%s holds another model (%s)", folder.c_str(), name.c_str());
    }
  }
  return ec ? error(Code::kIo, "%s: list: %s", folder.c_str(), ec.message().c_str()) : Status();
}

std::vector<ExportTensor> hf_tensors(const TrainedWeights& weights, const ExportOptions& options) {
  std::vector<ExportTensor> out;
  for (const Parameter& p : weights.parameters(options.adapter)) {
    ExportTensor t;
    t.name = options.adapter ? "base_model.model." + p.name : p.name;
    t.parameter = p.name;
    t.turned = p.transposed;
    t.rows = p.transposed ? p.cols : p.rows;
    t.cols = p.transposed ? p.rows : p.cols;
    t.vector = p.kind == ParameterKind::kVector;
    t.dtype = options.dtype;
    out.push_back(std::move(t));
  }
  return out;
}

}  // namespace

Status write_tensor(TrainedWeights& weights, const ExportTensor& tensor, Bytes* done, Bytes total,
                    const ExportOptions& options, OutFile* out) {
  return TensorWriter(weights, tensor, done, total, options, out).run().within(tensor.name);
}

Status write_safetensors(TrainedWeights& weights, const std::vector<ExportTensor>& tensors,
                         const std::string& path, const ExportOptions& options) {
  Json header = {{"__metadata__", {{"format", "pt"}}}};
  Bytes total = 0, done = 0;
  for (const ExportTensor& t : tensors) {
    Json shape = t.vector ? Json::array({t.cols}) : Json::array({t.rows, t.cols});
    header[t.name] = {{"dtype", safetensors_name(t.dtype)},
                      {"shape", std::move(shape)},
                      {"data_offsets", {total, total + t.bytes()}}};
    total += t.bytes();
  }
  std::string text = header.dump();
  text.resize(static_cast<size_t>(round_up(static_cast<Bytes>(text.size()), 8)), ' ');
  HR_ASSIGN(AtomicFile file, AtomicFile::create(path));
  const auto length = static_cast<uint64_t>(text.size());
  HR_TRY(file.file().append(std::as_bytes(std::span(&length, 1))));
  HR_TRY(file.file().append(text));
  for (const ExportTensor& t : tensors) {
    HR_TRY(write_tensor(weights, t, &done, total, options, &file.file()));
  }
  return file.commit();
}

// ---- the parameters as they are now -----------------------------------------------------------

Result<std::unique_ptr<TrainedWeights>> TrainedWeights::open(const std::string& run) {
  HR_ASSIGN(const std::vector<std::string> all, list_checkpoints(run));
  if (all.empty()) {
    return error(Code::kUsage, "%s: no checkpoint that could be exported", run.c_str());
  }
  std::unique_ptr<TrainedWeights> out(new TrainedWeights);
  out->folder_ = all.front();
  HR_ASSIGN(out->reader_, CheckpointReader::open(out->folder_));
  auto config = parse_train_config(out->reader_->info().config, "");
  if (!config.ok()) return config.status().within(out->folder_);
  out->config_ = std::move(config).value();
  HR_ASSIGN(out->initial_, InitialWeights::open(out->config_));
  out->initial_->drop_tokenizer();
  for (const Parameter& p : parameters_of(out->model())) out->tiles_[p.name].push_back(p);
  return out;
}

std::vector<Parameter> TrainedWeights::parameters(bool lora) const {
  std::vector<Parameter> out;
  for (const Parameter& p : parameters_of(model())) {
    const bool is_lora = p.kind == ParameterKind::kLoraA || p.kind == ParameterKind::kLoraB;
    if (p.row_begin == 0 && is_lora == lora) out.push_back(p);
  }
  return out;
}

Status TrainedWeights::plain_row(const std::string& name, int64_t row, std::span<float> out) {
  const auto found = tiles_.find(name);
  HR_CHECK(found != tiles_.end(), "a parameter of the model");
  const Parameter* tile = &found->second.front();
  for (const Parameter& p : found->second) {
    if (row >= p.row_begin) tile = &p;
  }
  const int64_t within = row - tile->row_begin;
  if (!tile->trainable) return initial_->read(*tile, within * tile->cols, out);
  int64_t index = reader_->find(tile->tensor + ".master");
  if (index < 0) index = reader_->find(tile->tensor);
  if (index < 0) {
    return error(Code::kBadFile, "%s: tensor '%s' is missing", folder_.c_str(),
                 tile->tensor.c_str());
  }
  const CheckpointTensor& t = reader_->info().tensors[static_cast<size_t>(index)];
  const bool f32 = t.dtype == name_of(DType::kF32);
  const DType dtype = f32 ? DType::kF32 : DType::kBF16;
  const Bytes bytes = row_bytes(dtype, tile->cols);
  if (t.dtype != name_of(dtype) || t.bytes != tile->row_count * bytes) {
    return error(Code::kBadFile, "%s: tensor '%s' has %lld bytes of type %s, not %lld x %lld",
                 folder_.c_str(), t.name.c_str(), static_cast<long long>(t.bytes), t.dtype.c_str(),
                 static_cast<long long>(tile->row_count), static_cast<long long>(tile->cols));
  }
  if (f32) {
    return reader_->read(static_cast<size_t>(index), within * bytes, std::as_writable_bytes(out));
  }
  std::vector<std::byte> half(static_cast<size_t>(bytes));
  HR_TRY(reader_->read(static_cast<size_t>(index), within * bytes, half));
  dequantize_row(dtype, half.data(), tile->cols, out.data());
  return {};
}

Status TrainedWeights::whole(const std::string& name, std::vector<float>* out) {
  const Parameter& p = tiles_.find(name)->second.front();
  out->resize(static_cast<size_t>(p.rows * p.cols));
  for (int64_t r = 0; r < p.rows; ++r) {
    HR_TRY(plain_row(
        name, r,
        std::span(*out).subspan(static_cast<size_t>(r * p.cols), static_cast<size_t>(p.cols))));
  }
  return {};
}

Status TrainedWeights::find_lora(const std::string& name) {
  if (lora_.of == name) return {};
  lora_ = Lora();
  lora_.of = name;
  const std::string_view end = ".weight";
  if (!name.ends_with(end)) return {};
  const std::string stem = name.substr(0, name.size() - end.size());
  const auto a = tiles_.find(stem + ".lora_A.weight");
  if (a == tiles_.end()) return {};
  HR_TRY(whole(stem + ".lora_A.weight", &lora_.a));
  HR_TRY(whole(stem + ".lora_B.weight", &lora_.b));
  lora_.rank = a->second.front().rows;
  return {};
}

Status TrainedWeights::row(const std::string& name, int64_t row, std::span<float> out) {
  HR_TRY(find_lora(name));
  HR_TRY(plain_row(name, row, out));
  if (lora_.rank == 0) return {};
  const auto scale =
      static_cast<float>(config_.lora.alpha / static_cast<double>(config_.lora.rank));
  for (int64_t k = 0; k < lora_.rank; ++k) {
    const float b = scale * lora_.b[static_cast<size_t>(row * lora_.rank + k)];
    const float* a = lora_.a.data() + k * static_cast<int64_t>(out.size());
    for (size_t i = 0; i < out.size(); ++i) out[i] += b * a[i];
  }
  return {};
}

// ---- the whole --------------------------------------------------------------------------------

Result<ExportResult> export_run(const ExportOptions& options) {
  const DType d = options.dtype;
  if (d != DType::kF32 && d != DType::kF16 && d != DType::kBF16) {
    return error(Code::kUsage, "parameters are exported as f32, f16 or bf16, not %s", name_of(d));
  }
  HR_ASSIGN(const std::unique_ptr<TrainedWeights> weights, TrainedWeights::open(options.run));
  if (options.adapter && weights->config().lora.rank == 0) {
    return error(Code::kUsage, "%s: the run trained no adapter", options.run.c_str());
  }
  ExportResult result;
  result.checkpoint = weights->folder();
  result.step = weights->step();
  for (const Parameter& p : weights->parameters(options.adapter)) {
    result.parameters += p.rows * p.cols;
  }
  std::string file = options.out;
  if (file.ends_with(".gguf")) {
    if (options.adapter) {
      return error(Code::kUnsupported, "an adapter alone is not written as GGUF");
    }
    HR_TRY(write_gguf(*weights, options));
  } else {
    const bool folder = !file.ends_with(".safetensors");
    if (folder) {
      HR_TRY(check_folder(options.out));
      HR_TRY(options.adapter ? write_adapter_config(*weights, options.out)
                             : write_folder_texts(*weights, options));
      file += options.adapter ? "/adapter_model.safetensors" : "/model.safetensors";
    }
    HR_TRY(write_safetensors(*weights, hf_tensors(*weights, options), file, options));
  }
  std::error_code ec;
  result.bytes = static_cast<Bytes>(std::filesystem::file_size(file, ec));
  return result;
}

}  // namespace headrace
