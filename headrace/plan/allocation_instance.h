// What the heuristics and the search of static allocation work on: an AllocProblem with blocks
// gathered, sizes rounded up to the alignment and empty buffers left out. Internal to allocation*.cc.
//
// Rounding loses nothing: every begin is a multiple of the alignment, so nothing can start inside
// the last, partial unit of a buffer below it. Only the highest end is counted unrounded.
#pragma once

#include <cstdint>
#include <vector>

#include "headrace/plan/allocation.h"

namespace headrace::plan {

struct AllocRect {
  int32_t lower = 0, upper = 0;  // [lower, upper) in time
  Bytes size = 0;                // rounded up to the alignment
  Bytes distance = 0;            // from the block's offset
  Bytes true_end = 0;            // distance + the size that was asked for
  int32_t buffer = 0;            // its index in the problem
};

// Rects [first, last) of the instance; they have one offset.
struct AllocBlock {
  int32_t first = 0, last = 0;
  int32_t lower = 0, upper = 0;  // hull of the lifetimes
  Bytes size = 0;                // of the largest rect
  double area = 0;               // bytes x time
};

struct AllocInstance {
  std::vector<AllocRect> rects;    // by block
  std::vector<AllocBlock> blocks;  // by their first buffer
  Bytes alignment = 1;
  bool composite = false;  // some block has several rects
  Bytes load = 0;          // largest sum of rounded sizes alive
  Bytes lower_bound = 0;   // no solution is lower
  Bytes slack = 0;         // the most that a true end lies below a rounded one
};

// kUsage as allocate() says.
Result<AllocInstance> make_instance(const AllocProblem& problem);

// Heights are true ends: what AllocSolution::height says.
struct Packing {
  std::vector<Bytes> offsets;  // by block; empty: none found
  Bytes height = 0;
  bool found() const { return !offsets.empty(); }
};

// The highest end of a block at these offsets (one a block).
Bytes height_of(const AllocInstance& instance, const std::vector<Bytes>& offsets);

}  // namespace headrace::plan
