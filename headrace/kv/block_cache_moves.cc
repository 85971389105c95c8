// Block cache: transfers between memory and the tier, through staging.
#define XXH_INLINE_ALL  // no library to map: what is mapped counts against small budgets
#include <xxhash.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "headrace/kv/block_cache.h"

namespace headrace {
namespace {

uint64_t sum_of(std::span<const std::byte> group) {
  return XXH3_64bits(group.data(), group.size());
}

// Item `item` of every plane, one after another; zeros up to the end of the group.
void gather(const std::vector<KvPlane>& planes, int64_t item, std::span<std::byte> group) {
  size_t at = 0;
  for (const KvPlane& p : planes) {
    const auto bytes = static_cast<size_t>(p.item_bytes);
    std::memcpy(group.data() + at, p.memory.data() + item * p.item_bytes, bytes);
    at += bytes;
  }
  std::memset(group.data() + at, 0, group.size() - at);
}

void scatter(std::span<const std::byte> group, const std::vector<KvPlane>& planes, int64_t item) {
  size_t at = 0;
  for (const KvPlane& p : planes) {
    const auto bytes = static_cast<size_t>(p.item_bytes);
    std::memcpy(p.memory.data() + item * p.item_bytes, group.data() + at, bytes);
    at += bytes;
  }
}

}  // namespace

std::span<std::byte> BlockCache::staging(int32_t move) const {
  const auto bytes = static_cast<size_t>(block_cache_staging(options_));
  return options_.staging.subspan(static_cast<size_t>(move) * bytes, bytes);
}

// A group of staging that no transfer uses, -1 when there is none and it may not wait.
int32_t BlockCache::take_move(bool may_wait) {
  const auto is_free = [](const Move& m) { return !m.busy; };
  auto it = std::find_if(moves_.begin(), moves_.end(), is_free);
  if (it == moves_.end() && !may_wait) return -1;
  if (it == moves_.end()) {
    it = std::min_element(moves_.begin(), moves_.end(),
                          [](const Move& a, const Move& b) { return a.order < b.order; });
    (void)finish(static_cast<int32_t>(it - moves_.begin()));  // counted, and kept in the block
  }
  return static_cast<int32_t>(it - moves_.begin());
}

// A free block of the tier, else the coldest that no sequence has.
Status BlockCache::take_copy_slot(int32_t* slot) {
  if (free_copies_.empty()) {
    int32_t victim = -1;
    for (size_t i = 0; i < blocks_.size(); ++i) {
      const Block& b = blocks_[i];
      if (b.copy < 0 || b.refs > 0 || b.move >= 0) continue;
      if (victim < 0 || b.heat < blocks_[static_cast<size_t>(victim)].heat)
        victim = static_cast<int32_t>(i);
    }
    if (victim < 0)
      return error(Code::kDoesNotFit, "the tier is full: all its %d blocks are in use",
                   options_.tier_blocks);
    if (blocks_[static_cast<size_t>(victim)].device >= 0) forget_copy(victim);
    else destroy(victim);
  }
  *slot = free_copies_.back();
  free_copies_.pop_back();
  return {};
}

// Starts saving a block in memory; it leaves memory once saved if `drop`. Nothing to do when it has
// a copy, but to drop it.
Status BlockCache::start_store(int32_t id, bool drop_it, bool may_wait) {
  Block& b = blocks_[static_cast<size_t>(id)];
  if (b.move >= 0) {
    moves_[static_cast<size_t>(b.move)].drop |= drop_it;
    return {};
  }
  if (b.copy >= 0) {
    if (drop_it) drop(id);
    return {};
  }
  const int32_t move = take_move(may_wait);
  if (move < 0) return {};
  int32_t slot = -1;
  HR_TRY(take_copy_slot(&slot));
  const auto group = staging(move).first(static_cast<size_t>(group_bytes_));
  gather(options_.pools, b.device, group);
  const TierExtent to{options_.object, options_.tier_offset + slot * group_bytes_, group_bytes_};
  auto ticket = tier_->store(group, to);
  if (!ticket.ok()) {
    free_copies_.push_back(slot);
    ++counts_.failed_stores;
    return ticket.status().within(text_of("block %d", id));
  }
  b.copy = slot;
  b.checksum = sum_of(group);
  b.move = move;
  moves_[static_cast<size_t>(move)] = {id, true, true, drop_it, next_order_++, *ticket};
  return {};
}

// Starts bringing a block back; a block of memory is free. What fails is told by Block::error.
Status BlockCache::start_load(int32_t id, bool may_wait) {
  Block& b = blocks_[static_cast<size_t>(id)];
  if (b.ready || b.move >= 0) return {};
  const int32_t move = take_move(may_wait);
  if (move < 0) return {};
  HR_CHECK(b.copy >= 0 && !free_device_.empty(), "a block that can come back");
  const auto group = staging(move).first(static_cast<size_t>(group_bytes_));
  const TierExtent from{options_.object, options_.tier_offset + b.copy * group_bytes_,
                        group_bytes_};
  b.error = {};
  auto ticket = tier_->load(from, group);
  if (!ticket.ok()) {
    ++counts_.failed_loads;
    return b.error = ticket.status().within(text_of("block %d", id));
  }
  b.device = free_device_.back();
  free_device_.pop_back();
  b.move = move;
  moves_[static_cast<size_t>(move)] = {id, true, false, false, next_order_++, *ticket};
  return {};
}

// Waits for a transfer and does what follows from it.
Status BlockCache::finish(int32_t at) {
  const Move move = std::exchange(moves_[static_cast<size_t>(at)], Move());
  if (!move.busy) return {};
  Status status = tier_->wait(move.ticket).within(text_of("block %d", move.block));
  Block& b = blocks_[static_cast<size_t>(move.block)];
  b.move = -1;
  if (move.store) {
    ++(status.ok() ? counts_.stores : counts_.failed_stores);
    if (!status.ok()) forget_copy(move.block);
    else if (move.drop && b.pins == 0) drop(move.block);
    return status;
  }
  const auto group = staging(at).first(static_cast<size_t>(group_bytes_));
  if (!status.ok()) ++counts_.failed_loads;
  if (status.ok() && sum_of(group) != b.checksum) {
    ++counts_.mismatches;
    status = error(Code::kBadFile, "block %d of positions from %lld: what came back from the tier "
                   "is not what was stored there: the checksum differs", move.block,
                   static_cast<long long>(b.index * options_.block_tokens));
    unindex(move.block);  // nobody else shall find it
  }
  if (status.ok()) {
    scatter(group, options_.pools, b.device);
    b.ready = true;
    ++counts_.loads;
    return {};
  }
  b.error = status;
  free_device_.push_back(std::exchange(b.device, -1));
  const auto found = index_.find(b.hash);
  if (b.refs == 0 && (found == index_.end() || found->second != move.block)) destroy(move.block);
  return status;
}

void BlockCache::poll() {
  if (tier_ == nullptr) return;
  tier_->poll();
  for (size_t i = 0; i < moves_.size(); ++i)
    if (moves_[i].busy && tier_->done(moves_[i].ticket)) (void)finish(static_cast<int32_t>(i));
}

void BlockCache::settle() {
  for (size_t i = 0; i < moves_.size(); ++i) (void)finish(static_cast<int32_t>(i));
}

void BlockCache::maintain() {
  poll();
  if (free_blocks() < options_.low_free) refilling_ = true;
  if (free_blocks() >= options_.high_free) refilling_ = false;
  if (!refilling_) return;
  int64_t missing = options_.high_free - free_blocks();
  for (int32_t id : coldest({}, false)) {
    if (missing <= 0) return;
    const Block& b = blocks_[static_cast<size_t>(id)];
    if (!b.ready) continue;  // it went to make room in the tier
    if (b.move < 0 && b.copy < 0 && (tier_ == nullptr || options_.tier_blocks == 0)) {
      if (b.refs > 0) continue;
      drop(id);
    } else if (b.move < 0 && b.copy < 0 && take_move(false) < 0) {
      return;  // staging is full: the next call goes on
    } else if (!start_store(id, true, false).ok()) {
      if (b.refs > 0) continue;
      drop(id);
    }
    --missing;
  }
}

Status BlockCache::store_tail(Sequence& s) {
  if (s.tail.empty()) return {};
  if (free_tails_.empty())
    return error(Code::kDoesNotFit, "the tier is full: all its %d tails are in use",
                 options_.tier_tails);
  const int32_t slot = free_tails_.back();
  const auto group = staging(take_move(true)).first(static_cast<size_t>(tail_bytes_));
  gather(options_.tails, s.place, group);
  const Bytes base = options_.tier_offset + options_.tier_blocks * group_bytes_;
  auto ticket = tier_->store(group, {options_.object, base + slot * tail_bytes_, tail_bytes_});
  const Status status = ticket.ok() ? tier_->wait(*ticket) : ticket.status();
  ++(status.ok() ? counts_.stores : counts_.failed_stores);
  HR_TRY(status.within("tail"));
  s.tail_checksum = sum_of(group);
  s.tail_copy = slot;
  free_tails_.pop_back();
  return {};
}

Status BlockCache::load_tail(const Sequence& s, int32_t place) {
  if (s.tail.empty()) return {};
  const auto group = staging(take_move(true)).first(static_cast<size_t>(tail_bytes_));
  const Bytes base = options_.tier_offset + options_.tier_blocks * group_bytes_;
  auto ticket =
      tier_->load({options_.object, base + s.tail_copy * tail_bytes_, tail_bytes_}, group);
  const Status status = ticket.ok() ? tier_->wait(*ticket) : ticket.status();
  if (!status.ok()) ++counts_.failed_loads;
  HR_TRY(status.within("tail"));
  if (sum_of(group) != s.tail_checksum) {
    ++counts_.mismatches;
    return error(Code::kBadFile, "the tail of positions from %lld: what came back from the tier is "
                 "not what was stored there: the checksum differs",
                 static_cast<long long>(round_down(s.length, kKvTile)));
  }
  scatter(group, options_.tails, place);
  ++counts_.loads;
  return {};
}

Status BlockCache::evict(KvSequence id, int64_t begin, int64_t end) {
  HR_ASSIGN(Sequence* s, find(id));
  if (begin < 0 || begin > end || end > static_cast<int64_t>(s->blocks.size()))
    return error(Code::kUsage, "sequence %d has %zu blocks, not [%lld, %lld)", id.value,
                 s->blocks.size(), static_cast<long long>(begin), static_cast<long long>(end));
  if (tier_ == nullptr && begin < end)
    return error(Code::kUnsupported, "sequence %d: there is no tier to evict to", id.value);
  Status first;
  const auto note = [&](const Status& status) {
    if (first.ok() && !status.ok()) first = status;
  };
  for (bool last : {false, true}) {  // all are started, then all are waited for
    for (int64_t g = begin; g < end; ++g) {
      const int32_t b = s->blocks[static_cast<size_t>(g)];
      const Block& block = blocks_[static_cast<size_t>(b)];
      if (last && block.move >= 0) note(finish(block.move));
      if (last || block.pins > 0) continue;
      if (!block.ready && block.move >= 0) (void)finish(block.move);  // it is on its way back
      if (block.ready) note(start_store(b, true, true));
    }
  }
  // The store of one may have ended, and failed, to let another begin.
  for (int64_t g = begin; first.ok() && g < end; ++g) {
    const Block& b = blocks_[static_cast<size_t>(s->blocks[static_cast<size_t>(g)])];
    if (b.ready && b.pins == 0)
      first = error(Code::kIo, "sequence %d: block %lld could not be stored and stays in memory",
                    id.value, static_cast<long long>(g));
  }
  return first;
}

Result<int64_t> BlockCache::preempt(KvSequence id) {
  HR_ASSIGN(Sequence* s, find(id));
  if (s->place < 0) return error(Code::kUsage, "sequence %d is preempted already", id.value);
  if (tier_ == nullptr)
    return error(Code::kUnsupported, "sequence %d: there is no tier to save it in", id.value);
  HR_TRY(store_tail(*s).within(text_of("sequence %d", id.value)));
  place_taken_[static_cast<size_t>(std::exchange(s->place, -1))] = 0;
  std::vector<char> running(blocks_.size());
  for (const auto& [other, t] : sequences_)
    for (int32_t b : t.blocks)
      if (t.place >= 0) running[static_cast<size_t>(b)] = 1;
  int64_t stay = 0;
  for (size_t g = 0; g < s->blocks.size(); ++g) {
    if (running[static_cast<size_t>(s->blocks[g])]) continue;
    (void)evict(id, static_cast<int64_t>(g), static_cast<int64_t>(g) + 1);
    stay += blocks_[static_cast<size_t>(s->blocks[g])].device >= 0;
  }
  return stay;
}

Status BlockCache::restore(KvSequence id) {
  HR_ASSIGN(Sequence* s, find(id));
  if (s->place >= 0) return error(Code::kUsage, "sequence %d is not preempted", id.value);
  HR_ASSIGN(const int32_t place, take_place());
  if (Status status = load_tail(*s, place); !status.ok()) {
    place_taken_[static_cast<size_t>(place)] = 0;
    return status.within(text_of("sequence %d", id.value));
  }
  s->place = place;
  if (s->tail_copy >= 0) free_tails_.push_back(std::exchange(s->tail_copy, -1));
  return {};
}

Result<int64_t> BlockCache::prefetch(KvSequence id) {
  HR_ASSIGN(Sequence* s, find(id));
  poll();
  int64_t missing = 0;
  for (int32_t b : s->blocks) {
    if (!free_device_.empty()) (void)start_load(b, false);  // kept in the block
    missing += !blocks_[static_cast<size_t>(b)].ready;
  }
  return missing;
}

Status BlockCache::fetch(KvSequence id, int64_t g) {
  HR_ASSIGN(Sequence* s, find(id));
  if (g < 0 || g >= static_cast<int64_t>(s->blocks.size()))
    return error(Code::kUsage, "sequence %d has %zu blocks, not one %lld", id.value,
                 s->blocks.size(), static_cast<long long>(g));
  const int32_t at = s->blocks[static_cast<size_t>(g)];
  const Block& b = blocks_[static_cast<size_t>(at)];
  if (b.move >= 0 && !b.ready) (void)finish(b.move);
  if (b.ready) return {};
  if (free_device_.empty())
    return error(Code::kDoesNotFit, "sequence %d: no room is free for block %lld", id.value,
                 static_cast<long long>(g));
  HR_TRY(start_load(at, true));
  return b.move >= 0 ? finish(b.move) : Status();
}

}  // namespace headrace
