// Block cache: the obvious verifier. Counts everything again from the tables of the sequences.
#include <algorithm>
#include <set>

#include "headrace/kv/block_cache.h"

namespace headrace {
namespace {

// Every number of [0, count) is once in `free` or once in `taken`.
Status partition(const char* what, const std::vector<int32_t>& free, std::vector<int32_t> taken,
                 int64_t count) {
  taken.insert(taken.end(), free.begin(), free.end());
  std::sort(taken.begin(), taken.end());
  const auto want = static_cast<size_t>(count);
  for (size_t i = 0; i < std::max(taken.size(), want); ++i)
    if (i >= taken.size() || i >= want || taken[i] != static_cast<int32_t>(i))
      return error(Code::kUsage, "%s: %zu is lost or twice", what, i);
  return {};
}

}  // namespace

Status BlockCache::verify() const {
  std::vector<int32_t> refs(blocks_.size()), pins(blocks_.size()), tails, places;
  for (const auto& [id, s] : sequences_) {
    if (s.place >= 0) places.push_back(s.place);
    if (s.tail_copy >= 0) tails.push_back(s.tail_copy);
    if ((s.place < 0 && !s.tail.empty()) != (s.tail_copy >= 0))
      return error(Code::kUsage, "sequence %d: its tail is nowhere or twice", id);
    if (static_cast<int64_t>(s.tail.size()) != s.length % kKvTile)
      return error(Code::kUsage, "sequence %d: %zu tokens in the tail", id, s.tail.size());
    if (!s.in_step && static_cast<int64_t>(s.blocks.size()) != blocks_of(s.length))
      return error(Code::kUsage, "sequence %d: %zu blocks", id, s.blocks.size());
    for (size_t g = 0; g < s.blocks.size(); ++g) {
      const Block& b = blocks_[static_cast<size_t>(s.blocks[g])];
      ++refs[static_cast<size_t>(s.blocks[g])];
      pins[static_cast<size_t>(s.blocks[g])] += s.in_step;
      const int64_t own = std::min(options_.block_tokens, round_down(s.length, kKvTile) -
                                       static_cast<int64_t>(g) * options_.block_tokens);
      if (!b.used || b.index != static_cast<int32_t>(g) || b.filled < own)
        return error(Code::kUsage, "sequence %d: block %zu is another's", id, g);
      if (s.in_step && !b.ready) return error(Code::kUsage, "block %d left a step", s.blocks[g]);
    }
  }
  std::vector<int32_t> device, copies, used, free_places;
  for (size_t i = 0; i < blocks_.size(); ++i) {
    const Block& b = blocks_[i];
    const auto id = static_cast<int32_t>(i);
    if (b.refs != refs[i] || b.pins != pins[i])
      return error(Code::kUsage, "block %d: %d references and %d pins, not %d and %d", id, refs[i],
                   pins[i], b.refs, b.pins);
    if (!b.used) continue;
    used.push_back(id);
    if (b.device >= 0) device.push_back(b.device);
    if (b.copy >= 0) copies.push_back(b.copy);
    const auto at = index_.find(b.hash);
    const bool found = at != index_.end() && at->second == id;
    if (b.refs == 0 && !found) return error(Code::kUsage, "block %d has leaked", id);
    const bool loading = b.move >= 0 && !moves_[static_cast<size_t>(b.move)].store;
    if (b.ready ? b.device < 0 || loading : b.copy < 0 || (b.device >= 0) != loading)
      return error(Code::kUsage, "block %d is nowhere", id);
    if (b.move >= 0 && moves_[static_cast<size_t>(b.move)].block != id)
      return error(Code::kUsage, "block %d: its transfer is another's", id);
  }
  for (const auto& [hash, id] : index_) {
    const Block& b = blocks_[static_cast<size_t>(id)];
    if (!b.used || b.hash != hash || b.filled != options_.block_tokens ||
        (b.index == 0 && chain_over(options_.start, tokens_of(id)) != hash))
      return error(Code::kUsage, "block %d is found by a hash that is not its own", id);
  }
  for (size_t i = 0; i < moves_.size(); ++i)
    if (moves_[i].busy &&
        blocks_[static_cast<size_t>(moves_[i].block)].move != static_cast<int32_t>(i))
      return error(Code::kUsage, "staging %zu has leaked", i);
  for (int32_t p = 0; p < options_.places; ++p)
    if (!place_taken_[static_cast<size_t>(p)]) free_places.push_back(p);
  HR_TRY(partition("blocks", free_blocks_, used, static_cast<int64_t>(blocks_.size())));
  HR_TRY(partition("blocks in memory", free_device_, device, options_.device_blocks));
  HR_TRY(partition("blocks in the tier", free_copies_, copies, options_.tier_blocks));
  HR_TRY(partition("tails in the tier", free_tails_, tails, options_.tier_tails));
  return partition("places", free_places, places, options_.places);
}

}  // namespace headrace
