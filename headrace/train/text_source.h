// What the text of a training config is tokenized with.
#pragma once

#include <memory>
#include <string>

#include "headrace/model/tokenizer.h"
#include "headrace/model/tokenizer_json.h"
#include "headrace/train/train_config.h"

namespace headrace {

// Where the tokenizer is: config.data.tokenizer, else config.model.from, as a path that can be
// opened; empty: there is none ("bytes", tokens without one).
std::string tokenizer_path(const TrainConfig& config);

// Vocabulary, chat template and special tokens of a GGUF file or a Hugging Face folder. Errors as
// open_model and hf_tokenizer.
Result<HfTokenizer> read_tokenizer_files(const std::string& path);

// The tokenizer of a config with text; null for "bytes" and for tokens. Errors as
// read_tokenizer_files and Tokenizer::build.
Result<std::unique_ptr<Tokenizer>> open_text_tokenizer(const TrainConfig& config);

// "bytes" as a vocabulary: 256 tokens, each the byte of its number.
Vocabulary byte_tokens();

}  // namespace headrace
