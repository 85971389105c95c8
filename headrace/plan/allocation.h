// Static allocation: offsets for buffers whose sizes and lifetimes are known, the 2-D packing at the
// end of every plan and a tool of its own (`headrace offsets`). Knows nothing of tensors.
//
// Vocabulary
//   buffer     [lower, upper) in time, `size` bytes.
//   block      what gets one offset: one buffer, or several at fixed distances (a tensor whose middle
//              part is away for a while is three buffers in one block).
//   load       the sum of the sizes alive at a time; its maximum bounds every solution from below.
//
// Promises
//   1. solutions pass validate(); 2. deterministic, no clock: effort is counted in steps of search;
//   3. a larger capacity never turns a solved problem into a failure.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "headrace/base/status.h"
#include "headrace/base/types.h"

namespace headrace {

struct AllocBuffer {
  int32_t lower = 0;      // first time alive
  int32_t upper = 0;      // one past the last
  Bytes size = 0;
  int32_t block = -1;     // buffers with the same number move together; -1: a block of its own
  Bytes distance = 0;     // of this buffer's begin from its block's offset
  bool operator==(const AllocBuffer&) const = default;
};

struct AllocProblem {
  std::vector<AllocBuffer> buffers;
  Bytes alignment = 1;    // of the offsets of blocks; distances are multiples of it
};

struct AllocOptions {
  Bytes capacity = -1;       // -1: as small as can be found
  // How much exact search the hard cases may cost, in nodes of 0.5 to 5 us; 0: heuristics alone.
  // Problems of more than 4,000 blocks, or with blocks of several buffers, are not searched;
  // `method` says so.
  int64_t search_nodes = 0;
  // How much the heuristics may cost, in placed buffers looked at (about 1 ns each). One quick
  // order (O(n log n)) is always packed to its end.
  int64_t greedy_work = 1'000'000'000;
};

struct AllocSolution {
  std::vector<Bytes> offsets;  // by buffer
  Bytes height = 0;            // end of the highest buffer
  Bytes lower_bound = 0;       // proven: no solution is lower
  bool fits = false;           // height <= capacity (always when none was given)
  std::string method;          // which heuristic or search found it, for people
  int64_t nodes = 0;           // search steps used
  // When it does not fit: the time at which the most buffers lie above the capacity.
  int32_t worst_time = 0;
};

// The largest load at any time.
Bytes max_load(const AllocProblem& problem);

// kUsage for lifetimes that are empty, negative sizes, or blocks that overlap themselves.
Result<AllocSolution> allocate(const AllocProblem& problem, const AllocOptions& options);

// Ok, or the first two buffers that share a byte at a time, or lie outside [0, capacity) (-1: any
// height), are not aligned or have left their block. A sweep over time, O(n log n); shares no code
// with allocate().
Status validate(const AllocProblem& problem, const std::vector<Bytes>& offsets, Bytes capacity);

// CSV with a header `id,lower,upper,size` (MiniMalloc's format, half-open lifetimes; columns in any
// order, other columns are passed over). `block` and `distance` may be given too. ids are returned
// in `ids`; each occurs once. kBadFile with the line number.
Result<AllocProblem> parse_alloc_csv(std::string_view text, std::vector<std::string>* ids);
// id,lower,upper,size,offset
std::string to_csv(const AllocProblem& problem, const std::vector<std::string>& ids,
                   const std::vector<Bytes>& offsets);

}  // namespace headrace
