#include "headrace/plan/allocation_instance.h"

#include <algorithm>
#include <limits>
#include <numeric>

namespace headrace {
namespace plan {
namespace {

// Sums of sizes stay far from overflow, also with a distance and an alignment added.
constexpr Bytes kMostBytes = Bytes{1} << 61;

long long ll(Bytes n) { return static_cast<long long>(n); }

Status check_buffer(const AllocProblem& p, size_t i) {
  const AllocBuffer& b = p.buffers[i];
  if (b.lower >= b.upper) {
    return error(Code::kUsage, "buffer %zu lives from %d to %d: an empty lifetime", i, b.lower,
                 b.upper);
  }
  if (b.size < 0) return error(Code::kUsage, "buffer %zu has %lld bytes", i, ll(b.size));
  if (b.distance < 0 || b.distance % p.alignment != 0) {
    return error(Code::kUsage,
                 "buffer %zu lies %lld bytes from the begin of its block: no multiple of the "
                 "alignment %lld",
                 i, ll(b.distance), ll(p.alignment));
  }
  return Status();
}

// What is alive changes at these times.
struct Edge {
  int32_t time = 0;
  int32_t rect = 0;
  bool begins = false;
};

std::vector<Edge> edges_of(const std::vector<AllocRect>& rects) {
  std::vector<Edge> edges;
  edges.reserve(2 * rects.size());
  for (size_t i = 0; i < rects.size(); ++i) {
    edges.push_back({rects[i].lower, static_cast<int32_t>(i), true});
    edges.push_back({rects[i].upper, static_cast<int32_t>(i), false});
  }
  std::sort(edges.begin(), edges.end(), [](const Edge& a, const Edge& b) {
    if (a.time != b.time) return a.time < b.time;
    if (a.begins != b.begins) return b.begins;  // ends first: lifetimes are half-open
    return a.rect < b.rect;
  });
  return edges;
}

// At any time the sum of the rounded sizes, less the rounding of the buffer that lies highest, must
// fit. Taking the largest rounding that any buffer has keeps the bound true.
void set_bounds(AllocInstance& in) {
  Bytes load = 0, highest_end = 0;
  for (const AllocRect& r : in.rects) {
    in.slack = std::max(in.slack, r.distance + r.size - r.true_end);
    highest_end = std::max(highest_end, r.true_end);
  }
  for (const Edge& e : edges_of(in.rects)) {
    const Bytes size = in.rects[static_cast<size_t>(e.rect)].size;
    load += e.begins ? size : -size;
    in.load = std::max(in.load, load);
  }
  in.lower_bound = std::max(highest_end, in.load - in.slack);
}

// Within a block nothing may share bytes at a time.
Status check_block(const AllocInstance& in, const AllocBlock& block) {
  std::vector<AllocRect> rects(in.rects.begin() + block.first, in.rects.begin() + block.last);
  std::stable_sort(rects.begin(), rects.end(),
                   [](const AllocRect& a, const AllocRect& b) { return a.lower < b.lower; });
  std::vector<AllocRect> alive;
  for (const AllocRect& a : rects) {
    std::erase_if(alive, [&](const AllocRect& b) { return b.upper <= a.lower; });
    for (const AllocRect& b : alive) {
      if (a.distance < b.distance + b.size && b.distance < a.distance + a.size) {
        return error(Code::kUsage, "buffers %d and %d of one block overlap each other",
                     std::min(a.buffer, b.buffer), std::max(a.buffer, b.buffer));
      }
    }
    alive.push_back(a);
  }
  return Status();
}

Status gather_blocks(const AllocProblem& problem, AllocInstance& in) {
  // Rects of one block together, blocks in the order of their first buffer.
  std::vector<int32_t> order(problem.buffers.size());
  std::iota(order.begin(), order.end(), 0);
  const auto block_number = [&](int32_t i) {
    return problem.buffers[static_cast<size_t>(i)].block;
  };
  std::vector<int32_t> first_of(order.size());  // the first buffer of its block
  std::iota(first_of.begin(), first_of.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](int32_t a, int32_t b) { return block_number(a) < block_number(b); });
  for (size_t k = 1; k < order.size(); ++k) {
    const int32_t number = block_number(order[k]);
    if (number >= 0 && number == block_number(order[k - 1])) {
      first_of[static_cast<size_t>(order[k])] = first_of[static_cast<size_t>(order[k - 1])];
    }
  }
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    return first_of[static_cast<size_t>(a)] < first_of[static_cast<size_t>(b)];
  });
  int32_t last_first = -1;
  for (const int32_t i : order) {
    const AllocBuffer& b = problem.buffers[static_cast<size_t>(i)];
    if (b.size == 0) continue;
    const auto at = static_cast<int32_t>(in.rects.size());
    if (first_of[static_cast<size_t>(i)] != last_first) {
      last_first = first_of[static_cast<size_t>(i)];
      in.blocks.push_back({at, at, b.lower, b.upper, 0, 0});
    }
    AllocBlock& block = in.blocks.back();
    const Bytes size = round_up(b.size, problem.alignment);
    in.rects.push_back({b.lower, b.upper, size, b.distance, b.distance + b.size, i});
    block.last = at + 1;
    block.lower = std::min(block.lower, b.lower);
    block.upper = std::max(block.upper, b.upper);
    block.size = std::max(block.size, size);
    block.area +=
        static_cast<double>(size) * (static_cast<double>(b.upper) - static_cast<double>(b.lower));
    in.composite = in.composite || block.last - block.first > 1;
  }
  for (const AllocBlock& block : in.blocks) {
    if (block.last - block.first > 1) HR_TRY(check_block(in, block));
  }
  return Status();
}

}  // namespace

