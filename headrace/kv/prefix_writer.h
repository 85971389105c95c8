// Writes the entries of a prefix store behind the run that makes them.
//
// Promises
//   1. give() never waits for the disk: what the staging bytes have no room for is dropped and
//      counted.
//   2. An entry is under its name whole and synced, or not at all. Its parent was there when it was
//      written.
//   3. When the disk refuses (full, read-only, broken), what was half written is removed, stopped()
//      says why, and kRefusalPause entries are dropped before one is tried; with the first that can
//      be written writing goes on.
// Its thread has a stack of 256 KiB and runs one job at a time.
#pragma once

#include <condition_variable>
#include <deque>
#include <mutex>
#include <optional>
#include <string>

#include "headrace/kv/prefix_index.h"

namespace headrace {

// Dropping costs nothing; trying, a copy of an entry and what little room a full disk has left. An
// entry is offered for each 256 tokens that are computed: this is 2048 of them.
constexpr int64_t kRefusalPause = 8;

struct PrefixWriterOptions {
  std::string folder;
  Bytes limit_bytes = 0;    // of all entries in the folder; 0: none
  Bytes staging_bytes = 0;  // of entries that wait or are being written
  ChainHash root;           // the parent of entries without one
};

struct PrefixWritten {
  int64_t entries = 0;
  Bytes bytes = 0;
  int64_t dropped = 0;  // no room in staging or in the folder, no parent, or the disk refuses
  int64_t evicted = 0;
  Bytes evicted_bytes = 0;
};

class PrefixWriter {
 public:
  explicit PrefixWriter(PrefixWriterOptions options) : options_(std::move(options)) {}
  PrefixWriter(const PrefixWriter&) = delete;
  ~PrefixWriter();  // writes what waits, then ends the thread

  // Begins. kIo when there is no thread.
  Status start();
  // Instead: everything is dropped, for this reason.
  void stop(std::string reason);

  // Memory for an entry's file; empty when there is no room: then the entry has been dropped.
  PageBytes take(Bytes file_bytes);
  // Gives such memory back.
  void put_back(PageBytes memory, Bytes file_bytes);
  // Queues it: the payload is in its place, the header's checksums, age and priority not yet made.
  void give(PrefixHeader header, PageBytes memory);
  bool queued(ChainHash hash) const;
  // Waits until what was given is written or dropped.
  void flush();

  std::string stopped() const;  // empty while writing goes on
  PrefixWritten written() const;

 private:
  struct Job {
    PrefixHeader header;
    PageBytes memory;
  };
  static void* body(void* self);
  void work();
  // Whether the entry is there now; false: dropped.
  Result<bool> write(Job& job);
  Result<bool> make_room(const PrefixHeader& header);
  Status recount();

  const PrefixWriterOptions options_;
  // Of the thread alone.
  PrefixUsage there_;
  Bytes since_count_ = 0;  // bytes written since there_ was counted

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Job> jobs_;  // the first one is being written
  Bytes staged_ = 0;
  bool ending_ = false;
  std::string stopped_;
  int64_t pause_ = 0;  // entries to be dropped before one is tried
  PrefixWritten written_;
  std::optional<pthread_t> thread_;
};

}  // namespace headrace
