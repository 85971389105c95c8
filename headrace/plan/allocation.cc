#include "headrace/plan/allocation.h"

#include <algorithm>
#include <map>

#include "headrace/plan/allocation_greedy.h"
#include "headrace/plan/allocation_instance.h"
#include "headrace/plan/allocation_search.h"

namespace headrace {
namespace {

using plan::AllocBlock;
using plan::AllocInstance;
using plan::AllocRect;
using plan::Fit;
using plan::Ties;
using plan::Packing;

// No order gives the best packing everywhere, and ties alone move the height by percents. Sizes in
// steps of 2 with a little weight on the lifetime win on traces of training (0.58 % above the load
// on 28,526 buffers, where exact sizes end at 1.58 %), exact sizes on most other problems.
std::vector<plan::GreedyRule> portfolio() {
  std::vector<plan::GreedyRule> rules;
  for (const double q : {0.0, 1.0, 0.5}) rules.push_back({q, Ties::kLongest, Fit::kFirst});
  for (const Ties ties : {Ties::kEarly, Ties::kLate}) {
    for (const Fit fit : {Fit::kFirst, Fit::kBest}) {
      rules.push_back({0, ties, fit});
      for (const double q : {0.1, 0.05, 0.15, 0.2}) rules.push_back({q, ties, fit, 1});
    }
  }
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
  Bytes lower_bound = 0;
  int64_t nodes = 0;

  // Keeps the lower one; the first of equals.
  void offer(Packing p, const std::string& how) {
    if (!p.found() || (packing.found() && p.height >= packing.height)) return;
    packing = std::move(p);
    method = how;
  }
};

// Placed buffers looked at for each block while the best order is improved.
constexpr int64_t kImproveWork = 300'000;
constexpr int64_t kMostImproveWork = 100'000'000;

// All orders, then the better ones improved. Each step is the same whatever `enough` is: a larger
// capacity only ends it earlier.
void greedy(const AllocInstance& in, Bytes enough, int64_t work, Best& best) {
  best.offer(plan::pack_skyline(in), "skyline, longest lives first");
  plan::GreedyPacker packer(in);
  packer.limit_work(work);
  plan::GreedyRule winner;
  const auto done = [&] {
    return best.packing.height <= enough || packer.work() > work;
  };
  for (const plan::GreedyRule& rule : portfolio()) {
    if (done()) return;
    Packing packing = packer.pack(plan::order_by(in, rule), rule.fit, best.packing.height - 1);
    if (packing.found()) winner = rule;
    best.offer(std::move(packing), name_of(rule));
  }
  if (done()) return;
  const int64_t worth = std::min(kImproveWork * static_cast<int64_t>(in.blocks.size()),
                                 kMostImproveWork);
  for (plan::GreedyRule rule : {winner, {1, Ties::kLongest, Fit::kFirst},
                                {0.5, Ties::kLongest, Fit::kFirst}}) {
    if (done()) return;
    best.offer(plan::improve(packer, plan::order_by(in, rule), rule.fit, best.packing.height,
                             enough, std::min(worth, work - packer.work())),
               name_of(rule) + ", improved");
  }
}

// Ranks that find the problems of the MiniMalloc set, most often first; that set needs all three.
constexpr const char* kRanks[] = {"TWA", "TAW", "WAT"};
constexpr int64_t kFirstLimit = 2048;  // nodes of an attempt in the first round
constexpr int64_t kLimitGrowth = 4;
// Attempts of one limit: at most 3 x 14 at fixed heights and some 3 x 25 halvings.
constexpr int64_t kAttempts = 128;

// The exact search, aimed at one height after another. Rounds of attempts with more nodes each; no
// attempt depends on the capacity, which only decides which are worth making and when to stop. So
// whatever is found for one capacity is found for every larger one.
class Searcher {
 public:
  Searcher(const AllocInstance& in, Bytes capacity, Best& best)
      : in_(in), search_(in), capacity_(capacity), best_(best) {}

