// What a prefix store's folder holds, for people: entries, chains, names, and what is wrong.
//
// For folders of any model and format. Reads one page an entry, or every byte when it verifies;
// holds about 200 B an entry. Writes nothing.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "headrace/kv/prefix_names.h"

namespace headrace {

struct ListedEntry {
  ChainHash hash, parent;
  uint64_t model = 0;
  KvFormat format = KvFormat::kF16;
  std::string label;
  int64_t first = 0, tokens = 0;
  Bytes bytes = 0;
  double recompute_seconds = 0;
  double priority = 0;
  int64_t created = 0, used = 0;  // seconds since 1970; `used`: last written or read
  bool reachable = false;         // all entries before it are there
};

// The entries from position 0 to one that nothing continues.
struct ListedChain {
  size_t last = 0;  // of entries
  int64_t tokens = 0;
  Bytes bytes = 0;
  double recompute_seconds = 0;
};

struct ListedName {
  NamedPrefix prefix;      // its tokens are left out
  int64_t tokens = 0;      // of the conversation
  int64_t kept_tokens = 0; // that are in the store
};

struct BadPrefixFile {
  std::string file;  // in the folder
  std::string why;
  Bytes bytes = 0;
};

struct PrefixListing {
  std::vector<ListedEntry> entries;  // by hash
  std::vector<ListedChain> chains;   // by the hash of their last
  std::vector<ListedName> names;     // by name
  std::vector<BadPrefixFile> bad;    // entries and names that no program of this version can use
  std::vector<std::string> temporary, foreign;
  Bytes entry_bytes = 0;

  const ListedEntry* find(ChainHash hash) const;
};

// `progress` hears of the bytes of entries looked at and of all; false ends it with kCancelled. May
// be empty. kIo: the folder cannot be read; a file that vanishes meanwhile is left out.
Result<PrefixListing> list_prefixes(const std::string& folder, bool verify,
                                    const std::function<bool(Bytes done, Bytes all)>& progress);

}  // namespace headrace
