// SessionPrefix: what a session computes of a long text goes to a prefix store, and comes from there
// the next time.
//
// Promises
//   1. A restored session gives the same logits, bit for bit, as one that computed everything.
//   2. The store is never waited for but in finish(), and what it cannot take or give is computed.
//   3. Restores only what is predicted to be faster read than computed.
// Not thread-safe, but for the store itself.
#pragma once

#include <algorithm>
#include <memory>
#include <span>
#include <string>

#include "headrace/kv/prefix_store.h"
#include "headrace/session/session.h"

namespace headrace {

struct PrefixSettings {
  std::string folder;
  std::string label;      // of the model, for people
  Bytes limit_bytes = 0;  // of the folder; 0: none
};
// What the store and its buffers take beside the session: to be kept back when the session is planned
// (SessionOptions::beside_bytes).
Bytes prefix_memory(const Model& model, KvFormat format);

class SessionPrefix {
 public:
  // Borrows the session. Errors: model_fingerprint, PrefixStore::open.
  static Result<std::unique_ptr<SessionPrefix>> open(const Model& model, Session& session,
                                                     const PrefixSettings& settings);

  // Brings the longest known beginning of `tokens`, but for the last token, into the session, which is
  // at position 0; returns how many positions that are.
  Result<int64_t> restore(std::span<const int32_t> tokens);
  // Hands on what the session has sealed of `tokens`, those it holds, since the last call. To be
  // called after each step: a layer with a window keeps its past for a while only.
  Status keep(std::span<const int32_t> tokens);
  // The same for the end of a text, down to 64 tokens, and waits until all is written.
  Status finish(std::span<const int32_t> tokens);

  PrefixStats stats() const { return store_->stats(); }

 private:
  SessionPrefix(Session& session, std::unique_ptr<PrefixStore> store)
      : session_(session), store_(std::move(store)), parent_(store_->root()) {}
  // Positions of `tokens` that the session holds in sealed tiles.
  int64_t sealed_of(std::span<const int32_t> tokens) const {
    return round_down(std::min(session_.position(), static_cast<int64_t>(tokens.size())), kKvTile);
  }
  // An entry of `count` tokens at next_. False: the store did not take it.
  Result<bool> put(std::span<const int32_t> tokens, int64_t count);
  Status write_entry(const PrefixEntry& entry);

  Session& session_;
  std::unique_ptr<PrefixStore> store_;
  ChainHash parent_;       // of the entry at next_
  int64_t next_ = 0;       // position of the next whole entry
  bool lost_ = false;      // what the next entry needs is gone
  Nanos since_ = 0;        // when position `from_` was reached
  int64_t from_ = 0;
};

}  // namespace headrace
