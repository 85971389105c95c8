// Named prefixes: NAME.prefix in the folder of a prefix store holds the tokens of a conversation,
// so that it can be gone on with by its name.
//
// A name keeps no entry from being evicted: what is missing is computed again from the tokens.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "headrace/kv/prefix_format.h"

namespace headrace {

struct NamedPrefix {
  std::string name;
  uint64_t model = 0;
  KvFormat format = KvFormat::kF16;
  ChainHash hash;               // chain_over() of all tokens
  std::vector<int32_t> tokens;  // of any number up to 2^24
  int64_t saved = 0;            // seconds since 1970
};

// kUsage: only letters, digits, '.', '_' and '-', not first a '.', 1 to 100 of them.
Status check_prefix_name(const std::string& name);
// Replaces what has the name, completely or not at all. kUsage, kIo.
Status write_named_prefix(const std::string& folder, const NamedPrefix& prefix);
// kUsage: no such name. kBadFile, kUnsupported (another version), kIo.
Result<NamedPrefix> read_named_prefix(const std::string& folder, const std::string& name);
bool has_named_prefix(const std::string& folder, const std::string& name);
// Its tokens. As read_named_prefix(); kUnsupported: another model's.
Result<std::vector<int32_t>> tokens_of_name(const std::string& folder, const std::string& name,
                                            uint64_t model);
// Whatever is in the file. kUsage: no such name; kIo.
Status remove_named_prefix(const std::string& folder, const std::string& name);

}  // namespace headrace
