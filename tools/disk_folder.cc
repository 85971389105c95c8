#include "tools/disk_folder.h"

#include "headrace/base/system_memory.h"

namespace headrace::cli {

Status refuse_memory(const std::string& option, const std::string& folder) {
  return error(Code::kUsage,
               "%s: %s is in memory (tmpfs), which is what the budget is about; name a folder on a "
               "disk",
               option.c_str(), folder.c_str());
}

Result<TierOption> parse_tier_option(const std::string& text, const char* place) {
  const size_t equals = text.find('=');
  if (equals == std::string::npos || equals == 0 || equals + 1 == text.size()) {
    return error(Code::kUsage, "--tier %s: write NAME=%s or NAME=%s:BYTES", text.c_str(), place,
                 place);
  }
  TierOption tier;
  tier.name = text.substr(0, equals);
  tier.folder = text.substr(equals + 1);
  if (const size_t colon = tier.folder.rfind(':'); colon != std::string::npos) {
    const auto size = parse_size(tier.folder.substr(colon + 1), 0);
    if (!size.ok()) return size.status().within("--tier " + tier.name);
    tier.bytes = *size;
    tier.folder.resize(colon);
  }
  return tier;
}

}  // namespace headrace::cli
