// Block cache: steps. reserve() before, commit() or abandon() after.
#include <algorithm>
#include <utility>

#include "headrace/kv/block_cache.h"

namespace headrace {

Status BlockCache::check_step(std::span<KvStepRun> runs) {
  if (step_open_) return error(Code::kUsage, "the step before has not ended");
  std::vector<int32_t> seen;
  for (const KvStepRun& run : runs) {
    HR_ASSIGN(const Sequence* s, find(run.sequence));
    const int32_t id = run.sequence.value;
    if (std::find(seen.begin(), seen.end(), id) != seen.end())
      return error(Code::kUsage, "sequence %d is twice in a step", id);
    seen.push_back(id);
    if (s->place < 0) return error(Code::kUsage, "sequence %d is preempted", id);
    if (run.tokens.empty()) return error(Code::kUsage, "sequence %d has no rows in a step", id);
    const int64_t end = s->length + static_cast<int64_t>(run.tokens.size());
    const int64_t most = options_.blocks_a_sequence * options_.block_tokens;
    if (end > most)
      return error(Code::kDoesNotFit, "sequence %d: %lld positions, a sequence has at most %lld",
                   id, static_cast<long long>(end), static_cast<long long>(most));
  }
  return {};
}

// Blocks that a step of `rows` rows makes: new ones, and a shared one that it writes.
int64_t BlockCache::fresh_blocks(const Sequence& s, int64_t rows) const {
  const int64_t sealed = round_down(s.length, kKvTile);
  const int64_t after = round_down(s.length + rows, kKvTile);
  const bool copies = after > sealed && sealed % options_.block_tokens != 0 &&
                      blocks_[static_cast<size_t>(s.blocks.back())].refs > 1;
  return blocks_of(after) - static_cast<int64_t>(s.blocks.size()) + (copies ? 1 : 0);
}

// Until `need` blocks of memory are free. kDoesNotFit before anything is done.
Status BlockCache::make_room(int64_t need, const std::vector<char>& spared) {
  if (free_blocks() < need) settle();
  if (free_blocks() >= need) return {};
  int64_t slots = free_tier_blocks();
  for (size_t i = 0; i < blocks_.size(); ++i) slots += blocks_[i].copy >= 0 && blocks_[i].refs == 0;
  std::vector<int32_t> chosen, others;
  for (int32_t id : coldest(spared, true)) {
    const Block& b = blocks_[static_cast<size_t>(id)];
    const bool costs = b.copy < 0 && b.refs > 0;
    const bool take = free_blocks() + static_cast<int64_t>(chosen.size()) < need &&
                      (!costs || slots > 0);
    if (take && costs) --slots;
    (take ? chosen : others).push_back(id);
  }
  if (free_blocks() + static_cast<int64_t>(chosen.size()) < need)
    return error(Code::kDoesNotFit, "a step needs %lld more blocks in memory, %lld are free, %zu "
                 "can leave: the tier takes %d blocks", static_cast<long long>(need),
                 static_cast<long long>(free_blocks()), chosen.size(), options_.tier_blocks);
  Status first;
  const auto leave = [&](int32_t id) {
    const Block& b = blocks_[static_cast<size_t>(id)];
    if (!b.ready || b.move >= 0) return;
    if (b.copy < 0 && b.refs == 0) return drop(id);
    if (b.copy < 0 && tier_ == nullptr) return;
    const Status status = start_store(id, true, true);
    if (first.ok()) first = status;
  };
  for (int32_t id : chosen) leave(id);
  settle();
  for (int32_t id : others) {  // in the place of what could not be stored
    if (free_blocks() >= need) break;
    leave(id);
    settle();
  }
  if (free_blocks() >= need) return {};
  if (!first.ok()) return first;
  return error(Code::kIo, "a step needs %lld more blocks in memory, %lld are free: stores failed",
               static_cast<long long>(need), static_cast<long long>(free_blocks()));
}

// Loads what is not in memory; as many at once as there is staging.
void BlockCache::bring(const std::vector<int32_t>& wanted) {
  for (int32_t id : wanted) (void)start_load(id, true);  // an error stays in the block
  for (int32_t id : wanted) {
    const Block& b = blocks_[static_cast<size_t>(id)];
    if (!b.ready && b.move >= 0) (void)finish(b.move);
  }
}

// The last block is this sequence's own, ends where the sequence does and has no copy; blocks for
// the tiles that the step seals are there.
void BlockCache::make_writable(Sequence& s, int64_t rows) {
  const int64_t sealed = round_down(s.length, kKvTile);
  const int64_t after = round_down(s.length + rows, kKvTile);
  if (after > sealed && sealed % options_.block_tokens != 0) {
    const int32_t old = s.blocks.back();
    const auto filled = static_cast<int32_t>(sealed % options_.block_tokens);
    if (blocks_[static_cast<size_t>(old)].refs > 1) {
      const int32_t own = make_block(static_cast<int64_t>(s.blocks.size()) - 1);
      const Block& from = blocks_[static_cast<size_t>(old)];
      for (const KvPlane& p : options_.pools)
        std::copy_n(p.memory.data() + from.device * p.item_bytes, p.item_bytes,
                    p.memory.data() + blocks_[static_cast<size_t>(own)].device * p.item_bytes);
      std::copy_n(tokens_of(old).begin(), filled, tokens_of(own).begin());
      s.blocks.back() = own;
      unreference(old);
      ++counts_.copies_on_write;
    } else {
      Block& b = blocks_[static_cast<size_t>(old)];
      if (b.move >= 0) {
        moves_[static_cast<size_t>(b.move)].drop = false;
        (void)finish(b.move);
      }
      unindex(old);
      forget_copy(old);
      b.hash = {};
    }
    blocks_[static_cast<size_t>(s.blocks.back())].filled = filled;
  }
  while (static_cast<int64_t>(s.blocks.size()) < blocks_of(after))
    s.blocks.push_back(make_block(static_cast<int64_t>(s.blocks.size())));
}

void BlockCache::add_rows(int32_t id, const Sequence& s, std::span<const int32_t> tokens,
                          StepRows* rows) {
  int64_t position = s.length;
  for (int32_t token : tokens) {
    rows->tokens.push_back(token);
    rows->sequences.push_back(s.place);
    rows->positions.push_back(static_cast<int32_t>(position++));
  }
  for (size_t g = 0; g < s.blocks.size(); ++g) {
    Block& b = blocks_[static_cast<size_t>(s.blocks[g])];
    ++b.pins;
    touch(b);
    rows->blocks[static_cast<size_t>(s.place * options_.blocks_a_sequence) + g] = b.device;
  }
  step_.push_back({id, {tokens.begin(), tokens.end()}});
}

Status BlockCache::reserve(std::span<KvStepRun> runs, StepRows* rows) {
  HR_TRY(check_step(runs));
  std::vector<char> spared(blocks_.size());
  std::vector<int32_t> wanted, absent;
  int64_t fresh = 0;
  for (KvStepRun& run : runs) {
    const Sequence& s = sequences_[run.sequence.value];
    fresh += fresh_blocks(s, static_cast<int64_t>(run.tokens.size()));
    for (int32_t b : s.blocks)
      if (!std::exchange(spared[static_cast<size_t>(b)], 1)) wanted.push_back(b);
  }
  const int64_t all = static_cast<int64_t>(wanted.size()) + fresh;
  if (all > options_.device_blocks)
    return error(Code::kDoesNotFit, "a step of %zu sequences needs %lld blocks in memory, there "
                 "are %d", runs.size(), static_cast<long long>(all), options_.device_blocks);
  for (int32_t id : wanted) {
    Block& b = blocks_[static_cast<size_t>(id)];
    if (b.move >= 0) moves_[static_cast<size_t>(b.move)].drop = false;
    if (b.move >= 0 && !b.ready) (void)finish(b.move);
    if (!b.ready) absent.push_back(id);
  }
  HR_TRY(make_room(fresh + static_cast<int64_t>(absent.size()), spared));
  bring(absent);
  *rows = StepRows();
  rows->blocks.assign(static_cast<size_t>(options_.places * options_.blocks_a_sequence), -1);
  for (KvStepRun& run : runs) {
    Sequence& s = sequences_[run.sequence.value];
    run.status = {};
    for (size_t g = 0; g < s.blocks.size() && run.status.ok(); ++g) {
      const Block& b = blocks_[static_cast<size_t>(s.blocks[g])];
      if (b.ready) continue;
      run.sound = static_cast<int64_t>(g) * options_.block_tokens;
      run.status = b.error.within(text_of("sequence %d", run.sequence.value));
      HR_CHECK(!run.status.ok(), "a block that did not come back says why");
    }
    if (!run.status.ok()) continue;
    make_writable(s, static_cast<int64_t>(run.tokens.size()));
    add_rows(run.sequence.value, s, run.tokens, rows);
    s.in_step = true;
  }
  step_open_ = true;
  return {};
}

void BlockCache::append(Sequence& s, std::span<const int32_t> tokens) {
  for (int32_t token : tokens) {
    s.tail.push_back(token);
    ++s.length;
    if (s.length % kKvTile != 0) continue;
    const auto g = static_cast<size_t>((s.length - 1) / options_.block_tokens);
    const int32_t id = s.blocks[g];
    Block& b = blocks_[static_cast<size_t>(id)];
    std::copy(s.tail.begin(), s.tail.end(), tokens_of(id).begin() + b.filled);
    b.filled += static_cast<int32_t>(kKvTile);
    s.tail.clear();
    if (b.filled < options_.block_tokens) continue;
    const ChainHash before =
        g == 0 ? options_.start : blocks_[static_cast<size_t>(s.blocks[g - 1])].hash;
    b.hash = chain_over(before, tokens_of(id));
    index_.emplace(b.hash, id);  // the first that has it stays the one that is found
  }
}

void BlockCache::commit() {
  HR_CHECK(step_open_, "commit() follows reserve()");
  for (const StepRun& run : std::exchange(step_, {})) {
    Sequence& s = sequences_[run.sequence];
    for (int32_t b : s.blocks) --blocks_[static_cast<size_t>(b)].pins;
    append(s, run.tokens);
    s.in_step = false;
  }
  step_open_ = false;
}

void BlockCache::abandon(bool ran) {
  HR_CHECK(step_open_, "abandon() follows reserve()");
  for (const StepRun& run : std::exchange(step_, {})) {
    Sequence& s = sequences_[run.sequence];
    for (int32_t b : s.blocks) --blocks_[static_cast<size_t>(b)].pins;
    const int64_t after = s.length + static_cast<int64_t>(run.tokens.size());
    const bool sealed = after / kKvTile > s.length / kKvTile;
    if (ran && sealed) s.tail.clear();
    cut(s, ran && sealed ? round_down(s.length, kKvTile) : s.length);
    s.in_step = false;
  }
  step_open_ = false;
}

}  // namespace headrace
