// BatchSession: a running model that many sequences share. Each step is one pass over the weights.
//
// Promises
//   1. Logits of a row depend on its sequence's tokens alone: not on who else is in the step, on the
//      budget, on preemption, on how a prompt is cut into steps, or on where blocks have been. They are
//      those of a Session with the same KV format, bit for bit.
//   2. A step that fails changes nothing that cannot be had again: its sequences keep what they had
//      before it (down to a multiple of 64 where the step has run), and after recover() all goes on.
//   3. Blocks are reserved before a step runs; what does not fit is refused with numbers, unchanged.
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
  // Allocates what the plan reserved. `model` and `cancel` (may be null) are borrowed; the wraps put
  // something around the tier that weights come from, or that blocks go to (faults, links).
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
    // Set by step(): not ok: this part was left out, as its blocks did not come back from the disk
    // (kIo, kBadFile); `sound` positions of the sequence are still known, truncate() to that.
    Status status = {};
    int64_t sound = 0;
  };
  // One pass for all parts. Logits [sum of outputs of the parts that are ok, vocab], in their order; valid
  // until the next step. kUsage (nothing changed): more rows or outputs than planned, a token outside the
  // vocabulary, a context that is full, a sequence twice. kDoesNotFit (nothing changed): blocks are
  // missing. Others: a failed step, see promise 2; then only recover(), truncate(), preempt() and
  // close() are meaningful until recover() is ok.
  Result<std::span<const float>> step(std::span<Part> parts);
  // After a failed step: reopens the weights, begins anew from an empty ring. KV stays.
  Status recover();
  bool failed() const;

  // Sequences: as BlockCache.
  Result<KvSequence> open() { return cache_->open(); }
  Result<int64_t> adopt(KvSequence s, std::span<const int32_t> tokens) { return cache_->adopt(s, tokens); }
  Result<KvSequence> fork(KvSequence s, int64_t positions) { return cache_->fork(s, positions); }
  Result<int64_t> truncate(KvSequence s, int64_t positions) { return cache_->truncate(s, positions); }
  Status close(KvSequence s) { return cache_->close(s); }
  Result<int64_t> preempt(KvSequence s) { return cache_->preempt(s); }
  Status resume(KvSequence s) { return cache_->restore(s); }
  int64_t length(KvSequence s) const { return cache_->length(s); }

  // The whole block `g` of a sequence, all layers, [block_bytes]: for a prefix store. kUsage when it
  // is not whole, kDoesNotFit when it cannot be brought into memory now.
  Status read_block(KvSequence s, int64_t g, std::span<std::byte> out);
  // Appends a whole block to a sequence of whole blocks, as a step with these tokens would have.
  // `fill` writes one layer's part ([tiles, kv_tile_bytes]) of it.
  Status append_block(KvSequence s, std::span<const int32_t> tokens,
                      const std::function<Status(int64_t layer, std::span<std::byte> out)>& fill);

  const BatchPlan& plan() const { return plan_; }
  const BlockCache& cache() const { return *cache_; }
  const Executor::Moved& moved() const { return moved_; }  // of all steps, recoveries included
  const TierDescription& tier() const { return tier_->describe(); }
  Status check_files() const { return tier_->check_unchanged(); }
  // The last step's. Precondition: there was one.
  const Trace& last_trace() const { return trace_; }
  const Program& last_program() const;

 private:
  BatchSession(const Model& model, BatchPlan plan, const std::atomic<bool>* cancel);

  const Model& model_;
  BatchPlan plan_;
  const std::atomic<bool>* cancel_;
  std::unique_ptr<Arena> arena_;
  std::unique_ptr<FileTier> tier_;
  std::unique_ptr<Tier> blocks_tier_;
  std::unique_ptr<ThreadPool> pool_;
  std::unique_ptr<Executor> executor_;
  std::unique_ptr<BlockCache> cache_;
  Executor::Moved moved_;
  Trace trace_;
};

}  // namespace headrace