Result<AllocInstance> make_instance(const AllocProblem& problem) {
  if (problem.alignment < 1 || problem.alignment > kMostBytes) {
    return error(Code::kUsage, "an alignment of %lld bytes", ll(problem.alignment));
  }
  if (problem.buffers.size() > static_cast<size_t>(std::numeric_limits<int32_t>::max())) {
    return error(Code::kUsage, "%zu buffers: at most 2^31-1 are possible",
                 problem.buffers.size());
  }
  Bytes sum = 0;
  for (size_t i = 0; i < problem.buffers.size(); ++i) {
    HR_TRY(check_buffer(problem, i));
    const AllocBuffer& b = problem.buffers[i];
    const bool over = b.size > kMostBytes - problem.alignment || b.distance > kMostBytes;
    if (!over) sum += round_up(b.size, problem.alignment) + b.distance;
    if (over || sum > kMostBytes) {
      return error(Code::kUsage, "the sizes up to buffer %zu add up to more than 2^61 bytes", i);
    }
  }
  AllocInstance in;
  in.alignment = problem.alignment;
  HR_TRY(gather_blocks(problem, in));
  set_bounds(in);
  return in;
}

Bytes height_of(const AllocInstance& instance, const std::vector<Bytes>& offsets) {
  Bytes height = 0;
  for (size_t b = 0; b < instance.blocks.size(); ++b) {
    const AllocBlock& block = instance.blocks[b];
    for (int32_t i = block.first; i < block.last; ++i) {
      height = std::max(height, offsets[b] + instance.rects[static_cast<size_t>(i)].true_end);
    }
  }
  return height;
}

}  // namespace plan

Bytes max_load(const AllocProblem& problem) {
  std::vector<std::pair<int32_t, Bytes>> changes;
  changes.reserve(2 * problem.buffers.size());
  for (const AllocBuffer& b : problem.buffers) {
    changes.push_back({b.lower, b.size});
    changes.push_back({b.upper, -b.size});
  }
  std::sort(changes.begin(), changes.end());  // ends before begins of the same time
  Bytes load = 0, most = 0;
  for (const auto& [time, change] : changes) {
    load += change;
    most = std::max(most, load);
  }
  return most;
}

}  // namespace headrace
