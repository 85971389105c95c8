// Safetensors: reads the header of one file into weights.
//
// Source of the format: the "Format" section of huggingface/safetensors' README. A length
// of 8 bytes, that many bytes of JSON ({"NAME": {"dtype", "shape", "data_offsets":
// [begin, end]},
// "__metadata__": {...}}), then the data, which the tensors cover without holes or
// overlaps.
#pragma once

#include <string>
#include <vector>

#include "headrace/model/model_file.h"

namespace headrace {

struct SafetensorsFile {
  std::vector<WeightInfo> weights;  // in the order of their data; names as in the file
  Bytes file_bytes = 0;
};

// Extents get `file` as their file number. Errors are those of open_model().
Result<SafetensorsFile> read_safetensors(const std::string& path, int32_t file);

}  // namespace headrace
