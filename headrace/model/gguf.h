// GGUF: reads the header of a model file (or of all files of a split one) into a
// ModelFile.
//
// Source of the format: "GGUF" in ggml's docs/gguf.md (versions 2 and 3, little-endian)
// and, for files in several parts, the keys split.no, split.count and split.tensors.count
// that llama.cpp's gguf-split writes ("NAME-00001-of-00003.gguf").
#pragma once

#include <string>

#include "headrace/model/model_file.h"

namespace headrace {

// Opens the file at `path`; when it is one part of several, all parts, of which each must
// be there. Metadata is that of the first part. Errors are those of open_model().
Result<ModelFile> open_gguf(const std::string& path);

}  // namespace headrace
