// Model: everything about a model that is read before its weights: config, tokenizer, template.
#pragma once

#include <memory>
#include <string>

#include "headrace/model/build_graph.h"
#include "headrace/model/model_config.h"
#include "headrace/model/model_file.h"
#include "headrace/model/tokenizer.h"

namespace headrace {

struct Model {
  ModelFile file;
  ModelConfig config;
  Tokenizer tokenizer;
  std::string chat_template;  // Jinja source; empty when the file has none
};

// Opens a GGUF file or a Hugging Face folder. Errors as open_model, read_config and
// Tokenizer::build: kIo, kBadFile, kUnsupported, each naming what is wrong.
Result<std::unique_ptr<Model>> load_model(const std::string& path);

}  // namespace headrace
