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

// The lowest aligned offset where `block` meets no placed block that is alive with it.
Bytes lowest_free(const Block& block, const std::vector<const Block*>& placed_by_offset) {
  Bytes at = 0;
  for (const Block* p : placed_by_offset) {
    if (p->last < block.first || block.last < p->first) continue;
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
  std::vector<const Block*> placed;
  Bytes height = 0;
  for (size_t i : order) {
    Block& b = blocks[i];
    b.offset = lowest_free(b, placed);
    height = std::max(height, b.offset + b.bytes);
    placed.insert(std::upper_bound(placed.begin(), placed.end(), &b,
                                   [](const Block* x, const Block* y) {
                                     return x->offset < y->offset;
                                   }),
                  &b);
  }
  std::vector<Bytes> offset_of(buffers.size(), 0);
  for (const Block& b : blocks) offset_of[static_cast<size_t>(b.root)] = b.offset;
  for (size_t i = 0; i < buffers.size(); ++i) {
    buffers[i].offset = offset_of[static_cast<size_t>(root_of(buffers, static_cast<int32_t>(i)))];
  }
  return round_up(height, kPage);
}

}  // namespace headrace::plan
