// How the parts of a tokenizer.json are understood. Shared by the reader's two files.
#pragma once

#include <nlohmann/json.hpp>

#include "headrace/base/status.h"
#include "headrace/model/tokenizer_vocabulary.h"

namespace headrace {

// Each reads one member of tokenizer.json into `v`; null members are fine. kUnsupported
// names a component or setting that we do not do.
Status read_normalizer(const nlohmann::json& j, Vocabulary* v);
Status read_pre_tokenizer(const nlohmann::json& j, Vocabulary* v);
// Also bos and eos, where the template puts tokens; they must be in `v->tokens` already.
Status read_post_processor(const nlohmann::json& j, Vocabulary* v);

// A member of `j` as text, bool, ...; `otherwise` when it is missing, null or of another
// type.
std::string text_in(const nlohmann::json& j, const char* key);
bool flag_in(const nlohmann::json& j, const char* key, bool otherwise);

}  // namespace headrace
