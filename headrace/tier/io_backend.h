// IoBackend: the system-call level below the file tier. It takes requests of one chunk
// each and hands back what the system said, unjudged: short counts and errnos are the
// file tier's business. io_uring and a pool of preading threads are the real ones; tests
// put a scripted one between (tests/conformance/).
//
// Promises
//   1. Every request submitted is reaped exactly once, in any order.
//   2. Nothing is allocated between submit and reap.
// Not thread-safe: one thread submits and reaps.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "headrace/base/status.h"
#include "headrace/base/types.h"

namespace headrace {

struct IoRequest {
  uint32_t tag = 0;  // comes back with the completion
  int fd = -1;
  bool write = false;
  bool buffered = false;  // through the page cache: its pages are dropped afterwards
  std::byte* data = nullptr;
  Bytes bytes = 0;
  Bytes offset = 0;
};

struct IoCompletion {
  uint32_t tag = 0;
  int64_t result = 0;  // bytes moved, or -errno
};

class IoBackend {
 public:
  // All requests must have been reaped.
  virtual ~IoBackend() = default;

  // Queues one request. At most `depth` (given at construction) may be unreaped.
  virtual void submit(const IoRequest& request) = 0;
  // Pushes what was queued to the system. Does not block.
  virtual void flush() = 0;
  // Moves finished requests into `out` and returns how many. With `block` it waits for
  // the first one; at least one must then be unreaped.
  virtual int reap(std::span<IoCompletion> out, bool block) = 0;
  // RAM held for queues and stacks.
  virtual Bytes memory_bytes() const = 0;
};

struct UringSetup {
  int depth = 8;
  // The memory to register (pinned in RAM); empty: none.
  std::span<std::byte> buffers;
  // It is registered in pieces of this size; the kernel takes at most 1 GiB in one. A
  // request across two pieces works as one to memory that is not registered.
  Bytes piece_bytes = kGiB;
};

struct UringBackend {
  std::unique_ptr<IoBackend> backend;
  bool registered = false;
  std::string notice;  // why `buffers` could not be registered; empty when they are
};

// kUnsupported with the errno's text where the system refuses io_uring (ENOSYS, EPERM,
// ...).
Result<UringBackend> make_uring_backend(const UringSetup& setup);

// `threads` threads with stacks of 256 KiB, serving up to `depth` requests. After a
// buffered read its page-cache pages are dropped; after a buffered write they are written
// out first. kIo when a thread cannot be started.
Result<std::unique_ptr<IoBackend>> make_pread_backend(int threads, int depth);

}  // namespace headrace
