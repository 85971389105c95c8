// The file of one entry of the prefix store: KV of up to 256 tokens, of all layers.
//
//   HASH.kv   header   fixed part, tokens, {tile bytes, checksum} of each layer; zeros to a page
//             payload  layer by layer, each from a page on: its sealed tiles, then zeros to a page
//
// Numbers are little-endian. The header has a checksum (XXH3, 64 bits) of all its bytes but the use
// record, the only ones that ever change; each layer has one of its bytes (XXH3, 128 bits).
//
// Promises
//   1. parse() takes any bytes; what it accepts is consistent, and its sizes are bounded before
//      anything is allocated: 256 tokens, 1024 layers, 1 GiB a tile.
//   2. A file that is shorter or longer than its header says is refused when it is opened.
//   3. verify() finds a change of any byte.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "headrace/base/status.h"
#include "headrace/base/types.h"
#include "headrace/kv/chain_hash.h"
#include "headrace/tier/open_file.h"

namespace headrace {

// What the entries of one model hold.
struct PrefixLayout {
  uint64_t model = 0;  // model_fingerprint()
  KvFormat format = KvFormat::kF16;
  uint64_t salt = 0;              // see chain_start()
  std::vector<Bytes> tile_bytes;  // of a tile of each layer; 0: a layer that keeps nothing
  std::string label;              // for people: the model's name; cut to 63 bytes
};

struct PrefixHeader {
  ChainHash hash, parent;  // of the chain with and without this entry's tokens
  uint64_t model = 0;
  KvFormat format = KvFormat::kF16;
  std::string label;
  int64_t first = 0;            // position of the first token, a multiple of kChainTokens
  std::vector<int32_t> tokens;  // 64, 128, 192 or 256
  std::vector<Bytes> tile_bytes;
  std::vector<ChainHash> sums;   // of each layer's bytes
  double recompute_seconds = 0;  // what the entry saves
  int64_t created = 0;           // seconds since 1970
  double priority = 0;           // see prefix_index.h; 0 when the use record is damaged
  bool use_record_ok = true;

  size_t layers() const { return tile_bytes.size(); }
  Bytes header_bytes() const;
  Bytes layer_bytes(size_t layer) const;  // without the zeros behind it
  Bytes layer_begin(size_t layer) const;  // in the file
  Bytes file_bytes() const;
  // Recompute seconds per byte of the file.
  double value() const { return recompute_seconds / static_cast<double>(file_bytes()); }
};

// An entry's file, 0 to 3 tiles short of the whole one's.
Bytes prefix_file_bytes(const PrefixLayout& layout, int64_t tokens);

// Writes header_bytes() bytes. Precondition: `out` has that many, and the header is consistent.
void encode(const PrefixHeader& header, std::span<std::byte> out);
// The header at the start of a file of `file_bytes`; `bytes` is the whole file or its start.
// kBadFile; kUnsupported: of another version.
Result<PrefixHeader> parse(std::span<const std::byte> bytes, Bytes file_bytes);
// How many bytes parse() needs, from the first kPage of them; at most 64 KiB. As parse().
Result<Bytes> header_bytes_of(std::span<const std::byte> page);

// XXH3, 128 bits.
ChainHash prefix_sum(std::span<const std::byte> bytes);

// DIR/HASH.kv
std::string prefix_path(const std::string& folder, ChainHash hash);

// The use record is a number with a check; so is the clock in the lock file.
constexpr Bytes kUseOffset = 152;
// Writes it over what is at `offset` of an existing file. Failing is of no account.
void write_use(const std::string& path, Bytes offset, double priority);
// 0 when the file or a valid record is not there.
double read_use(const std::string& path, Bytes offset);

// Memory that O_DIRECT takes. May be empty; get() is null when the system refused.
struct FreeBytes {
  void operator()(std::byte* p) const { std::free(p); }
};
using PageBytes = std::unique_ptr<std::byte, FreeBytes>;
PageBytes make_page_bytes(Bytes bytes);

// An entry that is open for reading. What has been opened stays readable when another process
// removes or replaces the file.
class PrefixFile {
 public:
  // Gets the payload past the page cache where the file system can, else drops from the cache what
  // it has read; only the header's page stays there. kIo; as parse(); kBadFile when the name is not
  // that of the hash inside.
  static Result<PrefixFile> open(const std::string& path, bool for_payload);

  const PrefixHeader& header() const { return header_; }
  // Reads layers [begin, end) in pieces of as many whole layers as `buffer` has room for, checks
  // each against its checksum and hands it on, in order; the bytes are valid during the call.
  // `buffer` lies on a page and has room for the largest layer, rounded up to pages. kBadFile: a
  // checksum differs; kIo; or what `take` has answered. What was handed on before is right even so.
  Status read(size_t begin, size_t end, std::span<std::byte> buffer,
              const std::function<Status(size_t layer, std::span<const std::byte>)>& take) const;
  // One layer straight to `out`, layer_bytes(layer) long; `buffer` of kPage or more is used where
  // `out` does not lie on whole pages.
  Status read_layer(size_t layer, std::span<std::byte> out, std::span<std::byte> buffer) const;
  // Every byte: checksums, zeros between layers, the use record, and that the hash is the one of
  // parent and tokens. kBadFile says which; kIo.
  Status verify(std::span<std::byte> buffer) const;

 private:
  PrefixFile() = default;
  Status pread_all(Bytes offset, std::span<std::byte> out) const;
  Status check(size_t layer, std::span<const std::byte> bytes) const;
  OpenFile file_;
  PrefixHeader header_;
};

// What read() and verify() of such entries want as buffer: 4 MiB, or the largest layer if more.
Bytes prefix_buffer_bytes(std::span<const Bytes> tile_bytes);

}  // namespace headrace
