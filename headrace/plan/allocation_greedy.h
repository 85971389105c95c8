// Greedy packing: blocks in some order, each at the lowest (first fit) or tightest (best fit) hole.
// Internal to allocation*.cc.
#pragma once

#include <string>
#include <vector>

#include "headrace/plan/allocation_instance.h"
#include "headrace/plan/allocation_shelf.h"

namespace headrace::plan {

enum class Fit : uint8_t { kFirst, kBest };

// What comes first among blocks of equal key.
enum class Ties : uint8_t { kEarly, kLate, kLongest, kLargest, kIndex, kEndsLate };

// Blocks by falling log(size) + lifetime_weight * log(lifetime), in steps of log(2) / steps where
// those are given, so that sizes that hardly differ are ties.
struct GreedyRule {
  double lifetime_weight = 0;
  Ties ties = Ties::kEarly;
  Fit fit = Fit::kFirst;
  double steps = 0;
};
// "first fit by size x lifetime^0.5, ties early".
std::string name_of(const GreedyRule& rule);

// Numbers of all blocks, in the order of the rule.
std::vector<int32_t> order_by(const AllocInstance& instance, const GreedyRule& rule);

// Packs again and again into one shelf.
class GreedyPacker {
 public:
  explicit GreedyPacker(const AllocInstance& instance);
  // Places the blocks of `order` one after another. Nothing is found when a block would end above
  // `most`, or when work() passes the limit; `stopped_at` (may be null) then says at which position
  // of `order`.
  Packing pack(const std::vector<int32_t>& order, Fit fit, Bytes most,
               size_t* stopped_at = nullptr);
  void limit_work(int64_t most) { most_work_ = most; }
  // Placed buffers looked at so far: the measure of effort.
  int64_t work() const { return shelf_.work(); }

 private:
  Bytes lowest_for(const AllocBlock& block) const;

  const AllocInstance& in_;
  Shelf shelf_;
  int64_t most_work_ = INT64_MAX;
};

// Each block on top of all that is alive with it, longest lives first: quick, whatever the size.
Packing pack_skyline(const AllocInstance& instance);

// Squeaky wheel (D. Joslin, D. Clements, "Squeaky Wheel Optimization", JAIR 10, 1999): what did not
// fit below the best height so far moves towards the front of the order, again and again, until
// `enough` is reached or `work` is used up. Returns the best packing found, or none if no packing
// below `best` was.
Packing improve(GreedyPacker& packer, std::vector<int32_t> order, Fit fit, Bytes best, Bytes enough,
                int64_t work);

}  // namespace headrace::plan
