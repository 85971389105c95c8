// Arena: the device memory of a CPU box. One anonymous mapping of a fixed size; every extent of a
// Program is a range of it.
//
// Promises
//   1. The mapping is page-aligned, huge pages are advised; nothing is allocated after create().
//   2. Untouched ranges cost no memory; touch() commits a range ahead of use.
//   3. at() checks its range in every build.
#pragma once

#include <cstddef>
#include <span>

#include "headrace/base/status.h"
#include "headrace/base/types.h"

namespace headrace {

class Arena {
 public:
  // kDoesNotFit when the system refuses the mapping.
  static Result<Arena> create(Bytes bytes);
  Arena(Arena&& other) noexcept;
  Arena& operator=(Arena&& other) noexcept;
  ~Arena();

  Bytes bytes() const { return bytes_; }
  std::byte* base() const { return base_; }
  // The range [offset, offset + bytes); aborts when it is not inside the arena.
  std::span<std::byte> at(Bytes offset, Bytes bytes) const;
  // Writes one byte a page of the range, so that page faults are paid now.
  void touch(Bytes offset, Bytes bytes);

 private:
  Arena(std::byte* base, Bytes bytes) : base_(base), bytes_(bytes) {}
  std::byte* base_ = nullptr;
  Bytes bytes_ = 0;
};

}  // namespace headrace