  void run(int64_t nodes) {
    for (const Stage stage : {&Searcher::likely, &Searcher::unlikely, &Searcher::halve}) {
      for (int64_t limit = kFirstLimit; limit * kAttempts <= nodes || limit == kFirstLimit;
           limit *= kLimitGrowth) {
        (this->*stage)(limit);
        if (done()) return;
      }
    }
  }

 private:
  using Stage = void (Searcher::*)(int64_t limit);

  bool done() const {
    return best_.packing.height <= std::max(capacity_, best_.lower_bound);
  }

  plan::SearchEnd attempt(Bytes target, int64_t limit) {
    plan::SearchEnd end = plan::SearchEnd::kOutOfNodes;
    for (const char* ranks : kRanks) {
      end = search_.run(target, ranks, limit);
      best_.nodes += search_.nodes();
      if (end == plan::SearchEnd::kOutOfNodes) continue;
      if (end == plan::SearchEnd::kFound) {
        Packing packing{search_.offsets(), 0};
        packing.height = height_of(in_, packing.offsets);
        best_.offer(std::move(packing), text_of("exact search, ranks %s", ranks));
      } else {
        best_.lower_bound = std::max(best_.lower_bound, target + 1 - in_.slack);
      }
      break;
    }
    return end;
  }

  // The heights at a fixed part of the load above it that the capacity allows, highest first.
  std::vector<Bytes> fixed_heights() const {
    std::vector<Bytes> heights;
    for (const int64_t part : {192, 128, 96, 64, 48, 32, 24, 16, 12, 8, 4, 2, 1}) {
      const Bytes height = in_.load + in_.load / 1024 * part;
      if (height <= capacity_) heights.push_back(height);
    }
    return heights;
  }

  // A tight target prunes more: with 1 % of room above the load, searches that took milliseconds do
  // not end. Hence the loosest height that will do, and the load itself.
  void likely(int64_t limit) {
    const std::vector<Bytes> heights = fixed_heights();
    if (!heights.empty()) attempt(heights[0], limit);
    if (!done()) attempt(in_.load, limit);
  }

  void unlikely(int64_t limit) {
    const std::vector<Bytes> heights = fixed_heights();
    for (size_t i = 1; i < heights.size() && !done(); ++i) attempt(heights[i], limit);
  }

  // Halves what lies between the proven bound and the best height.
  void halve(int64_t limit) {
    Bytes low = std::max(in_.load - 1, best_.lower_bound - 1 + in_.slack);
    Bytes high = best_.packing.height;
    while (low + 1 < high && !done()) {
      const Bytes target = low + (high - low) / 2;
      if (attempt(target, limit) != plan::SearchEnd::kFound) {
        low = target;
      } else {
        high = std::min(high - 1, target);
      }
    }
  }

  const AllocInstance& in_;
  plan::ExactSearch search_;
  Bytes capacity_;
  Best& best_;
};

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
  if (in.blocks.empty()) {
    solution.fits = true;
    solution.method = "nothing to place";
    return solution;
  }
  Best best;
  best.lower_bound = in.lower_bound;
  const Bytes enough = std::max(options.capacity, in.lower_bound);
  greedy(in, enough, options.greedy_work, best);
  const bool hopeless = options.capacity >= 0 && options.capacity < in.lower_bound;
  if (best.packing.height > enough && options.search_nodes > 0 && !hopeless) {
    if (plan::ExactSearch::can_search(in)) {
      Searcher(in, options.capacity, best).run(options.search_nodes);
    } else {
      best.method += in.composite ? " (blocks of several buffers are not searched)"
                                  : " (too large to search)";
    }
  }
  set_offsets(in, best.packing, solution);
  solution.height = best.packing.height;
  solution.method = best.method;
  solution.lower_bound = best.lower_bound;
  solution.nodes = best.nodes;
  solution.fits = options.capacity < 0 || solution.height <= options.capacity;
  if (!solution.fits) {
    solution.worst_time = worst_time(problem, solution.offsets, options.capacity);
  }
  return solution;
}

}  // namespace headrace
