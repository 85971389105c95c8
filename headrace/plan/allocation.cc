#include "headrace/plan/allocation.h"

#include <algorithm>
#include <map>

#include "headrace/plan/allocation_greedy.h"
#include "headrace/plan/allocation_instance.h"

namespace headrace {
namespace {

using plan::AllocBlock;
using plan::AllocInstance;
using plan::AllocRect;
using plan::Packing;

// No order gives the best packing everywhere, and ties alone move the height by percents; the first
// rules are those that win most often.
std::vector<plan::GreedyRule> portfolio() {
  using plan::Fit;
  using plan::GreedyRule;
  using plan::Ties;
  std::vector<GreedyRule> rules;
  for (const Fit fit : {Fit::kFirst, Fit::kBest}) {
    for (const Ties ties : {Ties::kLongest, Ties::kEarly, Ties::kLate, Ties::kEndsLate}) {
      for (const double q : {0.0, 1.0, 0.5, 2.0, 0.25}) rules.push_back({q, ties, fit});
    }
  }
  return rules;
}

struct Best {
  Packing packing;
  std::string method;
};

Best greedy(const AllocInstance& in, Bytes enough, int64_t work) {
  Best best;
  plan::GreedyPacker packer(in);
  for (const plan::GreedyRule& rule : portfolio()) {
    const Bytes most = best.packing.found() ? best.packing.height - 1 : INT64_MAX;
    Packing packing = packer.pack(plan::order_by(in, rule), rule.fit, most);
    if (packing.found()) best = {std::move(packing), name_of(rule)};
    if (best.packing.height <= enough || packer.work() > work) break;
  }
  return best;
}

// The time at which the most buffers reach above the capacity.
int32_t worst_time(const AllocProblem& problem, const std::vector<Bytes>& offsets,
                   Bytes capacity) {
  std::map<int32_t, int64_t> change;
  for (size_t i = 0; i < offsets.size(); ++i) {
    const AllocBuffer& b = problem.buffers[i];
    if (offsets[i] + b.size <= capacity) continue;
    ++change[b.lower];
    --change[b.upper];
  }
  int64_t count = 0, most = 0;
  int32_t worst = 0;
  for (const auto& [time, by] : change) {
    count += by;
    if (count <= most) continue;
    most = count;
    worst = time;
  }
  return worst;
}

void set_offsets(const AllocInstance& in, const Packing& packing, AllocSolution& solution) {
  for (size_t b = 0; b < in.blocks.size(); ++b) {
    const AllocBlock& block = in.blocks[b];
    for (int32_t i = block.first; i < block.last; ++i) {
      const AllocRect& r = in.rects[static_cast<size_t>(i)];
      solution.offsets[static_cast<size_t>(r.buffer)] = packing.offsets[b] + r.distance;
    }
  }
}

}  // namespace

Result<AllocSolution> allocate(const AllocProblem& problem, const AllocOptions& options) {
  HR_ASSIGN(const AllocInstance in, plan::make_instance(problem));
  AllocSolution solution;
  solution.offsets.resize(problem.buffers.size(), 0);
  solution.lower_bound = in.lower_bound;
  Best best = greedy(in, std::max(options.capacity, in.lower_bound), 4'000'000'000);
  set_offsets(in, best.packing, solution);
  solution.height = best.packing.height;
  solution.method = best.method;
  solution.fits = options.capacity < 0 || solution.height <= options.capacity;
  if (!solution.fits) {
    solution.worst_time = worst_time(problem, solution.offsets, options.capacity);
  }
  return solution;
}

}  // namespace headrace
