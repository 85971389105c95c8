// Block cache: KV of many sequences, in blocks that are shared, leave memory and come back.
//
// Vocabulary
//   block     `block_tokens` positions (a multiple of 64) of ALL layers: one group that is in
//             memory, in the tier, or both, as a whole. Block b of plane l is at
//             pools[l] + b * item_bytes.
//   plane     what one layer (or anything else that a layer keeps of a block) has of every block.
//   place     where a running sequence is in a step: its number in StepRows and its tails (kv.h).
//   device    in memory, in the pools. A block table says where, so that nothing is ever compacted.
//   copy      a block's bytes in the tier, equal to those in memory; with an XXH3 checksum.
//   pinned    used by the step that is open: stays where it is.
//   heat      what is evicted first. Blocks cost and weigh the same, so GreedyDual-Size-Frequency
//             (Cherkasova, HPL-98-69, 1998) comes down to one number: the clock at its last use
//             plus the sequences that ever took it; the clock is the heat of what was evicted last,
//             so that old fame fades. Chosen over ARC and LRU-K because it needs no ghost lists and
//             no history. Blocks without a sequence go first, then those of preempted ones, then
//             the rest; of equals the later positions first, as nothing can use a block without
//             those before it.
//
// Promises
//   1. A step that was reserved has all the blocks it reads and writes. What does not fit is
//      refused with numbers before anything is changed.
//   2. Bytes that come back are those that left: checked, and otherwise kBadFile for the sequences
//      of that block alone. A store that fails leaves the block in memory. So an error loses
//      nothing.
//   3. What shares a block never sees another's writing: a shared block is copied before it is
//      written.
//   4. One group of staging is enough: when none is free the oldest transfer is ended first.
//   5. verify() finds every broken count, slot or table; it shares no bookkeeping with what
//      it checks.
// Owns no KV bytes. Not thread-safe. Allocates for its tables alone, see block_cache_memory().
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "headrace/base/status.h"
#include "headrace/base/types.h"
#include "headrace/ir/kv.h"
#include "headrace/kv/chain_hash.h"
#include "headrace/tier/tier.h"

namespace headrace {

using KvSequence = Id<struct KvSequenceTag>;  // never used twice

struct KvPlane {
  std::span<std::byte> memory;  // [items, item_bytes]
  Bytes item_bytes = 0;
};

struct BlockCacheOptions {
  int64_t block_tokens = 256;
  int32_t device_blocks = 0;
  int32_t places = 1;           // sequences that can be in a step
  int32_t blocks_a_sequence = 1;  // width of StepRows::blocks
  std::vector<KvPlane> pools;   // device_blocks items each
  std::vector<KvPlane> tails;   // `places` items each
  // Page aligned; at least block_cache_staging(). Twice as much: two transfers at once, and so on.
  std::span<std::byte> staging;
  // [tier_offset, tier_offset + block_cache_tier()) of this object of the tier.
  int32_t object = 0;
  Bytes tier_offset = 0;
  int32_t tier_blocks = 0;
  int32_t tier_tails = 0;       // preempted sequences
  // maintain() starts when fewer blocks than `low_free` are free, and evicts until `high_free` are.
  int32_t low_free = 0, high_free = 0;
  ChainHash start;              // chain_start() of the model and format
};
// Bytes of one group of staging, bytes of the tier, and what the tables hold at most (without the
// tables of sequences, 4 bytes a block and 150 a sequence).
Bytes block_cache_staging(const BlockCacheOptions& options);
Bytes block_cache_tier(const BlockCacheOptions& options);
Bytes block_cache_memory(const BlockCacheOptions& options);

// What a step appends to one sequence, and what became of it.
struct KvStepRun {
  KvSequence sequence;
  std::span<const int32_t> tokens;
  Status status = {};  // of reserve(): not ok, then the run is not in the step
  int64_t sound = 0;   // then: positions before the first block that did not come back
};

struct BlockCacheCounts {
  int64_t stores = 0, loads = 0;              // groups, tails included, that went well
  int64_t failed_stores = 0, failed_loads = 0;  // I/O
  int64_t mismatches = 0;                     // checksum
  int64_t copies_on_write = 0, dropped = 0;   // dropped: left memory; discarded: left both
  int64_t discarded = 0, adopted = 0;
};

class BlockCache {
 public:
  // `tier` (may be null: nothing ever leaves memory) and all spans outlive the cache. kUsage for
  // sizes that do not go together.
  static Result<std::unique_ptr<BlockCache>> create(BlockCacheOptions options, Tier* tier);
  ~BlockCache();  // waits for transfers
  BlockCache(const BlockCache&) = delete;
  BlockCache& operator=(const BlockCache&) = delete;

