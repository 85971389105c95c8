// Hugging Face folders: config.json and *.safetensors become a ModelFile.
//
// The members of config.json are the metadata (flattened, see model_file.h); JSON nulls
// and arrays that are not all strings, all bools or all numbers are left out. Tensor
// names become GGUF's ("model.layers.3.mlp.up_proj.weight" is "blk.3.ffn_up.weight"); a
// name without a counterpart stays as it is.
#pragma once

#include <string>
#include <string_view>

#include "headrace/model/model_file.h"

namespace headrace {

// Opens the folder: config.json, then the files that model.safetensors.index.json names,
// or without it every *.safetensors file of the folder. Errors are those of open_model();
// a file of the index that is not there, or a tensor that is not where the index says, is
// kBadFile.
Result<ModelFile> open_hf_folder(const std::string& folder);

// GGUF's name of a tensor that a model of `model_type` ("llama", "gemma3_text") calls
// `name`; `name` itself where there is none.
std::string gguf_name(std::string_view model_type, std::string_view name);

}  // namespace headrace
