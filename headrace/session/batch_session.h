// BatchSession: a running model that many sequences share. Each step is one pass over the weights.
//
// Promises
//   1. Logits of a row depend on its sequence's tokens alone: not on who else is in the step, on
//      the budget, on preemption, on how a prompt is cut into steps, or on where blocks have been.
//      They are those of a Session with the same KV format, bit for bit.
//   2. A step that fails changes nothing that cannot be had again: each of its sequences keeps what
//      it had before, but for one whose tokens would have completed a tile: that one goes back to
//      the last multiple of 64. length() says which it is; after recover() all goes on from there.
//   3. Blocks are reserved before a step runs; what does not fit is refused with numbers,
//      unchanged.
// Not thread-safe.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "headrace/kv/block_cache.h"
#include "headrace/run/executor.h"
#include "headrace/session/batch_plan.h"
#include "headrace/session/session.h"
#include "headrace/tier/file_tier.h"

namespace headrace {

class BatchSession {
 public:
  // Allocates what the plan reserved. `model` and `cancel` (may be null) are borrowed; the wraps
  // put something around the tier that weights come from (again after each recover()), or that
  // blocks go to: faults, links.
  static Result<std::unique_ptr<BatchSession>> start(const Model& model, BatchPlan plan,
                                                     const std::atomic<bool>* cancel = nullptr,
                                                     const WrapTier& wrap_weights = nullptr,
                                                     const WrapTier& wrap_blocks = nullptr);
  ~BatchSession();

  // What one sequence appends in a step.
  struct Part {
    KvSequence sequence;
    std::span<const int32_t> tokens;
    int64_t outputs = 0;  // logits are wanted of the last so many of them
    // Set by step(). Not ok: this part was left out, as its blocks did not come back from the disk
    // (kIo, kBadFile); `sound` positions of the sequence are still known, truncate() to that.
    Status status = {};
    int64_t sound = 0;
  };
  // One pass for all parts. Logits [sum of outputs of the parts that are ok, vocab], in their
  // order; valid until the next step. kUsage (nothing changed): more rows or outputs than planned,
  // a token outside the vocabulary, a context that is full, a sequence twice, preempted or not
  // open. kDoesNotFit (nothing changed): blocks are missing. kIo (nothing changed, failed() is
  // false): what had to leave memory could not be stored. Others, and kIo with failed(): promise 2;
  // then everything but step() may be called until recover() is ok.
  Result<std::span<const float>> step(std::span<Part> parts);
  // After a failed step: reopens the weights, begins anew from an empty ring. KV stays. Errors:
  // those of check_files() and of opening; it may be called again then.
  Status recover();
  // A step has failed, and recover() has not been ok since.
  bool failed() const { return executor_ == nullptr || !executor_->failed().ok(); }

  // Sequences: as BlockCache.
  Result<KvSequence> open() { return cache_->open(); }
  Result<int64_t> adopt(KvSequence s, std::span<const int32_t> tokens) {
    return cache_->adopt(s, tokens);
  }
  Result<KvSequence> fork(KvSequence s, int64_t positions) { return cache_->fork(s, positions); }
  Result<int64_t> truncate(KvSequence s, int64_t positions) {
    return cache_->truncate(s, positions);
  }
  Status close(KvSequence s) { return cache_->close(s); }
  Result<int64_t> preempt(KvSequence s) { return cache_->preempt(s); }
  Status resume(KvSequence s) { return cache_->restore(s); }
  // Starts bringing blocks of a resumed sequence back; returns how many are still to come.
  Result<int64_t> prefetch(KvSequence s) { return cache_->prefetch(s); }
  int64_t length(KvSequence s) const { return cache_->length(s); }

  // The whole block `g` of a sequence, all layers, [block_bytes]: for a prefix store. kUsage when
  // it is not whole, kDoesNotFit when there is no room for it in memory now; else why it did not
  // come back from the disk.
  Status read_block(KvSequence s, int64_t g, std::span<std::byte> out);
  // One layer's part of it, [tiles, kv_tile_bytes].
  Status read_block(KvSequence s, int64_t g, int64_t layer, std::span<std::byte> out);
  // Appends a whole block to a sequence of whole blocks, as a step with these tokens would have.
  // `fill` is called once and writes all of it: part(layer) is where [tiles, kv_tile_bytes] of one
  // layer go. An error of it is returned, and nothing has changed. kUsage: not a block, not whole
  // blocks before it, or the context has no room; kDoesNotFit: no block is free.
  using BlockPart = std::function<std::span<std::byte>(int64_t layer)>;
  Status append_block(KvSequence s, std::span<const int32_t> tokens,
                      const std::function<Status(const BlockPart& part)>& fill);

  const BatchPlan& plan() const { return plan_; }
  const BlockCache& cache() const { return *cache_; }
  const Executor::Moved& moved() const { return moved_; }  // of all steps, recoveries included
  // Of the tier that weights come from, as it was opened last.
  const TierDescription& tier() const { return described_; }
  // kIo when a model file was changed while the session ran.
  Status check_files() const;
  // The last step was as all to come: one of the plan's Program, which the first one, and the first
  // after recover(), are not (they load what stays).
  bool steady() const;
  // The last step's. Precondition: there was one.
  const Trace& last_trace() const { return trace_; }
  const Program& last_program() const { return *last_program_; }

 private:
  BatchSession(const Model& model, BatchPlan plan, const std::atomic<bool>* cancel);
  Status open_weights_tier();
  Status open_cache(const WrapTier& wrap);
  Status begin();
  Result<Prepared*> prepared();
  Status check(std::span<const Part> parts) const;
  Status run();
  std::span<std::byte> pool(int64_t layer, int32_t block) const;

  const Model& model_;
  BatchPlan plan_;
  const std::atomic<bool>* cancel_;
  WrapTier wrap_weights_;
  std::unique_ptr<Arena> arena_;
  std::unique_ptr<Arena> staging_;       // null: nothing leaves memory
  std::unique_ptr<Tier> weights_;
  FileTier* files_ = nullptr;            // inside weights_
  TierDescription described_;
  std::unique_ptr<Tier> blocks_tier_;
  std::unique_ptr<ThreadPool> pool_;
  std::unique_ptr<Executor> executor_;
  PreparedPtr bridge_, step_;            // the first step, all others
  Prepared* last_ = nullptr;             // since the weights were opened
  const Program* last_program_ = nullptr;
  std::unique_ptr<BlockCache> cache_;
  std::vector<KvPlane> planes_;          // pools, by layer
  std::vector<KvStepRun> runs_;
  StepRows rows_;
  Executor::Moved moved_, moved_before_;  // before: the last recovery
  Trace trace_;
};

}  // namespace headrace