  // A new sequence of no positions; kDoesNotFit when all places are taken.
  Result<KvSequence> open();
  // Lets the longest run of whole blocks that hold `tokens` be the beginning of `sequence`, which
  // is empty, and returns how many positions that are: those alone need not be computed. They may
  // be in the tier, and fail to come back later.
  Result<int64_t> adopt(KvSequence sequence, std::span<const int32_t> tokens);
  // A new sequence with the first `positions` of `parent`, cut as truncate() does. The parent may
  // be preempted: its tail is then loaded. Errors: no place; I/O; kBadFile.
  Result<KvSequence> fork(KvSequence parent, int64_t positions);
  // Keeps the first `positions` where the tail has them, else rounds down to a multiple of 64;
  // returns what is kept.
  Result<int64_t> truncate(KvSequence sequence, int64_t positions);
  Status close(KvSequence sequence);

  // Brings in every block of these sequences, makes those that the step writes, pins them all and
  // fills tokens, sequences, positions and blocks of `rows`. A run whose blocks do not come back
  // gets its status; the others go on. Ok: a
  // step is open, if only of no rows. Not ok: none is. kDoesNotFit with what is
  // missing, or kIo when what had to leave could not be stored.
  Status reserve(std::span<KvStepRun> runs, StepRows* rows);
  // After the step: it has written what reserve() made room for.
  void commit();
  // Instead. `ran`: any of it has run; a run that would have sealed a tile has then overwritten its
  // tail, and its sequence is cut to a multiple of 64.
  void abandon(bool ran);

  // Puts blocks [begin, end) of a sequence into the tier and takes them out of memory, pinned ones
  // excepted. The first error; blocks with one stay.
  Status evict(KvSequence sequence, int64_t begin, int64_t end);
  // Saves the tail, gives the place away, and evicts the blocks that no running sequence has.
  // Returns how many of those are still in memory (the tier is full or failed). An error: still
  // running.
  Result<int64_t> preempt(KvSequence sequence);
  // A place and the tail back; blocks come with prefetch() or reserve().
  Status restore(KvSequence sequence);
  // Starts loads into free blocks as far as staging is free. Returns the blocks that are still to
  // come.
  Result<int64_t> prefetch(KvSequence sequence);
  // Brings block `g` alone into free room, and waits. kUsage: no such block; kDoesNotFit: no room
  // is free; else why it did not come back.
  Status fetch(KvSequence sequence, int64_t g);
  // Ends what has arrived and keeps the reserve of free blocks, without taking any from a sequence
  // that has a place. Call it between steps. Never blocks where the tier has a ticket for each
  // group of staging.
  void maintain();
  // Ends all transfers.
  void settle();

  int64_t length(KvSequence sequence) const;     // -1: not open
  int32_t place(KvSequence sequence) const;      // -1: preempted, or not open
  int64_t free_blocks() const { return static_cast<int64_t>(free_device_.size()); }
  int64_t free_tier_blocks() const { return static_cast<int64_t>(free_copies_.size()); }
  // Where block `g` of the sequence is: -1 not in memory, or no such block.
  int32_t device_block(KvSequence sequence, int64_t g) const;
  // The hash of what positions [0, (g + 1) * block_tokens) hold; invalid while the block is not
  // whole.
  ChainHash block_hash(KvSequence sequence, int64_t g) const;
  const BlockCacheCounts& counts() const { return counts_; }
  // Ok, or the first thing that is not as it must be. Slow: for tests.
  Status verify() const;

