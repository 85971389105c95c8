// Packing on top of what is there, never into a hole below: O(log n) a block, for problems of so
// many buffers that are alive together that a search for holes costs too much.
#include <algorithm>
#include <numeric>

#include "headrace/plan/allocation_greedy.h"

namespace headrace::plan {
namespace {

// The height at each of `n` times: ranges are raised, and asked for their highest.
class Skyline {
 public:
  explicit Skyline(size_t n) {
    while (leaves_ < n) leaves_ *= 2;
    highest_.resize(2 * leaves_, 0);
    raised_.resize(2 * leaves_, 0);
  }
  Bytes highest(size_t lower, size_t upper) const { return highest(1, 0, leaves_, lower, upper); }
  // To at least `height`.
  void raise(size_t lower, size_t upper, Bytes height) {
    raise(1, 0, leaves_, lower, upper, height);
  }

 private:
  Bytes highest(size_t node, size_t begin, size_t end, size_t lower, size_t upper) const {
    if (upper <= begin || end <= lower) return 0;
    if (lower <= begin && end <= upper) return highest_[node];
    const size_t middle = (begin + end) / 2;
    return std::max({raised_[node], highest(2 * node, begin, middle, lower, upper),
                     highest(2 * node + 1, middle, end, lower, upper)});
  }
  void raise(size_t node, size_t begin, size_t end, size_t lower, size_t upper, Bytes height) {
    if (upper <= begin || end <= lower) return;
    highest_[node] = std::max(highest_[node], height);
    if (lower <= begin && end <= upper) {
      raised_[node] = std::max(raised_[node], height);
      return;
    }
    const size_t middle = (begin + end) / 2;
    raise(2 * node, begin, middle, lower, upper, height);
    raise(2 * node + 1, middle, end, lower, upper, height);
  }

  size_t leaves_ = 1;
  std::vector<Bytes> highest_;  // in the subtree
  std::vector<Bytes> raised_;   // over the whole subtree
};

// The index with its bits in reverse order. Buffers that follow one another, each overlapping the next
// (gradients handed from op to op), would climb a staircase when packed in that order: 40,000 of
// them reached twice the load. In this order one stands at most on its two neighbours.
uint32_t reversed(int32_t index) {
  auto bits = static_cast<uint32_t>(index);
  bits = (bits >> 16) | (bits << 16);
  bits = ((bits & 0xff00ff00u) >> 8) | ((bits & 0x00ff00ffu) << 8);
  bits = ((bits & 0xf0f0f0f0u) >> 4) | ((bits & 0x0f0f0f0fu) << 4);
  bits = ((bits & 0xccccccccu) >> 2) | ((bits & 0x33333333u) << 2);
  return ((bits & 0xaaaaaaaau) >> 1) | ((bits & 0x55555555u) << 1);
}

}  // namespace

// Longest lives first: what is nested then leaves no hole.
Packing pack_skyline(const AllocInstance& in) {
  std::vector<int32_t> times;
  times.reserve(2 * in.rects.size());
  for (const AllocRect& r : in.rects) {
    times.push_back(r.lower);
    times.push_back(r.upper);
  }
  std::sort(times.begin(), times.end());
  times.erase(std::unique(times.begin(), times.end()), times.end());
  const auto rank = [&](int32_t time) {
    return static_cast<size_t>(std::lower_bound(times.begin(), times.end(), time) - times.begin());
  };
  std::vector<int32_t> order(in.blocks.size());
  std::iota(order.begin(), order.end(), 0);
  const auto block = [&](int32_t b) -> const AllocBlock& {
    return in.blocks[static_cast<size_t>(b)];
  };
  const auto life = [&](int32_t b) { return int64_t{block(b).upper} - block(b).lower; };
  std::sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    if (life(a) != life(b)) return life(a) > life(b);
    if (block(a).size != block(b).size) return block(a).size > block(b).size;
    return reversed(a) < reversed(b);
  });
  Skyline skyline(times.size());
  Packing packing;
  packing.offsets.resize(in.blocks.size());
  for (const int32_t b : order) {
    Bytes offset = 0;
    for (int32_t i = block(b).first; i < block(b).last; ++i) {
      const AllocRect& r = in.rects[static_cast<size_t>(i)];
      offset = std::max(offset, skyline.highest(rank(r.lower), rank(r.upper)) - r.distance);
    }
    for (int32_t i = block(b).first; i < block(b).last; ++i) {
      const AllocRect& r = in.rects[static_cast<size_t>(i)];
      skyline.raise(rank(r.lower), rank(r.upper), offset + r.distance + r.size);
    }
    packing.offsets[static_cast<size_t>(b)] = offset;
  }
  packing.height = height_of(in, packing.offsets);
  return packing;
}

}  // namespace headrace::plan
