// The two readers behind read_config(), one a file format. Used by model_config*.cc only.
#pragma once

#include "headrace/model/model_config.h"

namespace headrace {

// Bounds of the integers of a header: far beyond real models, small enough that no
// product of three of them overflows.
constexpr int64_t kMaxLayers = 10000;
constexpr int64_t kMaxWidth = 1 << 20;
constexpr int64_t kMaxContext = int64_t{1} << 31;

// Fill everything but `vocab` and `tied_embeddings`, and check no more than types and
// ranges.
Result<ModelConfig> config_from_gguf(const ModelFile& model);
Result<ModelConfig> config_from_hf(const ModelFile& model);

// Every (period)th layer is global, those before it local; 0 means that all are local.
std::vector<bool> local_pattern(int64_t layers, int64_t period);

}  // namespace headrace
