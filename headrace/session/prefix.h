// SessionPrefix: what a session computes of a long text goes to a prefix store, and comes from
// there the next time.
//
// Promises
//   1. A restored session gives the same logits, bit for bit, as one that computed everything.
//   2. The store is never waited for but in finish(), and what it cannot take or give is computed.
//   3. Restores only what is predicted to be faster read than computed.
//   4. A session may go back and on another way between calls: entries are of the tokens that it
//      holds now.
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
// What the store and its buffers take beside the session: to be kept back when the session is
// planned (SessionOptions::beside_bytes).
Bytes prefix_memory(const Model& model, KvFormat format);

// The store of this model's KV in this format. `salt` keeps apart what was computed otherwise.
// Errors: model_fingerprint, PrefixStore::open.
Result<std::unique_ptr<PrefixStore>> open_prefix_store(const Model& model, KvFormat format,
                                                       const PrefixSettings& settings,
                                                       uint64_t salt = 0);

// All tokens of the conversation that this name was saved for in a prefix store's folder; none
// where there is no such name. kUsage: what no name can be; kUnsupported: another model's;
// kBadFile, kIo.
Result<std::vector<int32_t>> load_conversation(const Model& model, const std::string& folder,
                                               const std::string& name);

class SessionPrefix {
 public:
  // Borrows the session. Errors: model_fingerprint, PrefixStore::open.
  static Result<std::unique_ptr<SessionPrefix>> open(const Model& model, Session& session,
                                                     const PrefixSettings& settings);

  // Brings the longest known beginning of `tokens`, but for the last token and what the context has
  // no room for, into the session, which is at position 0; returns how many positions that are.
  Result<int64_t> restore(std::span<const int32_t> tokens);
  // Hands on what the session has sealed of `tokens`, those it holds, since the last call. To be
  // called after each step: a layer with a window keeps its past for a while only, and what entries
  // save is measured by what steps take.
  Status keep(std::span<const int32_t> tokens);
  // The same for the end of a text, down to 64 tokens, and waits until all is written.
  Status finish(std::span<const int32_t> tokens);

  // Saves all of `tokens` under a name, in place of what had it, completely or not at all. kUsage,
  // kIo.
  Status save(const std::string& name, std::span<const int32_t> tokens) {
    return store_->save_name(name, tokens);
  }

  PrefixStats stats() const { return store_->stats(); }

 private:
  SessionPrefix(Session& session, std::unique_ptr<PrefixStore> store)
      : session_(session), store_(std::move(store)) {}
  // Position of the next whole entry.
  int64_t next() const { return static_cast<int64_t>(chain_.size()) * kChainTokens; }
  // Positions of `tokens` that the session holds in sealed tiles.
  int64_t sealed_of(std::span<const int32_t> tokens) const {
    return round_down(std::min(session_.position(), static_cast<int64_t>(tokens.size())), kKvTile);
  }
  // Forgets entries that `tokens` do not begin with.
  void follow(std::span<const int32_t> tokens);
  // Counts the step that was taken since the last call.
  void count_step();
  // An entry of `count` tokens at next(). False: the store did not take it.
  Result<bool> put(std::span<const int32_t> tokens, int64_t count);
  Status write_entry(const PrefixEntry& entry);

  Session& session_;
  std::unique_ptr<PrefixStore> store_;
  std::vector<ChainHash> chain_;  // of the whole entries that were handed on or restored
  bool lost_ = false;             // what the next entry needs is gone
  // What a step took: of steps of several rows, of decode steps where there were no others.
  int64_t counted_ = 0;  // position that was reached by then
  bool several_rows_ = false;
  Nanos step_ns_ = 0;
  int64_t step_tokens_ = 0;
};

}  // namespace headrace
