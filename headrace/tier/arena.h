// Arena: the device memory of a CPU box. One anonymous mapping of a fixed size; every
// extent of a Program is a range of it.
//
// Promises
//   1. The mapping starts on a huge page (2 MiB), huge pages are advised, its size is the
//      size asked for rounded up to 4 KiB; nothing is allocated after create().
//   2. Untouched ranges cost no memory, in steps of a huge page; touch() commits a range
//      ahead of use. A file tier that registers the arena commits all of it (describe()
//      says so). What is resident never exceeds bytes(): the budget holds the whole arena
//      anyway.
//   3. at() checks its range in every build.
//   4. Fresh bytes are zero.
//   5. A process forked from this one does not have the mapping.
// Thread-safe but for moves: an Arena is a pair of numbers; who writes which range when
// is the Program's business.
#pragma once

#include <cstddef>
#include <span>

#include "headrace/base/status.h"
#include "headrace/base/types.h"

namespace headrace {

class Arena {
 public:
  // Maps `bytes` (> 0, else kUsage). kDoesNotFit when the system refuses the mapping.
  static Result<Arena> create(Bytes bytes);
  Arena(Arena&& other) noexcept;
  Arena& operator=(Arena&& other) noexcept;
  ~Arena();

  Bytes bytes() const { return bytes_; }
  std::byte* base() const { return base_; }
  // The range [offset, offset + bytes); aborts when it is not inside the arena.
  std::span<std::byte> at(Bytes offset, Bytes bytes) const;
  // Commits every page that the range touches, so that page faults are paid now; the
  // bytes keep their values. Aborts when the range is not inside the arena.
  void touch(Bytes offset, Bytes bytes);

 private:
  Arena(std::byte* base, Bytes bytes) : base_(base), bytes_(bytes) {}
  std::byte* base_ = nullptr;
  Bytes bytes_ = 0;
};

}  // namespace headrace
