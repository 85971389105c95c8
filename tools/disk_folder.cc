#include "tools/disk_folder.h"

#include <sys/statfs.h>

#include <cerrno>
#include <cstring>

#include "headrace/base/system.h"
#include "headrace/base/system_memory.h"

namespace headrace::cli {
namespace {

constexpr long kTmpfs = 0x01021994, kRamfs = 0x858458f6;

}  // namespace

Result<FolderFacts> look_at_folder(const std::string& folder) {
  struct statfs info = {};
  if (::statfs(folder.c_str(), &info) != 0) {
    return error(Code::kIo, "cannot look at %s: %s", folder.c_str(), std::strerror(errno));
  }
  HR_ASSIGN(const Bytes free_bytes, free_on_disk(folder));
  return FolderFacts{info.f_type == kTmpfs || info.f_type == kRamfs, free_bytes};
}

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
