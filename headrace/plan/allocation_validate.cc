// The judge of allocate(): a sweep over time that keeps what is alive sorted by begin. Obvious on
// purpose, and it shares no code with what it judges.
#include <algorithm>
#include <map>
#include <numeric>

#include "headrace/plan/allocation.h"

namespace headrace {
namespace {

long long ll(Bytes n) { return static_cast<long long>(n); }

Status check_places(const AllocProblem& problem, const std::vector<Bytes>& offsets,
                    Bytes capacity) {
  std::map<int32_t, Bytes> block_offsets;
  for (size_t i = 0; i < offsets.size(); ++i) {
    const AllocBuffer& b = problem.buffers[i];
    const Bytes block_offset = offsets[i] - b.distance;
    if (block_offset < 0 ||
        offsets[i] > capacity || b.size > capacity - offsets[i]) {
      return error(Code::kUsage, "buffer %zu at %lld with %lld bytes lies outside [0, %lld)", i,
                   ll(offsets[i]), ll(b.size), ll(capacity));
    }
    if (block_offset % problem.alignment != 0) {
      return error(Code::kUsage, "buffer %zu: the offset %lld of its block is no multiple of %lld",
                   i, ll(block_offset), ll(problem.alignment));
    }
    if (b.block < 0) continue;
    const auto [at, is_first] = block_offsets.insert({b.block, block_offset});
    if (at->second != block_offset) {
      return error(Code::kUsage, "buffer %zu puts block %d at %lld, another buffer at %lld", i,
                   b.block, ll(block_offset), ll(at->second));
    }
  }
  return Status();
}

Status shared(const AllocProblem& problem, const std::vector<Bytes>& offsets, size_t i, size_t j) {
  if (j < i) std::swap(i, j);
  return error(Code::kUsage,
               "buffers %zu at [%lld, %lld) and %zu at [%lld, %lld) share bytes at time %d", i,
               ll(offsets[i]), ll(offsets[i] + problem.buffers[i].size), j, ll(offsets[j]),
               ll(offsets[j] + problem.buffers[j].size),
               std::max(problem.buffers[i].lower, problem.buffers[j].lower));
}

}  // namespace

Status validate(const AllocProblem& problem, const std::vector<Bytes>& offsets, Bytes capacity) {
  const std::vector<AllocBuffer>& all = problem.buffers;
  if (offsets.size() != all.size()) {
    return error(Code::kUsage, "%zu offsets for %zu buffers", offsets.size(), all.size());
  }
  if (problem.alignment < 1) {
    return error(Code::kUsage, "an alignment of %lld bytes", ll(problem.alignment));
  }
  if (capacity < 0) capacity = INT64_MAX;
  HR_TRY(check_places(problem, offsets, capacity));
  std::vector<size_t> by_begin(all.size()), by_end;
  std::iota(by_begin.begin(), by_begin.end(), size_t{0});
  std::erase_if(by_begin, [&](size_t i) { return all[i].size == 0; });
  by_end = by_begin;
  std::stable_sort(by_begin.begin(), by_begin.end(),
                   [&](size_t a, size_t b) { return all[a].lower < all[b].lower; });
  std::stable_sort(by_end.begin(), by_end.end(),
                   [&](size_t a, size_t b) { return all[a].upper < all[b].upper; });
  std::map<Bytes, size_t> alive;  // by offset; disjoint, so neighbours are all there is to look at
  size_t ended = 0;
  for (const size_t i : by_begin) {
    for (; all[by_end[ended]].upper <= all[i].lower; ++ended) alive.erase(offsets[by_end[ended]]);
    const auto above = alive.lower_bound(offsets[i]);
    if (above != alive.end() && above->first < offsets[i] + all[i].size) {
      return shared(problem, offsets, i, above->second);
    }
    if (above != alive.begin()) {
      const size_t below = std::prev(above)->second;
      if (offsets[below] + all[below].size > offsets[i]) return shared(problem, offsets, i, below);
    }
    alive.insert({offsets[i], i});
  }
  return Status();
}

}  // namespace headrace
