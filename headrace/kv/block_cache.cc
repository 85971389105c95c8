#include "headrace/kv/block_cache.h"

#include <algorithm>
#include <cstring>
#include <tuple>
#include <utility>

namespace headrace {
namespace {

Bytes group_of(const std::vector<KvPlane>& planes) {
  Bytes sum = 0;
  for (const KvPlane& p : planes) sum += p.item_bytes;
  return round_up(sum, kPage);
}

Status check_planes(const char* what, const std::vector<KvPlane>& planes, int64_t items) {
  for (size_t i = 0; i < planes.size(); ++i) {
    const KvPlane& p = planes[i];
    if (p.item_bytes > 0 && static_cast<Bytes>(p.memory.size()) / p.item_bytes >= items) continue;
    return error(Code::kUsage, "%s %zu: %zu bytes are not %lld times %lld", what, i,
                 p.memory.size(), static_cast<long long>(items),
                 static_cast<long long>(p.item_bytes));
  }
  return {};
}

Status check(const BlockCacheOptions& o, const Tier* tier) {
  if (o.block_tokens <= 0 || o.block_tokens % kKvTile != 0)
    return error(Code::kUsage, "a block of %lld positions is not a multiple of %lld",
                 static_cast<long long>(o.block_tokens), static_cast<long long>(kKvTile));
  if (o.device_blocks < 1 || o.places < 1 || o.blocks_a_sequence < 1 || o.tier_blocks < 0 ||
      o.tier_tails < 0 || o.low_free < 0 || o.high_free < o.low_free ||
      o.high_free > o.device_blocks || o.pools.empty() || o.tails.empty())
    return error(Code::kUsage, "block cache: %d blocks, %d places, %d blocks a sequence, %d and %d "
                 "in the tier, water marks %d and %d", o.device_blocks, o.places,
                 o.blocks_a_sequence, o.tier_blocks, o.tier_tails, o.low_free, o.high_free);
  HR_TRY(check_planes("pool", o.pools, o.device_blocks));
  HR_TRY(check_planes("tail", o.tails, o.places));
  if (tier == nullptr && o.tier_blocks + o.tier_tails > 0)
    return error(Code::kUsage, "block cache: no tier for %d blocks", o.tier_blocks);
  if (tier == nullptr) return {};
  if (static_cast<Bytes>(o.staging.size()) < block_cache_staging(o) ||
      reinterpret_cast<uintptr_t>(o.staging.data()) % kPage != 0)
    return error(Code::kUsage, "block cache: %zu bytes of staging, page aligned, of at least %lld",
                 o.staging.size(), static_cast<long long>(block_cache_staging(o)));
  if (kPage % tier->describe().alignment != 0 || o.tier_offset % kPage != 0)
    return error(Code::kUsage, "block cache: the tier moves multiples of %lld, not pages",
                 static_cast<long long>(tier->describe().alignment));
  return {};
}

}  // namespace

Bytes block_cache_staging(const BlockCacheOptions& o) {
  return std::max(group_of(o.pools), group_of(o.tails));
}
Bytes block_cache_tier(const BlockCacheOptions& o) {
  return group_of(o.pools) * o.tier_blocks + group_of(o.tails) * o.tier_tails;
}
Bytes block_cache_memory(const BlockCacheOptions& o) {
  // A Block with its place in the index and in the free lists is 200 bytes.
  return (o.device_blocks + o.tier_blocks) * (200 + o.block_tokens * 4) + 64 * o.tier_tails;
}

Result<std::unique_ptr<BlockCache>> BlockCache::create(BlockCacheOptions options, Tier* tier) {
  HR_TRY(check(options, tier));
  return std::unique_ptr<BlockCache>(new BlockCache(std::move(options), tier));
}

BlockCache::BlockCache(BlockCacheOptions options, Tier* tier)
    : options_(std::move(options)), tier_(tier), group_bytes_(group_of(options_.pools)),
      tail_bytes_(group_of(options_.tails)) {
  // The highest first, so that the lowest is taken first.
  const auto fill = [](std::vector<int32_t>& list, int32_t count) {
    for (int32_t i = count; i-- > 0;) list.push_back(i);
  };
  const int32_t blocks = options_.device_blocks + options_.tier_blocks;
  blocks_.resize(static_cast<size_t>(blocks));
  block_tokens_.resize(static_cast<size_t>(blocks * options_.block_tokens));
  fill(free_blocks_, blocks);
  fill(free_device_, options_.device_blocks);
  fill(free_copies_, options_.tier_blocks);
  fill(free_tails_, options_.tier_tails);
  place_taken_.resize(static_cast<size_t>(options_.places));
  if (tier_ != nullptr)
    moves_.resize(options_.staging.size() / static_cast<size_t>(block_cache_staging(options_)));
}

BlockCache::~BlockCache() { settle(); }

// --- Sequences.

const BlockCache::Sequence* BlockCache::look(KvSequence id) const {
  const auto it = sequences_.find(id.value);
  return it == sequences_.end() ? nullptr : &it->second;
}

Result<BlockCache::Sequence*> BlockCache::find(KvSequence id) {
  const auto it = sequences_.find(id.value);
  if (it == sequences_.end()) return error(Code::kUsage, "sequence %d is not open", id.value);
  if (it->second.in_step)
    return error(Code::kUsage, "sequence %d is in a step that has not ended", id.value);
  return &it->second;
}

Result<int32_t> BlockCache::take_place() {
  const auto it = std::find(place_taken_.begin(), place_taken_.end(), 0);
  if (it == place_taken_.end())
    return error(Code::kDoesNotFit, "all %d places for sequences are taken", options_.places);
  *it = 1;
  return static_cast<int32_t>(it - place_taken_.begin());
}

Result<KvSequence> BlockCache::open() {
  HR_ASSIGN(const int32_t place, take_place());
  sequences_[next_sequence_].place = place;
  return KvSequence(next_sequence_++);
}

Result<int64_t> BlockCache::adopt(KvSequence id, std::span<const int32_t> tokens) {
  HR_ASSIGN(Sequence* s, find(id));
  if (s->length != 0)
    return error(Code::kUsage, "sequence %d has %lld positions already", id.value,
                 static_cast<long long>(s->length));
  const auto width = static_cast<size_t>(options_.block_tokens);
  ChainHash hash = options_.start;
  for (size_t g = 0; g < static_cast<size_t>(options_.blocks_a_sequence); ++g) {
    if (tokens.size() < (g + 1) * width) break;
    const auto part = tokens.subspan(g * width, width);
    hash = chain_over(hash, part);
    const auto it = index_.find(hash);
    if (it == index_.end() || !std::ranges::equal(part, tokens_of(it->second))) break;
    reference(it->second);
    s->blocks.push_back(it->second);
    s->length += options_.block_tokens;
    ++counts_.adopted;
  }
  return s->length;
}

int64_t BlockCache::kept(const Sequence& s, int64_t positions) const {
  if (positions >= s.length) return s.length;
  if (positions / kKvTile == s.length / kKvTile) return positions;
  return round_down(positions, kKvTile);
}

int64_t BlockCache::blocks_of(int64_t positions) const {
  return (round_down(positions, kKvTile) + options_.block_tokens - 1) / options_.block_tokens;
}

// `positions` is what kept() says.
void BlockCache::cut(Sequence& s, int64_t positions) {
  if (positions / kKvTile != s.length / kKvTile) s.tail.clear();
  s.length = positions;
  s.tail.resize(static_cast<size_t>(positions % kKvTile));
  while (static_cast<int64_t>(s.blocks.size()) > blocks_of(positions)) {
    unreference(s.blocks.back());
    s.blocks.pop_back();
  }
  if (s.tail.empty() && s.tail_copy >= 0) {
    free_tails_.push_back(s.tail_copy);
    s.tail_copy = -1;
  }
}

Result<KvSequence> BlockCache::fork(KvSequence parent, int64_t positions) {
  HR_ASSIGN(Sequence* from, find(parent));
  if (positions < 0)
    return error(Code::kUsage, "a fork at %lld", static_cast<long long>(positions));
  Sequence child;
  child.length = kept(*from, positions);
  HR_ASSIGN(child.place, take_place());
  child.tail.assign(from->tail.begin(), from->tail.begin() + child.length % kKvTile);
  if (!child.tail.empty() && from->place >= 0) {
    for (const KvPlane& p : options_.tails)
      std::memcpy(p.memory.data() + child.place * p.item_bytes,
                  p.memory.data() + from->place * p.item_bytes, static_cast<size_t>(p.item_bytes));
  } else if (!child.tail.empty()) {
    if (Status loaded = load_tail(*from, child.place); !loaded.ok()) {
      place_taken_[static_cast<size_t>(child.place)] = 0;
      return loaded;
    }
  }
  child.blocks.assign(from->blocks.begin(), from->blocks.begin() + blocks_of(child.length));
  for (int32_t b : child.blocks) reference(b);
  sequences_[next_sequence_] = std::move(child);
  return KvSequence(next_sequence_++);
}

Result<int64_t> BlockCache::truncate(KvSequence id, int64_t positions) {
  HR_ASSIGN(Sequence* s, find(id));
  if (positions < 0)
    return error(Code::kUsage, "sequence %d cut to %lld positions", id.value,
                 static_cast<long long>(positions));
  cut(*s, kept(*s, positions));
  return s->length;
}

Status BlockCache::close(KvSequence id) {
  HR_ASSIGN(Sequence* s, find(id));
  cut(*s, 0);
  if (s->place >= 0) place_taken_[static_cast<size_t>(s->place)] = 0;
  sequences_.erase(id.value);
  return {};
}

int64_t BlockCache::length(KvSequence id) const {
  const Sequence* s = look(id);
  return s == nullptr ? -1 : s->length;
}
int32_t BlockCache::place(KvSequence id) const {
  const Sequence* s = look(id);
  return s == nullptr ? -1 : s->place;
}
int32_t BlockCache::device_block(KvSequence id, int64_t g) const {
  const Sequence* s = look(id);
  if (s == nullptr || g < 0 || g >= static_cast<int64_t>(s->blocks.size())) return -1;
  const Block& b = blocks_[static_cast<size_t>(s->blocks[static_cast<size_t>(g)])];
  return b.ready ? b.device : -1;
}
ChainHash BlockCache::block_hash(KvSequence id, int64_t g) const {
  const Sequence* s = look(id);
  if (s == nullptr || g < 0 || (g + 1) * options_.block_tokens > s->length) return {};
  return blocks_[static_cast<size_t>(s->blocks[static_cast<size_t>(g)])].hash;
}

// --- Blocks.

std::span<int32_t> BlockCache::tokens_of(int32_t block) {
  return std::span(block_tokens_).subspan(static_cast<size_t>(block * options_.block_tokens),
                                          static_cast<size_t>(options_.block_tokens));
}
std::span<const int32_t> BlockCache::tokens_of(int32_t block) const {
  return std::span(block_tokens_).subspan(static_cast<size_t>(block * options_.block_tokens),
                                          static_cast<size_t>(options_.block_tokens));
}

// Takes a free place in memory; there is one.
int32_t BlockCache::make_block(int64_t index) {
  HR_CHECK(!free_device_.empty() && !free_blocks_.empty(), "reserve() has made room");
  const int32_t id = free_blocks_.back();
  free_blocks_.pop_back();
  Block& b = blocks_[static_cast<size_t>(id)] = Block();
  b.used = b.ready = true;
  b.index = static_cast<int32_t>(index);
  b.device = free_device_.back();
  free_device_.pop_back();
  reference(id);
  return id;
}

void BlockCache::reference(int32_t id) {
  Block& b = blocks_[static_cast<size_t>(id)];
  ++b.refs;
  ++b.uses;
  touch(b);
}

// A whole block stays for others to find it until its room is needed.
void BlockCache::unreference(int32_t id) {
  Block& b = blocks_[static_cast<size_t>(id)];
  HR_CHECK(b.refs > 0, "a block is given back as often as it was taken");
  if (--b.refs > 0) return;
  const auto it = index_.find(b.hash);
  if (it == index_.end() || it->second != id) destroy(id);
}

void BlockCache::unindex(int32_t id) {
  Block& b = blocks_[static_cast<size_t>(id)];
  const auto it = index_.find(b.hash);
  if (it != index_.end() && it->second == id) index_.erase(it);
}

void BlockCache::forget_copy(int32_t id) {
  Block& b = blocks_[static_cast<size_t>(id)];
  if (b.copy >= 0) free_copies_.push_back(std::exchange(b.copy, -1));
}

void BlockCache::destroy(int32_t id) {
  Block& b = blocks_[static_cast<size_t>(id)];
  HR_CHECK(b.refs == 0 && b.pins == 0, "nobody has a block that goes");
  if (b.move >= 0) {
    moves_[static_cast<size_t>(b.move)].drop = false;
    (void)finish(b.move);
    if (!b.used) return;  // a load that failed: that was the end of it
  }
  unindex(id);
  forget_copy(id);
  if (b.device >= 0) free_device_.push_back(b.device);
  b = Block();
  free_blocks_.push_back(id);
  ++counts_.discarded;
}

// Out of memory: its copy stays; without one nobody has it.
void BlockCache::drop(int32_t id) {
  Block& b = blocks_[static_cast<size_t>(id)];
  HR_CHECK(b.ready && b.pins == 0 && b.move < 0, "a block that can leave");
  clock_ = std::max(clock_, b.heat);
  if (b.copy < 0) return destroy(id);
  free_device_.push_back(std::exchange(b.device, -1));
  b.ready = false;
  ++counts_.dropped;
}

// What may leave memory, the coldest first; blocks of sequences that have a place only if
// `running_too`.
std::vector<int32_t> BlockCache::coldest(const std::vector<char>& spared,
                                         bool running_too) const {
  std::vector<char> running(blocks_.size());
  for (const auto& [id, s] : sequences_)
    for (int32_t b : s.blocks)
      if (s.place >= 0) running[static_cast<size_t>(b)] = 1;
  std::vector<std::tuple<int, int64_t, int32_t, int32_t>> order;
  for (size_t i = 0; i < blocks_.size(); ++i) {
    const Block& b = blocks_[i];
    if (!b.ready || b.pins > 0 || (!spared.empty() && spared[i])) continue;
    if (running[i] && !running_too) continue;
    order.emplace_back(b.refs == 0 ? 0 : running[i] ? 2 : 1, b.heat, -b.index,
                       static_cast<int32_t>(i));
  }
  std::sort(order.begin(), order.end());
  std::vector<int32_t> ids;
  for (const auto& o : order) ids.push_back(std::get<3>(o));
  return ids;
}

}  // namespace headrace
