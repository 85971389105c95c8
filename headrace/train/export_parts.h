// What the writers of both formats share. Used by export*.cc only.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "headrace/base/safe_file.h"
#include "headrace/train/checkpoint.h"
#include "headrace/train/export.h"
#include "headrace/train/initial_weights.h"
#include "headrace/train/train_config.h"

namespace headrace {

// The parameters of a run as they are now, a row at a time.
class TrainedWeights {
 public:
  // Opens the newest checkpoint that can be read. Errors as export_run.
  static Result<std::unique_ptr<TrainedWeights>> open(const std::string& run);

  const TrainConfig& config() const { return config_; }
  const StepModel& model() const { return initial_->model(); }
  const InitialWeights& initial() const { return *initial_; }
  const std::string& folder() const { return folder_; }
  int64_t step() const { return reader_->info().step; }

  // One a parameter, in the model's order: its first tile. Without LoRA's, or they alone.
  std::vector<Parameter> parameters(bool lora) const;
  // Row `row` of the parameter, [cols], with what LoRA adds to it.
  Status row(const std::string& name, int64_t row, std::span<float> out);

 private:
  // LoRA's two products of the weight that was read last.
  struct Lora {
    std::string of;
    int64_t rank = 0;      // 0: the weight has none
    std::vector<float> a;  // [rank, cols]
    std::vector<float> b;  // [rows, rank]
  };
  TrainedWeights() = default;
  Status plain_row(const std::string& name, int64_t row, std::span<float> out);
  Status find_lora(const std::string& name);
  Status whole(const std::string& name, std::vector<float>* out);

  std::string folder_;
  TrainConfig config_;
  std::unique_ptr<InitialWeights> initial_;
  std::unique_ptr<CheckpointReader> reader_;
  std::map<std::string, std::vector<Parameter>> tiles_;
  Lora lora_;
};

// A tensor of the file that is written.
struct ExportTensor {
  std::string name;  // in the file
  std::string parameter;
  int64_t rows = 0, cols = 0;  // as they lie in the file
  bool vector = false;         // one dimension
  bool turned = false;         // [inputs, outputs]
  bool paired = false;         // q's and k's rows for neighbours as pairs
  DType dtype = DType::kF32;
  std::vector<float> values;  // instead of a parameter's, when not empty

  Bytes bytes() const { return rows * row_bytes(dtype, cols); }
};

// Appends the tensor's data to the file. `done` and `total` are what progress tells.
Status write_tensor(TrainedWeights& weights, const ExportTensor& tensor, Bytes* done, Bytes total,
                    const ExportOptions& options, OutFile* out);

// One whole file at `path`, or none. kIo.
Status write_safetensors(TrainedWeights& weights, const std::vector<ExportTensor>& tensors,
                         const std::string& path, const ExportOptions& options);
Status write_gguf(TrainedWeights& weights, const ExportOptions& options);
// config.json and the tokenizer's files.
Status write_folder_texts(const TrainedWeights& weights, const ExportOptions& options);
// adapter_config.json.
Status write_adapter_config(const TrainedWeights& weights, const std::string& folder);

}  // namespace headrace
