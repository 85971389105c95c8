// Tools of the policies: idle gaps, a profile that answers "where is the most", and a builder that
// knows what is where. Internal to heuristics*.cc.
#pragma once

#include <vector>

#include "headrace/plan/heuristics.h"

namespace headrace::plan {

// Positions [after + 1, before) between two touches; after -1: from the entry; before size(): to the
// exit; before above that: across the end of a cycle, to the touch at before - size().
struct IdleGap {
  int32_t value = 0;
  int32_t after = 0, before = 0;
  bool must = false;  // a rule asks for it
};

// All gaps that a policy may use for a move: values that may be stored (or dropped, having a home),
// with at least one position inside.
std::vector<IdleGap> idle_gaps(const Problem& problem);

// Bytes by position under range additions: a segment tree of maxima.
class MaxProfile {
 public:
  explicit MaxProfile(const std::vector<Bytes>& values);
  void add(int32_t begin, int32_t end, Bytes delta);
  Bytes max(int32_t begin, int32_t end) const;  // of [begin, end); 0 when empty
  Bytes max() const { return size_ == 0 ? 0 : top_[1]; }

 private:
  void add(size_t node, int32_t lo, int32_t hi, int32_t begin, int32_t end, Bytes delta);
  Bytes max(size_t node, int32_t lo, int32_t hi, int32_t begin, int32_t end) const;
  int32_t size_ = 0;
  std::vector<Bytes> top_, lazy_;
};

// A gap that is moved: gone at the positions [drop, load).
struct MovedGap {
  IdleGap gap;
  int32_t drop = 0, load = 0;
};

// Stores, drops and loads of these gaps; a value written since its last store is stored again.
Schedule schedule_of(const Problem& problem, std::vector<MovedGap> moved);

}  // namespace headrace::plan
