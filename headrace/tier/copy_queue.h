// CopyQueue: copies between two places of memory, in the background, first come first
// served.
//
// Copy number n (1, 2, ...) is finished when all before it are, so one counter says what
// is done. With a worker the copies run on a thread of the queue; without one they run in
// poll() (a piece at a time) and wait(), on the caller's thread.
//
// Promises
//   1. Nothing is allocated after create().
//   2. The destructor finishes every copy pushed.
// Not thread-safe: one thread pushes and waits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "headrace/base/status.h"
#include "headrace/base/types.h"

namespace headrace {

class CopyQueue {
 public:
  // A queue of `capacity` >= 1 unfinished copies. kIo when the worker cannot be started.
  static Result<std::unique_ptr<CopyQueue>> create(int capacity, bool worker);
  ~CopyQueue();
  CopyQueue(const CopyQueue&) = delete;
  CopyQueue& operator=(const CopyQueue&) = delete;

  // Queues a copy of `bytes` bytes (the ranges must not overlap) and returns its number.
  // When the queue is full it waits for the oldest copy.
  uint64_t push(std::byte* to, const std::byte* from, Bytes bytes);
  // Without a worker: copies up to 256 KiB. Never blocks.
  void poll();
  // True when copy `number` and all before it are finished. Never blocks.
  bool done(uint64_t number) const;
  // Blocks until done(number).
  void wait(uint64_t number);
  Bytes memory_bytes() const;

 private:
  struct State;
  explicit CopyQueue(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace headrace
