// The stage `offsets` of emit: one allocation problem a tier.
#include <algorithm>

#include "headrace/plan/allocation.h"
#include "headrace/plan/emit_step.h"

namespace headrace::plan {
namespace {

// What the heuristics may cost, in placed buffers looked at (1 ns each): a fraction of what the whole
// plan may take. Ten times as much packs a kernel trace of 1,400 ops 0.2 % better; of 30 ops, which are
// planned in many rounds, 25 times as much makes steps 0.06 % shorter and planning four times slower.
constexpr int64_t kMostGreedyWork = 30'000'000;
constexpr int64_t kGreedyWorkAShortBuffer = 20'000;
constexpr int64_t kGreedyWorkABuffer = 4'000;

// One for all extents of a tier: the largest that a tensor there asks for.
Bytes alignment_of(const Problem& p, const Draft& d, TierId tier) {
  Bytes most = kLine;
  for (const Residency& r : d.program.residencies) {
    if (!r.tensor.valid() || r.tier != tier) continue;
    const Tensor& t = p.graph->at(r.tensor);
    most = std::max(most, tier == kDevice ? headrace::alignment_of(t) : t.alignment);
  }
  return most;
}

struct TierProblem {
  AllocProblem problem;
  std::vector<size_t> residency;  // by buffer
};

TierProblem problem_of(const Problem& p, const Draft& d, TierId tier,
                       const std::vector<int32_t>& sharing) {
  TierProblem t;
  t.problem.alignment = alignment_of(p, d, tier);
  std::vector<int32_t> number(static_cast<size_t>(d.blocks), -1);
  int32_t next = 0;
  for (size_t i = 0; i < d.program.residencies.size(); ++i) {
    const Residency& r = d.program.residencies[i];
    if (r.tier != tier) continue;
    AllocBuffer b;
    b.lower = r.begin.value + 1;  // the entry is time 0
    b.upper = r.end.value + 1;
    b.size = r.bytes;
    const size_t block = static_cast<size_t>(d.block[i]);
    if (sharing[block] > 1) {
      if (number[block] < 0) number[block] = next++;
      b.block = number[block];
      b.distance = r.range.begin;
    }
    t.problem.buffers.push_back(b);
    t.residency.push_back(i);
  }
  return t;
}

// Ops that ran for the first time before `step`: the position that it belongs to.
int32_t position_of(const Draft& d, int32_t step) {
  std::vector<bool> ran(d.program.graph->ops.size(), false);
  int32_t position = 0;
  for (int32_t s = 0; s < step && s < static_cast<int32_t>(d.program.instrs.size()); ++s) {
    const Instr& i = d.program.instrs[static_cast<size_t>(s)];
    if (i.kind != InstrKind::kCompute || ran[i.op.index()]) continue;
    ran[i.op.index()] = true;
    ++position;
  }
  return std::min(position, static_cast<int32_t>(ran.size()) - 1);
}

// Steps of a draft: of the op at each position, and of the last op that runs again before it.
struct Steps {
  std::vector<int32_t> op, again;
};

Steps steps_of(const Problem& p, const Draft& d) {
  std::vector<bool> ran(p.order.size(), false);
  Steps steps;
  steps.op.resize(p.order.size() + 1, -1);
  steps.again.resize(p.order.size() + 1, -1);
  size_t position = 0;
  for (size_t s = 0; s < d.program.instrs.size(); ++s) {
    const Instr& i = d.program.instrs[s];
    if (i.kind != InstrKind::kCompute) continue;
    (ran[i.op.index()] ? steps.again[position] : steps.op[position++]) = static_cast<int32_t>(s);
    ran[i.op.index()] = true;
  }
  return steps;
}

// Offsets that were decided before.
void place_given(const Problem& p, const std::vector<Extent>& extents, Draft& d) {
  const Steps steps = steps_of(p, d);
  std::vector<std::vector<const Extent*>> of_value(p.values.size());
  std::vector<std::vector<const Extent*>> of_op(p.graph->ops.size());
  for (const Extent& e : extents) {
    const auto position = static_cast<size_t>(e.op_position);
    (e.value < 0 ? of_op[p.order[position].index()] : of_value[static_cast<size_t>(e.value)])
        .push_back(&e);
  }
  for (Residency& r : d.program.residencies) {
    if (r.tier != kDevice) continue;
    const auto& list = r.tensor.valid()
                           ? of_value[static_cast<size_t>(p.value_of[r.tensor.index()])]
                           : of_op[r.op.index()];
    const Extent* found = nullptr;
    for (const Extent* e : list) {
      const auto last = static_cast<size_t>(std::max(e->last_position, 0));
      const int32_t step = e->last_position < 0 ? kEntry.value
                           : e->among_reruns   ? steps.again[last]
                                               : steps.op[last];
      if (step < r.begin.value) continue;
      found = e;
      break;
    }
    HR_CHECK(found != nullptr || !list.empty(), "every residency has an extent");
    if (found == nullptr) found = list.back();
    r.offset = found->offset + r.range.begin;
    d.program.arena_bytes = std::max(d.program.arena_bytes, r.offset + r.bytes);
  }
}

}  // namespace

Status assign_extents(const Problem& p, const EmitOptions& options, Draft& d, Emitted& result) {
  std::vector<int32_t> sharing(static_cast<size_t>(d.blocks), 0);
  for (int32_t b : d.block) ++sharing[static_cast<size_t>(b)];
  Bytes worst = 0;
  for (size_t tier = 0; tier < d.program.tiers.size(); ++tier) {
    const TierId id(static_cast<int64_t>(tier));
    if (id == kDevice && options.extents != nullptr) {
      place_given(p, *options.extents, d);
      continue;
    }
    const TierProblem t = problem_of(p, d, id, sharing);
    if (t.problem.buffers.empty()) continue;
    // A capacity of 0 on another tier says that nobody stated one.
    const Bytes stated = p.machine->tiers[tier].capacity;
    const Bytes capacity = id == kDevice ? p.request->budget : stated > 0 ? stated : -1;
    AllocOptions a;
    a.capacity = capacity;
    a.search_nodes = options.search_nodes;
    const auto buffers = static_cast<int64_t>(t.problem.buffers.size());
    a.greedy_work = std::min(kMostGreedyWork, kGreedyWorkAShortBuffer * buffers) +
                    kGreedyWorkABuffer * buffers;
    HR_ASSIGN(const AllocSolution solution, allocate(t.problem, a));
    result.search_nodes += solution.nodes;
    for (size_t i = 0; i < t.residency.size(); ++i) {
      d.program.residencies[t.residency[i]].offset = solution.offsets[i];
    }
    // Where nobody stated a capacity the Program says what it takes.
    if (capacity < 0) d.program.tiers[tier].capacity = solution.height;
    if (id == kDevice) d.program.arena_bytes = std::max<Bytes>(solution.height, 0);
    const Bytes excess = capacity < 0 ? 0 : solution.height - capacity;
    if (excess > worst) {
      worst = excess;
      result.excess_tier = id;
      if (id == kDevice) result.worst_position = position_of(d, solution.worst_time - 1);
    }
  }
  result.excess = worst;
  // Whole pages where the budget has the room for the rounding.
  Bytes& arena = d.program.arena_bytes;
  arena = std::max(arena, std::min(round_up(arena, kPage), p.request->budget));
  return {};
}

}  // namespace headrace::plan
