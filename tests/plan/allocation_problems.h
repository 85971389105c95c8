// Random problems of static allocation and slow references, for the tests of headrace/plan/allocation.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <random>
#include <vector>

#include "headrace/plan/allocation.h"

namespace headrace::test {

// The distributions of <random> differ between libraries; these do not.
class Draw {
 public:
  explicit Draw(uint32_t seed) : random_(seed) {}
  int64_t below(int64_t n) { return static_cast<int64_t>(random_() % static_cast<uint64_t>(n)); }
  int64_t between(int64_t low, int64_t high) { return low + below(high - low + 1); }

 private:
  std::mt19937_64 random_;
};

inline AllocProblem tiny_problem(uint32_t seed) {
  Draw draw(seed);
  AllocProblem p;
  if (seed % 3 == 0) p.alignment = 4;
  const int64_t count = draw.between(2, 7);
  for (int64_t i = 0; i < count; ++i) {
    AllocBuffer b;
    b.lower = static_cast<int32_t>(draw.below(8));
    b.upper = b.lower + static_cast<int32_t>(draw.between(1, 5));
    b.size = draw.between(1, 12);
    p.buffers.push_back(b);
  }
  return p;
}

inline AllocProblem random_problem(uint32_t seed) {
  Draw draw(seed);
  AllocProblem p;
  p.alignment = int64_t{1} << draw.below(4);
  const int64_t count = draw.between(1, 300), times = draw.between(2, 400);
  for (int64_t i = 0; i < count; ++i) {
    AllocBuffer b;
    b.lower = static_cast<int32_t>(draw.below(times) - 50);
    b.upper = b.lower + static_cast<int32_t>(1 + draw.below(draw.below(5) == 0 ? times : 9));
    b.size = draw.below(draw.below(3) == 0 ? 5000 : 60);
    p.buffers.push_back(b);
  }
  return p;
}

// Some buffers lose their middle for a while: three or more rects in one block.
inline AllocProblem composite_problem(uint32_t seed) {
  Draw draw(seed);
  AllocProblem p;
  p.alignment = int64_t{1} << draw.below(4);
  const int64_t count = draw.between(2, 60);
  for (int64_t i = 0; i < count; ++i) {
    AllocBuffer b;
    b.lower = static_cast<int32_t>(draw.below(60));
    b.upper = b.lower + static_cast<int32_t>(draw.between(1, 30));
    b.size = draw.between(1, 200);
    if (draw.below(3) != 0 || b.upper - b.lower < 3) {
      p.buffers.push_back(b);
      continue;
    }
    b.block = static_cast<int32_t>(1000 - i);  // numbers in no order
    const auto out = b.lower + static_cast<int32_t>(draw.between(1, b.upper - b.lower - 2));
    const auto back = out + static_cast<int32_t>(draw.between(1, b.upper - out - 1));
    const Bytes middle = p.alignment * draw.between(1, 20), head = p.alignment * draw.below(9);
    const AllocBuffer whole = b;
    const auto add = [&](int32_t lower, int32_t upper, Bytes size, Bytes distance) {
      if (size > 0) p.buffers.push_back({lower, upper, size, whole.block, distance});
    };
    add(b.lower, b.upper, head, 0);
    add(b.lower, out, middle, head);
    add(back, b.upper, middle, head);
    add(b.lower, b.upper, b.size, head + middle);
  }
  return p;
}

// Of any order of placing each buffer at its lowest free offset the best: optimal, since the order
// of the offsets of an optimal packing gives it. Buffers of their own block only, at most 8.
inline Bytes brute_force_height(const AllocProblem& p) {
  std::vector<size_t> order(p.buffers.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::vector<Bytes> at(order.size());
  Bytes best = INT64_MAX;
  do {
    Bytes height = 0;
    for (size_t k = 0; k < order.size(); ++k) {
      const AllocBuffer& b = p.buffers[order[k]];
      Bytes& offset = at[order[k]];
      offset = 0;
      for (bool moved = true; moved;) {
        moved = false;
        for (size_t m = 0; m < k; ++m) {
          const AllocBuffer& q = p.buffers[order[m]];
          const Bytes begin = at[order[m]];
          if (q.lower < b.upper && b.lower < q.upper && offset < begin + q.size &&
              begin < offset + b.size) {
            offset = round_up(begin + q.size, p.alignment);
            moved = true;
          }
        }
      }
      height = std::max(height, offset + b.size);
    }
    best = std::min(best, height);
  } while (std::next_permutation(order.begin(), order.end()));
  return best;
}

inline bool all_pairs_apart(const AllocProblem& p, const std::vector<Bytes>& offsets) {
  for (size_t i = 0; i < offsets.size(); ++i) {
    for (size_t j = 0; j < i; ++j) {
      const AllocBuffer& a = p.buffers[i];
      const AllocBuffer& b = p.buffers[j];
      if (a.lower < b.upper && b.lower < a.upper && offsets[i] < offsets[j] + b.size &&
          offsets[j] < offsets[i] + a.size && a.size > 0 && b.size > 0) {
        return false;
      }
    }
  }
  return true;
}

}  // namespace headrace::test
