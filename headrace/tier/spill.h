// Spill: buffers put aside in a scratch file, one by one and without a plan, and brought back by
// number. For what no Program says anything about.
//
// Promises
//   1. The files are removed from their folder as soon as they are open: a crash leaves nothing.
//   2. Bytes go past the page cache where the disk allows it; what the process holds of them is two
//      pieces of 4 MiB.
//   3. The room of a buffer that was dropped is used again.
// Not thread-safe.
#pragma once

#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "headrace/tier/arena.h"
#include "headrace/tier/file_tier.h"

namespace headrace {

class Spill {
 public:
  // kIo when the folder cannot be written; a file is made by the first put().
  static Result<std::unique_ptr<Spill>> open(const std::string& folder);

  // Copies `bytes` (at least 1) to the disk; they may change once it returns. The buffer's number.
  // kIo when the disk is full, with what was needed, or refuses.
  Result<int64_t> put(std::span<const std::byte> bytes);
  // The first out.size() bytes of the buffer. kUsage for a number that was not given out, or that
  // has been dropped, and for more bytes than it has; kIo.
  Status get(int64_t id, std::span<std::byte> out);
  // kUsage as get().
  Status drop(int64_t id);

  // Of buffers that are there, in whole pages; and of the files.
  Bytes held_bytes() const { return held_; }
  Bytes bytes_on_disk() const;

 private:
  struct Segment {
    std::unique_ptr<FileTier> tier;
    Bytes bytes = 0;
    std::map<Bytes, Bytes> free;  // offset -> bytes, no two adjacent
  };
  struct Buffer {
    size_t segment = 0;
    Bytes offset = 0;
    Bytes bytes = 0;  // as given
  };
  Spill(std::string folder, Arena staging)
      : folder_(std::move(folder)), staging_(std::move(staging)) {}

  Result<Buffer> find_room(Bytes bytes);
  Status add_segment(Bytes needed);
  void give_back(const Buffer& buffer);
  Status write(const Buffer& to, std::span<const std::byte> bytes);
  Result<const Buffer*> buffer(int64_t id) const;

  std::string folder_;
  Arena staging_;  // before the tiers: they end their transfers first
  std::vector<Segment> segments_;
  std::map<int64_t, Buffer> buffers_;
  int64_t next_id_ = 0;
  Bytes held_ = 0;
};

}  // namespace headrace
