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

constexpr size_t kBlocksACount = 1024;

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

double mean_life(const AllocInstance& in) {
  double sum = 0;
  for (const AllocRect& r : in.rects) sum += static_cast<double>(r.upper) - r.lower;
  return sum / static_cast<double>(in.rects.size());
}

}  // namespace

std::string name_of(const GreedyRule& rule) {
  std::string key = "size";
  if (rule.lifetime_weight > 0) key += text_of(" x lifetime^%.2g", rule.lifetime_weight);
  if (rule.steps > 0) key += text_of(" in steps of 2^(1/%g)", rule.steps);
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
    double key = std::log2(size) + rule.lifetime_weight * std::log2(lifetime);
    if (rule.steps > 0) key = std::floor(key * rule.steps);
    keys.push_back({-key, tie_of(b, rule.ties), static_cast<int32_t>(i)});
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
    : in_(instance),
      shelf_(earliest(instance), latest(instance), instance.rects.size(), mean_life(instance)) {}

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

Packing GreedyPacker::pack(const std::vector<int32_t>& order, Fit fit, Bytes most,
                           size_t* stopped_at) {
  shelf_.clear();
  Packing packing;
  packing.offsets.resize(in_.blocks.size());
  for (size_t k = 0; k < order.size(); ++k) {
    // Counting costs a pass over the slabs: not for every block.
    if (k % kBlocksACount == 0 && work() > most_work_) {
      if (stopped_at != nullptr) *stopped_at = 0;
      return Packing();
    }
    const int32_t index = order[k];
    const AllocBlock& block = in_.blocks[static_cast<size_t>(index)];
    const AllocRect& only = in_.rects[static_cast<size_t>(block.first)];
    const bool single = block.last - block.first == 1 && only.distance == 0;
    const Bytes at = fit == Fit::kBest && single
                         ? shelf_.tightest(only.lower, only.upper, only.size)
                         : lowest_for(block);
    for (int32_t i = block.first; i < block.last; ++i) {
      const AllocRect& r = in_.rects[static_cast<size_t>(i)];
      packing.height = std::max(packing.height, at + r.true_end);
      if (packing.height > most) {
        if (stopped_at != nullptr) *stopped_at = k;
        return Packing();
      }
      shelf_.add(r.lower, r.upper, at + r.distance, at + r.distance + r.size);
    }
    packing.offsets[static_cast<size_t>(index)] = at;
  }
  return packing;
}

Packing improve(GreedyPacker& packer, std::vector<int32_t> order, Fit fit, Bytes best, Bytes enough,
                int64_t work) {
  Packing found;
  const int64_t begin = packer.work();
  while (best > enough && packer.work() - begin < work) {
    size_t stopped_at = 0;
    Packing packing = packer.pack(order, fit, best - 1, &stopped_at);
    if (packing.found()) {
      best = packing.height;
      found = std::move(packing);
      continue;
    }
    if (stopped_at == 0) break;  // too high by itself
    const auto from = order.begin() + static_cast<std::ptrdiff_t>(stopped_at);
    std::rotate(order.begin() + static_cast<std::ptrdiff_t>(stopped_at / 2), from, from + 1);
  }
  return found;
}

}  // namespace headrace::plan
