// Folders that state may be kept in, and "--tier NAME=PATH[:BYTES]".
#pragma once

#include <string>

#include "headrace/base/status.h"
#include "headrace/base/types.h"

namespace headrace::cli {

// The refusal of a folder in memory. `option` asked for it.
Status refuse_memory(const std::string& option, const std::string& folder);

struct TierOption {
  std::string name;
  std::string folder;
  Bytes bytes = 0;  // 0: not said
};
// kUsage; `place` is how the option's help calls PATH.
Result<TierOption> parse_tier_option(const std::string& text, const char* place);

}  // namespace headrace::cli
