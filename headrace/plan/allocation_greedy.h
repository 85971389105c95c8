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

// Blocks by falling log(size) + lifetime_weight * log(lifetime).
struct GreedyRule {
  double lifetime_weight = 0;
  Ties ties = Ties::kEarly;
  Fit fit = Fit::kFirst;
};
// "first fit by size x lifetime^0.5, ties early".
std::string name_of(const GreedyRule& rule);

std::vector<int32_t> order_by(const AllocInstance& instance, const GreedyRule& rule);

// Packs again and again into one shelf.
class GreedyPacker {
 public:
  explicit GreedyPacker(const AllocInstance& instance);
  // Places the blocks of `order` one after another. Nothing is found when a block would end above
  // `most`; work is then saved.
  Packing pack(const std::vector<int32_t>& order, Fit fit, Bytes most);
  // Placed buffers looked at so far: the measure of effort.
  int64_t work() const { return shelf_.work(); }

 private:
  Bytes lowest_for(const AllocBlock& block) const;

  const AllocInstance& in_;
  Shelf shelf_;
};

}  // namespace headrace::plan