 private:
  struct Block {
    int32_t refs = 0;    // sequences
    int32_t pins = 0;    // runs of the open step
    int32_t device = -1, copy = -1, move = -1;
    int32_t index = 0;   // which block of its sequences
    int32_t filled = 0;  // tokens sealed
    int64_t heat = 0, uses = 0;
    uint64_t checksum = 0;  // of the copy
    ChainHash hash;         // once whole
    Status error;           // of the last load
    bool used = false, ready = false;  // ready: the bytes at `device` are there
  };
  struct Sequence {
    int32_t place = -1, tail_copy = -1;
    int64_t length = 0;
    uint64_t tail_checksum = 0;
    bool in_step = false;
    std::vector<int32_t> blocks;
    std::vector<int32_t> tail;  // tokens
  };
  struct Move {  // one group of staging
    int32_t block = -1;
    bool busy = false, store = false, drop = false;
    uint64_t order = 0;
    Ticket ticket;
  };
  struct StepRun {
    int32_t sequence = -1;
    std::vector<int32_t> tokens;
  };

  BlockCache(BlockCacheOptions options, Tier* tier);
  Result<Sequence*> find(KvSequence id);
  const Sequence* look(KvSequence id) const;
  Result<int32_t> take_place();
  int64_t kept(const Sequence& s, int64_t positions) const;
  void cut(Sequence& s, int64_t positions);
  int64_t blocks_of(int64_t sealed) const;
  std::span<int32_t> tokens_of(int32_t block);
  std::span<const int32_t> tokens_of(int32_t block) const;

  // Blocks (block_cache.cc).
  int32_t make_block(int64_t index);
  void reference(int32_t block);
  void unreference(int32_t block);
  void destroy(int32_t block);
  void drop(int32_t block);
  void forget_copy(int32_t block);
  void unindex(int32_t block);
  void touch(Block& b) { b.heat = clock_ + b.uses; }
  std::vector<int32_t> coldest(const std::vector<char>& spared, bool running_too) const;
  // Steps (block_cache_step.cc).
  Status check_step(std::span<KvStepRun> runs);
  int64_t fresh_blocks(const Sequence& s, int64_t rows) const;
  Status make_room(int64_t blocks, const std::vector<char>& spared);
  void bring(const std::vector<int32_t>& blocks);
  void make_writable(Sequence& s, int64_t rows);
  void add_rows(int32_t id, const Sequence& s, std::span<const int32_t> tokens, StepRows* rows);
  void append(Sequence& s, std::span<const int32_t> tokens);
  // Moves (block_cache_moves.cc).
  int32_t take_move(bool may_wait);
  std::span<std::byte> staging(int32_t move) const;
  Status start_store(int32_t block, bool drop, bool may_wait);
  Status start_load(int32_t block, bool may_wait);
  Status finish(int32_t move);
  Status take_copy_slot(int32_t* slot);
  Status store_tail(Sequence& s);
  Status load_tail(const Sequence& s, int32_t place);
  void poll();

  const BlockCacheOptions options_;
  Tier* const tier_;
  const Bytes group_bytes_, tail_bytes_;
  std::vector<Block> blocks_;           // device_blocks + tier_blocks
  std::vector<int32_t> block_tokens_;   // [blocks, block_tokens]
  std::vector<int32_t> free_blocks_, free_device_, free_copies_, free_tails_;
  std::vector<char> place_taken_;
  std::vector<Move> moves_;
  std::map<int32_t, Sequence> sequences_;
  std::map<ChainHash, int32_t> index_;
  std::vector<StepRun> step_;
  bool step_open_ = false;
  bool refilling_ = false;  // between the water marks, on the way up
  int32_t next_sequence_ = 0;
  uint64_t next_order_ = 1;
  int64_t clock_ = 0;
  BlockCacheCounts counts_;
};

}  // namespace headrace
