#include "headrace/tier/host_tier.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

namespace headrace {

Result<std::unique_ptr<MappedTier>> open_host_tier(const std::vector<Bytes>& objects,
                                                   const MappedOptions& options) {
  HR_ASSIGN(const Bytes needed, MappedTier::layout(objects));
  const Bytes bytes = std::max(needed, kPage);
  void* base = mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (base == MAP_FAILED)
    return error(Code::kDoesNotFit, "host tier of %s: mmap: %s",
                 human_bytes(bytes).c_str(), std::strerror(errno));
  Mapping mapping(base, bytes);
  (void)madvise(base, static_cast<size_t>(bytes), MADV_HUGEPAGE);
  TierDescription about;
  about.kind = "host";
  about.method = options.worker ? "memcpy on a thread" : "memcpy inline";
  about.memory_bytes = bytes;
  return MappedTier::create(std::move(mapping), objects, options, std::move(about));
}

}  // namespace headrace
