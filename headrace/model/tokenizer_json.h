// The tokenizer of a Hugging Face model folder.
#pragma once

#include <string>

#include "headrace/base/status.h"
#include "headrace/model/tokenizer_vocabulary.h"

namespace headrace {

struct HfTokenizer {
  Vocabulary vocabulary;
  std::string chat_template;  // empty: the folder has none
  std::string bos_token;      // texts, for the template; empty: none
  std::string eos_token;
};

// Reads tokenizer.json, which must be there, and what there is of tokenizer_config.json,
// generation_config.json and chat_template.jinja. kIo: a file cannot be read; kBadFile:
// it is not what it should be; kUnsupported: a model, normalizer or pre-tokenizer that we
// do not do, named.
Result<HfTokenizer> hf_tokenizer(const std::string& folder);

// Reads one tokenizer.json (10 to 30 MB) as a stream: vocabulary and merges go straight
// into their packed form. bos and eos stay unset unless the post-processor names them.
Result<Vocabulary> vocabulary_from_tokenizer_json(const std::string& path);

}  // namespace headrace
