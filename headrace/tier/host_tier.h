// Host tier: RAM of this machine beyond the arena, with a capacity of its own.
#pragma once

#include <memory>
#include <vector>

#include "headrace/base/status.h"
#include "headrace/base/types.h"
#include "headrace/tier/mapped_tier.h"

namespace headrace {

// A tier with one object of each of the sizes `objects`, zero when fresh. Its memory
// counts like the arena's (describe().memory_bytes holds all of it); pages are committed
// when first written. kDoesNotFit when the system refuses the mapping.
Result<std::unique_ptr<MappedTier>> open_host_tier(const std::vector<Bytes>& objects,
                                                   const MappedOptions& options = {});

}  // namespace headrace
