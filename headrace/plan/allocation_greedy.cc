#include "headrace/plan/allocation_greedy.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace headrace::plan {
namespace {

const char* name_of(Ties ties) {
  switch (ties) {
    case Ties::kEarly: return "early";
    case Ties::kLate: return "late";
    case Ties::kLongest: return "longest";
    case Ties::kLargest: return "largest";
    case Ties::kIndex: return "index";
    case Ties::kEndsLate: return "last to end";
  }
  return "";
}

struct SortKey {
  double key = 0;
  double tie = 0;
  int32_t block = 0;
};

double tie_of(const AllocBlock& b, Ties ties) {
  switch (ties) {
    case Ties::kEarly: return b.lower;
    case Ties::kLate: return -static_cast<double>(b.lower);
    case Ties::kLongest: return -(static_cast<double>(b.upper) - b.lower);
    case Ties::kLargest: return -static_cast<double>(b.size);
    case Ties::kIndex: return 0;
    case Ties::kEndsLate: return -static_cast<double>(b.upper);
  }
  return 0;
}

int32_t earliest(const AllocInstance& in) {
  int32_t t = std::numeric_limits<int32_t>::max();
  for (const AllocBlock& b : in.blocks) t = std::min(t, b.lower);
  return t;
}

int32_t latest(const AllocInstance& in) {
  int32_t t = std::numeric_limits<int32_t>::min();
  for (const AllocBlock& b : in.blocks) t = std::max(t, b.upper);
  return t;
}

}  // namespace

std::string name_of(const GreedyRule& rule) {
  std::string key = "size";
  if (rule.lifetime_weight > 0) key += text_of(" x lifetime^%.2g", rule.lifetime_weight);
  return text_of("%s fit by %s, ties %s", rule.fit == Fit::kFirst ? "first" : "best", key.c_str(),
                 name_of(rule.ties));
}

std::vector<int32_t> order_by(const AllocInstance& instance, const GreedyRule& rule) {
  std::vector<SortKey> keys;
  keys.reserve(instance.blocks.size());
  for (size_t i = 0; i < instance.blocks.size(); ++i) {
    const AllocBlock& b = instance.blocks[i];
    const auto size = static_cast<double>(b.size);
    const double lifetime = b.area / size;
    keys.push_back({-(std::log(size) + rule.lifetime_weight * std::log(lifetime)),
                    tie_of(b, rule.ties), static_cast<int32_t>(i)});
  }
  std::sort(keys.begin(), keys.end(), [](const SortKey& a, const SortKey& b) {
    if (a.key != b.key) return a.key < b.key;
    return a.tie != b.tie ? a.tie < b.tie : a.block < b.block;
  });
  std::vector<int32_t> order;
  order.reserve(keys.size());
  for (const SortKey& k : keys) order.push_back(k.block);
  return order;
}

GreedyPacker::GreedyPacker(const AllocInstance& instance)
    : in_(instance), shelf_(earliest(instance), latest(instance), instance.rects.size()) {}

// Raised by one rect after another until none of them has to be.
Bytes GreedyPacker::lowest_for(const AllocBlock& block) const {
  Bytes at = 0;
  for (int32_t settled = 0, i = block.first; settled < block.last - block.first; ++settled) {
    const AllocRect& r = in_.rects[static_cast<size_t>(i)];
    const Bytes found = shelf_.lowest(r.lower, r.upper, r.size, at + r.distance) - r.distance;
    if (found != at) settled = 0;
    at = found;
    if (++i == block.last) i = block.first;
  }
  return at;
}

Packing GreedyPacker::pack(const std::vector<int32_t>& order, Fit fit, Bytes most) {
  shelf_.clear();
  Packing packing;
  packing.offsets.resize(in_.blocks.size());
  for (const int32_t index : order) {
    const AllocBlock& block = in_.blocks[static_cast<size_t>(index)];
    const AllocRect& only = in_.rects[static_cast<size_t>(block.first)];
    const bool single = block.last - block.first == 1 && only.distance == 0;
    const Bytes at = fit == Fit::kBest && single
                         ? shelf_.tightest(only.lower, only.upper, only.size)
                         : lowest_for(block);
    for (int32_t i = block.first; i < block.last; ++i) {
      const AllocRect& r = in_.rects[static_cast<size_t>(i)];
      packing.height = std::max(packing.height, at + r.true_end);
      if (packing.height > most) return Packing();
      shelf_.add(r.lower, r.upper, at + r.distance, at + r.distance + r.size);
    }
    packing.offsets[static_cast<size_t>(index)] = at;
  }
  return packing;
}

}  // namespace headrace::plan
