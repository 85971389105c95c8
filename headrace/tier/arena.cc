#include "headrace/tier/arena.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <utility>

namespace headrace {
namespace {

constexpr Bytes kHugePage = 2 * kMiB;

}  // namespace

Result<Arena> Arena::create(Bytes bytes) {
  if (bytes <= 0)
    return error(Code::kUsage, "arena of %lld bytes", static_cast<long long>(bytes));
  bytes = round_up(bytes, kPage);
  // One huge page more than asked for, then both ends are cut: mmap aligns to 4 KiB only.
  // No MAP_NORESERVE: a system that knows it cannot back the mapping must say so here.
  const size_t mapped = static_cast<size_t>(bytes + kHugePage);
  void* raw =
      mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (raw == MAP_FAILED)
    return error(Code::kDoesNotFit, "arena of %s: mmap: %s", human_bytes(bytes).c_str(),
                 std::strerror(errno));
  std::byte* const start = static_cast<std::byte*>(raw);
  const Bytes address = static_cast<Bytes>(reinterpret_cast<uintptr_t>(raw));
  const Bytes head = round_up(address, kHugePage) - address;
  if (head > 0) munmap(start, static_cast<size_t>(head));
  std::byte* const base = start + head;
  if (kHugePage > head) munmap(base + bytes, static_cast<size_t>(kHugePage - head));
  // Advice only: without it everything works, with more page faults and TLB misses.
  (void)madvise(base, static_cast<size_t>(bytes), MADV_HUGEPAGE);
  // A fork in the middle of a transfer would share its pages copy-on-write: whoever writes first
  // goes on with a copy, and what the disk still sends arrives in the other's (open(2), O_DIRECT).
  (void)madvise(base, static_cast<size_t>(bytes), MADV_DONTFORK);
  return Arena(base, bytes);
}

Arena::Arena(Arena&& other) noexcept
    : base_(std::exchange(other.base_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)) {}

Arena& Arena::operator=(Arena&& other) noexcept {
  std::swap(base_, other.base_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

Arena::~Arena() {
  if (base_ != nullptr) munmap(base_, static_cast<size_t>(bytes_));
}

std::span<std::byte> Arena::at(Bytes offset, Bytes bytes) const {
  HR_CHECK(offset >= 0 && bytes >= 0 && offset <= bytes_ && bytes <= bytes_ - offset,
           "a range outside the arena");
  return {base_ + offset, static_cast<size_t>(bytes)};
}

void Arena::touch(Bytes offset, Bytes bytes) {
  (void)at(offset, bytes);
  if (bytes == 0) return;
  const Bytes begin = round_down(offset, kPage);
  const Bytes end = round_up(offset + bytes, kPage);
#ifdef MADV_POPULATE_WRITE
  if (madvise(base_ + begin, static_cast<size_t>(end - begin), MADV_POPULATE_WRITE) == 0)
    return;
#endif
  for (Bytes page = begin; page < end; page += kPage) {
    volatile std::byte* byte = base_ + page;
    *byte = *byte;  // a write, even of the same value, commits the page
  }
}

}  // namespace headrace
