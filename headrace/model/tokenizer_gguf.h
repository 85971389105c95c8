// The tokenizer of a GGUF file, from its "tokenizer.*" metadata.
#pragma once

#include "headrace/base/status.h"
#include "headrace/model/model_file.h"
#include "headrace/model/tokenizer_vocabulary.h"

namespace headrace {

// Moves the big arrays out of `model`'s metadata into a Vocabulary. kBadFile: a key is
// missing or of the wrong type, named. kUnsupported: a tokenizer model we do not know
// (tokenizer.ggml.model), named. Defaults of absent keys are llama.cpp's.
Result<Vocabulary> vocabulary_from_gguf(ModelFile* model);

}  // namespace headrace
