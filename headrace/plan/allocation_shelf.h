// The buffers that a greedy heuristic has placed so far, asked for the lowest (or tightest) hole
// over a span of time. Internal to allocation*.cc.
//
// Buffers lie sorted by begin in lists, so that one pass from the bottom finds the hole; a filter
// without branches picks those alive in the span. Short spans look only at the list of their slab
// of time. Costs, measured on 28,526 buffers with 3,030 neighbours each: see bench/results.
#pragma once

#include <cstdint>
#include <vector>

#include "headrace/base/types.h"

namespace headrace::plan {

// Sorted by begin, in chunks, so that an insertion moves few entries.
class PlacedList {
 public:
  void clear();
  void add(int32_t lower, int32_t upper, Bytes begin, Bytes end);
  // The lowest offset >= `from` with `size` bytes free over [lower, upper).
  Bytes lowest(int32_t lower, int32_t upper, Bytes size, Bytes from) const;
  // The begin of the smallest hole below the topmost buffer that has `size` bytes free; the top
  // when there is none. The lowest of equal ones.
  Bytes tightest(int32_t lower, int32_t upper, Bytes size) const;
  // Entries looked at since the beginning.
  int64_t work() const { return work_; }

 private:
  static constexpr int kRoom = 128;  // entries in a chunk: 3 KiB
  struct Chunk {
    int32_t used = 0;
    int32_t lower[kRoom];
    int32_t upper[kRoom];
    Bytes begin[kRoom];
    Bytes end[kRoom];
  };
  static int alive(const Chunk& chunk, int32_t lower, int32_t upper, uint8_t* which);
  void split(size_t at);

  std::vector<Bytes> first_begin_;  // of chunks
  std::vector<int32_t> chunk_of_;   // order of chunks -> index in chunks_
  std::vector<Chunk> chunks_;
  size_t used_chunks_ = 0;
  mutable int64_t work_ = 0;
};

class Shelf {
 public:
  // Spans lie in [lower, upper); `count` buffers will be added that live `mean_life` on average.
  Shelf(int32_t lower, int32_t upper, size_t count, double mean_life);
  void clear();
  void add(int32_t lower, int32_t upper, Bytes begin, Bytes end);
  Bytes lowest(int32_t lower, int32_t upper, Bytes size, Bytes from) const {
    return list_of(lower, upper).lowest(lower, upper, size, from);
  }
  Bytes tightest(int32_t lower, int32_t upper, Bytes size) const {
    return list_of(lower, upper).tightest(lower, upper, size);
  }
  // Entries looked at or inserted since the beginning: the measure of effort.
  int64_t work() const;

 private:
  const PlacedList& list_of(int32_t lower, int32_t upper) const;
  int64_t slab(int64_t time) const { return (time - lower_) / width_; }

  int64_t lower_ = 0;
  int64_t width_ = 1;
  PlacedList whole_;
  std::vector<PlacedList> slabs_;  // slab s holds what lives in [s, s + 2) widths
};

}  // namespace headrace::plan
