// Remote tier: a pool of memory that is mapped and reached directly, without a bounce: a
// file on tmpfs or hugetlbfs (shared by name with other processes), the /dev/dax device
// of a CXL expander, or the memory of one NUMA node (a CXL expander in system-ram mode is
// one).
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "headrace/base/status.h"
#include "headrace/base/types.h"
#include "headrace/tier/mapped_tier.h"

namespace headrace {

enum class PoolKind {
  kSharedFile,  // `path` exists (tmpfs, hugetlbfs or /dev/dax) and keeps its bytes
  kScratchFile,  // made on tmpfs or hugetlbfs, in the folder of `path`, without a name
  kNumaNode,     // anonymous memory bound to node `numa_node`
};

struct RemotePool {
  PoolKind kind = PoolKind::kSharedFile;
  std::string path;
  int numa_node = -1;
};

// A tier with one object of each of the sizes `objects` in that pool;
// MappedTier::direct() gives their addresses. All memory is reserved here: a pool that
// cannot back a page later would kill the process. Its memory is a declared pool, not
// part of describe().memory_bytes (that holds queue and stack alone). Errors: kDoesNotFit
// when the pool is too small; kIo with path and errno; kUnsupported for a file on a disk
// (use the file tier) or a kernel without NUMA policy. The /dev/dax path follows the
// kernel's device-dax documentation (size in sysfs, mappings in multiples of the device's
// alignment).
Result<std::unique_ptr<MappedTier>> open_remote_tier(const RemotePool& pool,
                                                     const std::vector<Bytes>& objects,
                                                     const MappedOptions& options = {});

}  // namespace headrace
