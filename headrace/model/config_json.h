// config.json as flat metadata. Used by hf_folder.cc only.
#pragma once

#include <map>
#include <string>

#include "headrace/model/model_file.h"

namespace headrace {

using Metadata = std::map<std::string, MetaValue, std::less<>>;

// The members of the file's one object; those of nested objects get the names of all
// objects they are in: "rope_scaling.factor". Arrays of strings, bools or numbers are
// kept, others left out. kBadFile: not JSON, not an object, a member twice, an integer
// beyond 63 bits.
Result<Metadata> read_config_json(const std::string& path);

}  // namespace headrace
