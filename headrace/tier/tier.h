// Tier: a level of the memory hierarchy that bytes are loaded from and stored to,
// asynchronously.
//
// Vocabulary: an object is one named range of a tier (a file, a pool); a TierExtent is a
// range of an object; a ticket is the promise of one transfer. The device side of a
// transfer is always a range of the Arena. A tier moves bytes and takes no decision.
//
// Promises (each is a test of the conformance suite, tests/conformance/)
//   1. load / store return at once; the bytes may move at any time until wait() of the
//      ticket.
//   2. After wait() is ok, every byte has arrived: a short transfer is continued, never
//      reported as success. Otherwise the Status names the object, the offset and the
//      errno.
//   3. Transfers of different tickets may complete in any order.
//   4. EINTR and EAGAIN are retried; EIO and end-of-file are errors of that ticket alone.
//   5. Nothing is allocated between construction and destruction beyond what describe()
//      states.
//   6. The destructor waits for every transfer in flight: no write arrives in freed
//      memory. Stores are completed; what a load has not yet asked of the system may be
//      dropped.
//   7. A tier has a fixed number of slots for tickets not waited for. When all are taken,
//      the next load or store first ends the oldest transfer; if that failed, it returns
//      that Status and starts nothing. So not waiting can neither deadlock nor hide a
//      failure.
// Not thread-safe: one thread submits and waits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "headrace/base/status.h"
#include "headrace/base/types.h"

namespace headrace {

struct TierExtent {
  int32_t object = 0;
  Bytes offset = 0;
  Bytes bytes = 0;
};

struct Ticket {
  uint64_t value = 0;  // 0: nothing to wait for
};

struct TierDescription {
  std::string kind;     // "file", "host", "remote", "emulated"
  std::string method;   // for people: "io_uring + O_DIRECT", "pread pool (tmpfs)", ...
  Bytes alignment = 1;  // offset, size and device address must be multiples of this
  // What the tier itself holds in RAM (queues, bounce buffers, stacks).
  Bytes memory_bytes = 0;
  std::string notice;  // a fallback to say aloud once; empty when all is as wished
};

// Counts since construction. Bytes are those asked of the system, rounding included.
struct TierCounters {
  int64_t loads = 0, stores = 0;
  Bytes loaded_bytes = 0, stored_bytes = 0;
};

class Tier {
 public:
  virtual ~Tier() = default;

  virtual const TierDescription& describe() const = 0;
  virtual TierCounters counters() const = 0;

  // Starts copying `from` to `to` (same size). `to` must stay untouched until wait().
  virtual Result<Ticket> load(const TierExtent& from, std::span<std::byte> to) = 0;
  // Starts copying `from` to `to`. kUnsupported for a read-only object.
  virtual Result<Ticket> store(std::span<const std::byte> from, const TierExtent& to) = 0;

  // Pushes submitted transfers to the system and reaps finished ones, without blocking.
  // Called between ops, so that queues stay full while the compute thread is busy.
  virtual void poll() = 0;
  // True once wait() would not block. Never blocks.
  virtual bool done(Ticket ticket) = 0;
  // Blocks until the transfer has ended; ok, or why it failed. A ticket is waited for
  // once.
  virtual Status wait(Ticket ticket) = 0;
};

}  // namespace headrace
