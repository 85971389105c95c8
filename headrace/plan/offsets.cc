#include <algorithm>
#include <numeric>

#include "headrace/plan/passes.h"

namespace headrace::plan {
namespace {

// Buffers that share an extent form a chain; the root carries the extent over all their lives.
int32_t root_of(const std::vector<Buffer>& buffers, int32_t i) {
  while (buffers[static_cast<size_t>(i)].shares >= 0) i = buffers[static_cast<size_t>(i)].shares;
  return i;
}

struct Block {
  int32_t root = 0;
  Bytes bytes = 0;
  Bytes alignment = kLine;
  int32_t first = 0;
  int32_t last = 0;
  Bytes offset = 0;
};

std::vector<Block> blocks_of(const std::vector<Buffer>& buffers) {
  std::vector<int32_t> block_of(buffers.size(), -1);
  std::vector<Block> blocks;
  for (size_t i = 0; i < buffers.size(); ++i) {
    const int32_t root = root_of(buffers, static_cast<int32_t>(i));
    const Buffer& b = buffers[i];
    int32_t& at = block_of[static_cast<size_t>(root)];
    if (at < 0) {
      at = static_cast<int32_t>(blocks.size());
      blocks.push_back({root, b.bytes, b.alignment, b.first, b.last, 0});
    }
    Block& block = blocks[static_cast<size_t>(at)];
    block.bytes = std::max(block.bytes, b.bytes);
    block.alignment = std::max(block.alignment, b.alignment);
    block.first = std::min(block.first, b.first);
    block.last = std::max(block.last, b.last);
  }
  return blocks;
}

// Placed blocks, found by when they live. Short-lived ones lie in buckets of ops, so that a graph of
// many ops is not quadratic.
class PlacedBlocks {
 public:
  explicit PlacedBlocks(int32_t ops) : buckets_(static_cast<size_t>(ops / kOps + 1)) {}

  void add(const Block* b) {
    (b->last - b->first < kOps ? buckets_[static_cast<size_t>(b->first / kOps)] : long_).push_back(b);
  }

  // The placed blocks alive together with `block`, by offset.
  const std::vector<const Block*>& meeting(const Block& block) {
    met_.clear();
    collect(long_, block);
    for (int32_t i = std::max(0, block.first / kOps - 1); i <= block.last / kOps; ++i) {
      collect(buckets_[static_cast<size_t>(i)], block);
    }
    std::sort(met_.begin(), met_.end(), [](const Block* x, const Block* y) {
      return x->offset != y->offset ? x->offset < y->offset : x->root < y->root;
    });
    return met_;
  }

 private:
  static constexpr int32_t kOps = 64;  // a bucket

  void collect(const std::vector<const Block*>& from, const Block& block) {
    for (const Block* p : from) {
      if (p->last >= block.first && block.last >= p->first) met_.push_back(p);
    }
  }

  std::vector<std::vector<const Block*>> buckets_;  // by first op
  std::vector<const Block*> long_, met_;
};

// The lowest aligned offset where `block` meets none of the blocks alive with it.
Bytes lowest_free(const Block& block, const std::vector<const Block*>& meeting_by_offset) {
  Bytes at = 0;
  for (const Block* p : meeting_by_offset) {
    if (round_up(at, block.alignment) + block.bytes <= p->offset) break;
    at = std::max(at, p->offset + p->bytes);
  }
  return round_up(at, block.alignment);
}

}  // namespace

Bytes assign_offsets(std::vector<Buffer>& buffers) {
  std::vector<Block> blocks = blocks_of(buffers);
  std::vector<size_t> order(blocks.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return blocks[a].bytes > blocks[b].bytes; });
  int32_t ops = 0;
  for (const Block& b : blocks) ops = std::max(ops, b.last + 1);
  PlacedBlocks placed(ops);
  Bytes height = 0;
  for (size_t i : order) {
    Block& b = blocks[i];
    b.offset = lowest_free(b, placed.meeting(b));
    height = std::max(height, b.offset + b.bytes);
    placed.add(&b);
  }
  std::vector<Bytes> offset_of(buffers.size(), 0);
  for (const Block& b : blocks) offset_of[static_cast<size_t>(b.root)] = b.offset;
  for (size_t i = 0; i < buffers.size(); ++i) {
    buffers[i].offset = offset_of[static_cast<size_t>(root_of(buffers, static_cast<int32_t>(i)))];
  }
  return round_up(height, kPage);
}

}  // namespace headrace::plan
