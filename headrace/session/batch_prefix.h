// BatchPrefix: blocks of a BatchSession go to a prefix store, and come from there in the next run.
//
// Promises as session/prefix.h: bit-equal, never waited for but in flush(), only where it is
// predicted to be faster than computing. A block is an entry: entries of 256 tokens that
// SessionPrefix wrote are found, and the other way round. Shorter entries (ends of texts) are left
// to SessionPrefix.
#pragma once

#include <map>
#include <memory>

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
  // `tokens` that the store has, but never the last token. Returns positions held now. kDoesNotFit:
  // no blocks free (the sequence keeps what it has).
  Result<int64_t> restore(KvSequence sequence, std::span<const int32_t> tokens);
  // Hands on blocks of `sequence` that have become whole since the last call for it. `tokens`: all
  // of them so far. `seconds_per_token`: what computing costs.
  Status keep(KvSequence sequence, std::span<const int32_t> tokens, double seconds_per_token);
  void forget(KvSequence sequence);  // it is closed
  Status flush() { return store_->flush(); }
  PrefixStats stats() const { return store_->stats(); }

 private:
  BatchPrefix(BatchSession& session, std::unique_ptr<PrefixStore> store);
  struct Kept {
    ChainHash parent;
    int64_t blocks = 0;
  };
  BatchSession& session_;
  std::unique_ptr<PrefixStore> store_;
  std::map<KvSequence, Kept> kept_;
};

}  // namespace headrace
