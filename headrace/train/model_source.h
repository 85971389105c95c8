// ModelSource: a model file seen from training: its shape, and where each of our parameters is.
#pragma once

#include <memory>
#include <string>

#include "headrace/model/model_file.h"
#include "headrace/model/rope.h"
#include "headrace/train/step_model.h"
#include "headrace/train/train_config.h"

namespace headrace {

struct ModelSource {
  std::unique_ptr<ModelFile> file;  // null: a new model, whose shape is the config's
  TrainModelConfig shape;
  RopeConfig rope;
  bool qkv_bias = false;
  bool transposed = false;   // GPT-2's products are [inputs, outputs]
  bool paired_rows = false;  // rows of q and k are stored for neighbours as pairs (GGUF llama)
};

// Reads headers. kIo, kBadFile; kUnsupported names the family or the feature that cannot be
// trained.
Result<ModelSource> open_model_source(const TrainConfig& config);

// GGUF's name of a parameter of ours.
std::string gguf_parameter_name(ModelFamily family, const std::string& name);

// The weight of the file that holds the parameter; null when there is none.
const WeightInfo* source_weight(const ModelSource& source, const std::string& name);
// The row of the file that holds row `row` of the parameter.
int64_t source_row(const ModelSource& source, const StepModel& model, const Parameter& p,
                   int64_t row);

// Where GGUF's llama files put row `row` of a q or k with heads of `head_dim` rows: the first half
// of a head's rows takes its even places, the second half the odd ones.
int64_t paired_row(int64_t row, int64_t head_dim);
// Whether a parameter's rows are those of q or k.
bool has_rotated_rows(const std::string& name);

// Every parameter of the model is there with its shape and a type that can be read, and the file
// has nothing else. kBadFile, kUnsupported with the tensor's name.
Status check_source(const ModelSource& source, const StepModel& model);

}  // namespace headrace
