// Prefix store: a folder in which the KV of long prompts is kept, so that none is computed twice.
//
// Vocabulary
//   entry    sealed tiles of all layers for 256 tokens (64, 128 or 192 where a prompt ends); one
//            file, named by the chain hash of all tokens up to its end
//   chain    entries of one prompt; each names its parent, the entry before it
//   restore  reading entries back instead of computing them
//
// Promises
//   1. Nothing wrong is ever used: an entry is a hit only when model, format, salt, tile sizes,
//      parent and the tokens themselves are those asked for, and each layer's bytes are checked
//      when they are read. Whatever else lies there (damaged, cut, of another version, foreign) is
//      a miss; a damaged entry is removed when it is met.
//   2. put() never waits for the disk (prefix_writer.h), files appear whole or not at all, and what
//      a killed process has left is removed by the next that opens the folder.
//   3. Several processes may use a folder at once. A read wants no lock; an entry that is evicted
//      between lookup() and read() makes read() fail, which the caller takes as a miss.
//   4. In a folder that cannot be written to entries are read and none are put; stats() says why. A
//      disk that refuses later (it is full) is tried again now and then (prefix_writer.h).
//   5. Memory: prefix_memory(). The payload goes past the page cache (O_DIRECT; where a file system
//      has none, read pages are dropped at once; written ones go out piece by piece and are
//      dropped). The first page of an entry that was looked at stays in the cache, which the system
//      may take.
//
// Thread-safe; put() and lookup() do not wait for a read().
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "headrace/kv/prefix_names.h"
#include "headrace/kv/prefix_writer.h"

namespace headrace {

struct PrefixOptions {
  PrefixLayout layout;
  Bytes limit_bytes = 0;             // of all entries in the folder, of any model; 0: none
  Bytes staging_bytes = 64 * kMiB;  // what may wait to be written; 0: only read
};

// An entry that lookup() has found. A value: nothing is held open.
struct PrefixEntry {
  ChainHash hash;
  int64_t first = 0;   // position of its first token
  int64_t tokens = 0;
  Bytes bytes = 0;     // of its file
  double recompute_seconds = 0;
};

struct PrefixHit {
  std::vector<PrefixEntry> entries;  // from position 0 on, without a gap
  int64_t tokens = 0;                // of all of them
  Bytes bytes = 0;
  double recompute_seconds = 0;
};

enum class PrefixPut : uint8_t { kQueued, kThere, kDropped };

struct PrefixStats {
  int64_t hits = 0, misses = 0;  // lookups that found something / nothing
  int64_t hit_tokens = 0;
  Bytes read_bytes = 0;
  int64_t corrupted = 0;  // entries that were damaged, when looked up or read
  PrefixWritten written;
  std::string not_writing;  // why nothing was written last; empty: it is
};

// The most memory that a store takes: staging, a buffer of the largest layer or 4 MiB, a thread,
// and 64 B an entry while room is made (the folder's, at most 65536).
Bytes prefix_memory(const PrefixOptions& options);

// Whether reading the hit at `bytes_per_second` takes less time than computing it again; a file
// costs `seconds_per_entry` besides (open, header, one seek).
bool restore_pays(const PrefixHit& hit, double bytes_per_second,
                  double seconds_per_entry = 200e-6);

class PrefixStore {
 public:
  // Makes the folder when it is not there. kUsage: tile sizes that no entry has; kIo: the folder
  // cannot be made or read.
  static Result<std::unique_ptr<PrefixStore>> open(const std::string& folder,
                                                   const PrefixOptions& options);
  // Writes what waits.
  ~PrefixStore() = default;

  // The parent of an entry at position 0; that of others is chain_next(parent, its tokens).
  ChainHash root() const { return root_; }

  // The longest chain that `tokens` begin with; an entry is found when all of its tokens are asked
  // for. Reads one page an entry.
  PrefixHit lookup(std::span<const int32_t> tokens);

  // Hands on each layer's tiles of the entry, in order: tokens / 64 times the layer's tile bytes,
  // valid during the call. On an error (kBadFile: damaged; kIo: unreadable, or evicted meanwhile;
  // or what `take` answers) the caller computes from entry.first on.
  Status read(const PrefixEntry& entry,
              const std::function<Status(size_t layer, std::span<const std::byte>)>& take);
  // One layer, straight to `out` where that lies on whole pages.
  Status read_layer(const PrefixEntry& entry, size_t layer, std::span<std::byte> out);

  // Keeps an entry: `tokens` (64 to 256, a multiple of 64) at position `first` (a multiple of 256)
  // after `parent`, which computing took `recompute_seconds`. `fill` copies a layer's tiles and is
  // called here, layer by layer, unless the entry is there or must be dropped; its error is
  // returned.
  Result<PrefixPut> put(
      ChainHash parent, int64_t first, std::span<const int32_t> tokens, double recompute_seconds,
      const std::function<Status(size_t layer, std::span<std::byte> out)>& fill);
  // Waits until what was put is written. kIo: the disk has refused; says why.
  Status flush();

  // Saves all tokens of a conversation under a name, at once. kUsage, kIo.
  Status save_name(const std::string& name, std::span<const int32_t> tokens);
  // Its tokens. kUsage: no such name; kUnsupported: another model's; kBadFile, kIo.
  Result<std::vector<int32_t>> load_name(const std::string& name) const;

  PrefixStats stats() const;

 private:
  PrefixStore(std::string folder, const PrefixOptions& options);
  // The entry under this hash, if it is what is asked for.
  Result<PrefixFile> find(ChainHash hash, ChainHash parent, int64_t first,
                          std::span<const int32_t> tokens, bool for_payload) const;
  bool same_layout(const PrefixHeader& header) const;
  // Removes what is damaged.
  void met(const Status& status, ChainHash hash);
  Result<PrefixFile> open_again(const PrefixEntry& entry) const;
  Status read_with(const PrefixEntry& entry,
                   const std::function<Status(const PrefixFile&, std::span<std::byte>)>& body);

  const std::string folder_;
  const PrefixOptions options_;
  const ChainHash root_;
  const Bytes buffer_bytes_;
  PrefixWriter writer_;
  std::mutex buffer_mutex_;
  PageBytes buffer_;  // made at the first read
  mutable std::mutex stats_mutex_;
  PrefixStats stats_;
};

}  // namespace headrace
