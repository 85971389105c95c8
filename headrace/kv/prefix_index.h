// What lies in a prefix store's folder, and what of it goes when there is no room.
//
// Which entries stay is GreedyDual-Size (Cao and Irani, "Cost-aware WWW proxy caching algorithms",
// USITS 1997) over the leaves of the chains: an entry that is written or read gets the priority
//   clock + recompute seconds / byte,
// the least priority goes first, and the clock rises to it; so what nobody reads ages against what
// is new. An entry goes only when nothing continues it: without it what continues it is of no use.
// Priorities lie in the entries' use records, the clock in the lock file.
#pragma once

#include <string>
#include <vector>

#include "headrace/kv/prefix_format.h"

namespace headrace {

// More entries are not kept: that bounds what making room takes (64 B each) and how long.
constexpr int64_t kMostPrefixEntries = 65536;

// Files of the folder that have the name of an entry.
struct PrefixUsage {
  int64_t entries = 0;
  Bytes bytes = 0;
};
// kIo when the folder cannot be read.
Result<PrefixUsage> prefix_usage(const std::string& folder);

struct PrefixRoom {
  PrefixUsage left;
  int64_t evicted = 0;
  Bytes evicted_bytes = 0;
};
// Removes entries until at most `bytes` in at most `entries` are left or only `spared` and what it
// continues are. Damaged files go first, then entries whose parents are gone, then leaves by
// priority. For who holds the lock; files that another process removes meanwhile are no error. kIo
// when the folder cannot be read.
Result<PrefixRoom> evict_prefixes(const std::string& folder, Bytes bytes, int64_t entries,
                                  ChainHash spared);

// The lock of all that evicts; the clock lies in it.
std::string prefix_lock_path(const std::string& folder);
double prefix_clock(const std::string& folder);

// Removes temporary files whose writers are gone (their lock is free); those of living ones stay.
// How many were removed.
int64_t remove_prefix_leftovers(const std::string& folder);

enum class PrefixFileKind : uint8_t { kEntry, kName, kTemporary, kLock, kForeign };
// By the name of the file alone: HASH.kv, NAME.prefix, what is being written, the lock file.
PrefixFileKind prefix_file_kind(const std::string& file_name);
// Names of the files of the folder, ascending. kIo.
Result<std::vector<std::string>> prefix_files(const std::string& folder);

}  // namespace headrace
