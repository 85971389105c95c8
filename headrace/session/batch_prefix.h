// BatchPrefix: blocks of a BatchSession go to a prefix store, and come from there in the next run.
//
// Promises as session/prefix.h: bit-equal, never waited for but in flush(), only where it is
// predicted to be faster than computing. A block is an entry: entries of 256 tokens that
// SessionPrefix wrote are found, and the other way round. Shorter entries (ends of texts) are left
// to SessionPrefix.
#pragma once

#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "headrace/kv/prefix_store.h"
#include "headrace/session/batch_session.h"
#include "headrace/session/prefix.h"

namespace headrace {

class BatchPrefix {
 public:
  // Borrows the session. kUsage when its blocks are not 256 tokens; errors of PrefixStore::open.
  static Result<std::unique_ptr<BatchPrefix>> open(const Model& model, BatchSession& session,
                                                   const PrefixSettings& settings);

  // Appends to `sequence` (whole blocks, which hold the beginning of `tokens`) those blocks of
  // `tokens` that the store has, but never the last token, where that pays. Returns positions held
  // now. What cannot be read, or has no block free, ends it. kUsage: not whole blocks.
  Result<int64_t> restore(KvSequence sequence, std::span<const int32_t> tokens);
  // The same block by block, so that steps may be taken in between. look_up() says how many blocks
  // there are to bring, restore_next() brings one and says how many there are then (0, too, where
  // what is next cannot be had). Errors as restore().
  Result<int64_t> look_up(KvSequence sequence, std::span<const int32_t> tokens);
  int64_t restore_next(KvSequence sequence, std::span<const int32_t> tokens);
  // Hands on blocks of `sequence` that have become whole since the last call for it. `tokens`: all
  // of them so far, those that the sequence holds first. `seconds_per_token`: what computing costs.
  // What the store has no room for now is tried again by the next call.
  Status keep(KvSequence sequence, std::span<const int32_t> tokens, double seconds_per_token);
  void forget(KvSequence sequence) {  // it is closed
    kept_.erase(sequence.value);
    found_.erase(sequence.value);
  }
  // Waits until all is written. kIo: the disk has refused; says why.
  Status flush() { return store_->flush(); }
  PrefixStats stats() const { return store_->stats(); }

 private:
  BatchPrefix(BatchSession& session, std::unique_ptr<PrefixStore> store)
      : session_(session), store_(std::move(store)) {}

  BatchSession& session_;
  std::unique_ptr<PrefixStore> store_;
  // By sequence: chain hashes of the blocks that were handed on, or restored.
  std::map<int32_t, std::vector<ChainHash>> kept_;
  // By sequence: what look_up() has found and is not restored, the last first.
  std::map<int32_t, std::vector<PrefixEntry>> found_;
};

}  // namespace headrace
