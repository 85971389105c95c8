// How one problem becomes candidates: by the planner's placement and by the policies.
#include "headrace/plan/step_pipeline.h"

#include <algorithm>
#include <iterator>

#include "headrace/plan/address_search.h"
#include "headrace/plan/emit_step.h"
#include "headrace/plan/improve.h"
#include "headrace/plan/placement.h"
#include "headrace/plan/placement_build.h"
#include "headrace/sim/simulate.h"

namespace headrace::plan {
namespace {

constexpr int32_t kTiny = 128;      // positions: rounds cost little and extents matter much
constexpr int kLocalRounds = 8;
constexpr double kAddressPrice = 0.5;     // of transfers, in the plan that the search starts from
constexpr int64_t kAddressTries = 1000;   // schedules, at most
constexpr int64_t kAddressWork = 40'000;  // schedules x positions: 30 to 100 us a schedule
constexpr double kTolerances[] = {0.02, 0.08};  // of these searches: neither is the better one
// Schedules that local search has tried in all rounds for a tiny step, 10 to 15 us each: up to here
// rounds search in full, and then a little.
constexpr int64_t kFullEffort = 2'500;
constexpr int64_t kSomeEffort = 5'000;
constexpr const char* kRoundWork = "placement";
constexpr int kMostRounds = 4;
constexpr int kMostRoundsShort = 8;  // a step of few large tensors may need more room than four give
constexpr int kHalvings = 3;         // of what lies between a reduction that did and one that did not

// Search nodes of the allocator: what a plan that takes a fraction of a second can afford.
int64_t search_nodes(const Problem& p) {
  if (p.request->goal == Goal::kFit) return 1'000;
  return p.size() > kShortStep ? 2'000 : 20'000;
}

}  // namespace

void Portfolio::offer(Candidate candidate) {
  // Another order by the same policy is the same line for people: the better one stands.
  auto same = std::find_if(considered_.begin(), considered_.end(),
                           [&](const Considered& c) { return c.policy == candidate.policy; });
  Considered now{candidate.policy, true, candidate.trace.total_ns,
                 candidate.program.arena_bytes};
  if (same == considered_.end()) {
    considered_.push_back(now);
  } else if (!same->fits || now.predicted_ns < same->predicted_ns) {
    *same = now;
  }
  if (found() && candidate.trace.total_ns >= best_.trace.total_ns) return;
  // A plan that does not do what the graph says is never handed out, whoever made it.
  if (!verify(candidate.program).ok()) {
    std::erase_if(considered_, [&](const Considered& c) { return c.policy == candidate.policy; });
    return refuse(candidate.policy);
  }
  best_ = std::move(candidate);
}

void Portfolio::refuse(const std::string& policy) {
  note(policy, false, 0, 0);
  count(kRefused, 1);
}

void Portfolio::note(const std::string& policy, bool fits, Nanos at_least, Bytes peak) {
  for (const Considered& c : considered_) {
    if (c.policy == policy) return;
  }
  considered_.push_back({policy, fits, at_least, peak});
}

void Portfolio::count(const std::string& pass, int64_t work) {
  for (PassTime& p : passes_) {
    if (p.pass == pass) {
      p.work += work;
      return;
    }
  }
  passes_.push_back({pass, work});
}

int64_t Portfolio::work_of(const std::string& pass) const {
  for (const PassTime& p : passes_) {
    if (p.pass == pass) return p.work;
  }
  return 0;
}

StepPlan Portfolio::finish(const Problem& problem) {
  StepPlan plan;
  plan.choices = choices_of(best_.program, best_.trace, best_.alternatives);
  plan.program = std::move(best_.program);
  plan.predicted = std::move(best_.trace);
  plan.portfolio = std::move(considered_);
  plan.passes = std::move(passes_);
  plan.unconstrained_peak_bytes = peak_of(resident_profile(problem));
  return plan;
}

namespace {

// Placement for one budget, emitted; invalid when it does not fit, with `excess` and its tier.
struct Round {
  Candidate candidate;
  bool placed = false;
  Bytes excess = 0;
  TierId excess_tier;
  int32_t worst_position = 0;
};

// Of local search: what the rounds before have used is not there any more. Longer steps have few rounds.
double effort_left(const Problem& p, const Portfolio& portfolio) {
  if (p.size() > kTiny) return 1;
  const int64_t spent = portfolio.work_of(kRoundWork);
  return spent < kFullEffort ? 1 : spent < kSomeEffort ? 0.3 : 0.1;
}

Result<Round> run_round(const Problem& p, const std::string& name, PlaceOptions options,
                        Portfolio& portfolio) {
  Round round;
  options.effort *= effort_left(p, portfolio);
  HR_ASSIGN(Placement placement, place(p, options));
  portfolio.count(kRoundWork, placement.work);
  round.placed = placement.fits;
  if (!placement.fits) {
    portfolio.note(name, false, 0, p.budget + placement.missing_bytes);
    return round;
  }
  EmitOptions emit;
  emit.search_nodes = search_nodes(p);
  Result<Emitted> emitted = emit_step(p, placement.schedule, emit);
  if (!emitted.ok()) {
    portfolio.refuse(name);
    round.placed = false;
    return round;
  }
  Emitted e = std::move(emitted).value();
  portfolio.count("offsets", e.search_nodes + static_cast<int64_t>(e.program.residencies.size()));
  round.excess = e.excess;
  round.excess_tier = e.excess_tier;
  round.worst_position = e.worst_position;
  if (e.excess > 0) return round;
  Candidate& c = round.candidate;
  c.policy = name;
  c.trace = simulate(e.program);
  c.program = std::move(e.program);
  c.alternatives = std::move(placement.schedule.choices);
  portfolio.count("simulate", static_cast<int64_t>(c.program.instrs.size()));
  return round;
}

// The tiers as they are, not as a round had them.
void state_capacities(const Problem& problem, Program& program) {
  for (size_t t = 1; t < program.tiers.size(); ++t) {
    const Bytes stated = problem.machine->tiers[t].capacity;
    if (stated > 0) program.tiers[t].capacity = stated;
  }
}

// Few large tensors: their extents fail at one place, and room left there alone often does.
Status leave_room_locally(const Problem& p, const std::vector<Bytes>& spare,
                          const std::string& name, PlaceOptions options, Portfolio& portfolio) {
  options.reserve.assign(spare.size(), 0);
  for (int round = 0; round < kLocalRounds; ++round) {
    HR_ASSIGN(Round r, run_round(p, name, options, portfolio));
    if (!r.placed) return {};
    if (r.candidate.valid()) {
      portfolio.offer(std::move(r.candidate));
      return {};
    }
    if (r.excess_tier != kDevice) return {};
    portfolio.count("rounds", 1);
    // Wider each time: what is in the way there may be bound to its place elsewhere.
    for (int32_t k = r.worst_position - round - 1; k <= r.worst_position + round + 1; ++k) {
      if (k < 0 || k >= p.size()) continue;
      Bytes& reserve = options.reserve[static_cast<size_t>(k)];
      reserve = std::min(spare[static_cast<size_t>(k)],
                         reserve + std::min(r.excess, p.budget / 16));
    }
  }
  return {};
}

// By position: what can be left free of the budget there, whatever else is decided.
std::vector<Bytes> spare_by_position(const Problem& p) {
  std::vector<Bytes> spare = least_by_position(p);
  for (Bytes& bytes : spare) bytes = std::max<Bytes>(0, p.budget - bytes);
  return spare;
}

Status plan_in_rounds(const Problem& problem, const std::string& name, PlaceOptions options,
                      Portfolio& portfolio) {
  Problem p = problem;
  Machine machine = *problem.machine;
  p.machine = &machine;
  const bool improve = options.improve;
  const std::vector<Bytes> spare = spare_by_position(p);
  if (improve && p.size() <= kTiny) HR_TRY(leave_room_locally(p, spare, name, options, portfolio));
  // Leaves `bytes` free at each position, or what the position can spare: an op that needs the whole
  // budget does not keep the others from leaving room.
  const auto leave_free = [&](Bytes bytes) {
    options.reserve = spare;
    for (Bytes& reserve : options.reserve) reserve = std::min(reserve, bytes);
  };
  Bytes reduced = 0;       // what is to be left free
  Bytes failed = 0;        // the largest reduction that did not do
  int round = 0;
  const int most = improve && p.size() <= kShortStep ? kMostRoundsShort : kMostRounds;
  for (; round < most; ++round) {
    HR_ASSIGN(Round r, run_round(p, name, options, portfolio));
    if (!r.placed) return {};
    if (r.candidate.valid()) {
      state_capacities(problem, r.candidate.program);
      portfolio.offer(std::move(r.candidate));
      break;
    }
    // The offsets need more than the live bytes: placement gets that much less, and a little.
    portfolio.count("rounds", 1);
    portfolio.note(name, false, 0, problem.request->budget + r.excess);
    if (r.excess_tier == kDevice) {
      failed = reduced;
      reduced += r.excess + r.excess / 4;
      leave_free(reduced);
    } else {
      Bytes& capacity = machine.tiers[r.excess_tier.index()].capacity;
      capacity = std::max<Bytes>(1, capacity - r.excess);
    }
  }
  // Short steps: what lies between the last that failed and the first that did may do as well.
  if (reduced == 0 || round == most || p.size() > kShortStep || !improve) return {};
  for (int i = 0; i < kHalvings; ++i) {
    const Bytes middle = (failed + reduced) / 2;
    leave_free(middle);
    HR_ASSIGN(Round r, run_round(p, name, options, portfolio));
    if (!r.candidate.valid()) {
      failed = middle;
      continue;
    }
    reduced = middle;
    state_capacities(problem, r.candidate.program);
    portfolio.offer(std::move(r.candidate));
  }
  return {};
}

// The starts of the search in addresses: nothing moved, and what placement does with bytes alone.
Result<std::vector<State>> address_starts(const Problem& p, const PlaceOptions& options) {
  std::vector<State> starts;
  HR_ASSIGN(State empty, ruled_state(p, options));
  State built = empty;
  if (options.improve && build(built, {.price = kAddressPrice}).position < 0) {
    starts.push_back(improve(std::move(built), 1).state);
  }
  starts.push_back(std::move(empty));
  return starts;
}

// Ways and extents together, for short steps.
Status plan_by_addresses(const Problem& p, const std::string& name, const PlaceOptions& options,
                         Portfolio& portfolio) {
  if (!can_plan_in_addresses(p)) return {};
  if (portfolio.found() && portfolio.best().trace.total_ns <= compute_ns(p)) return {};
  HR_ASSIGN(const std::vector<State> starts, address_starts(p, options));
  const int64_t tries = std::min(kAddressTries, kAddressWork / std::max(1, p.size()));
  for (size_t i = 0; i < std::size(kTolerances) * starts.size(); ++i) {
    if (i >= starts.size() && !options.improve) break;  // placing alone knows no tolerance
    AddressPlan plan = search_addresses(starts[i % starts.size()], options.improve ? tries : 0,
                                        kTolerances[i / starts.size()]);
    portfolio.count("addresses", plan.work);
    if (!plan.found) continue;
    EmitOptions emit;
    emit.extents = &plan.extents;
    Result<Emitted> emitted = emit_step(p, plan.schedule, emit);
    if (!emitted.ok()) {
      portfolio.refuse(name);
      continue;
    }
    Candidate c;
    c.policy = name;
    c.program = std::move(emitted).value().program;
    c.trace = simulate(c.program);
    portfolio.count("simulate", static_cast<int64_t>(c.program.instrs.size()));
    portfolio.offer(std::move(c));
  }
  return {};
}

Status offer_placements(const Problem& problem, const std::string& name, Portfolio& portfolio) {
  PlaceOptions options;
  options.recompute = problem.request->recompute;
  options.improve = problem.request->goal != Goal::kFit;
  HR_TRY(plan_in_rounds(problem, name, options, portfolio));
  if (options.improve || !portfolio.found()) {
    HR_TRY(plan_by_addresses(problem, name, options, portfolio));
  }
  // Few large tensors: whole ones can be packed by exact search, parts beside each other cannot.
  if (!options.improve || problem.size() > kTiny || can_plan_in_addresses(problem)) return {};
  options.parts = false;
  return plan_in_rounds(problem, name, options, portfolio);
}

}  // namespace

Status plan_by_placement(const Problem& problem, const std::string& name, Portfolio& portfolio) {
  if (!allows_codecs(problem)) return offer_placements(problem, name, portfolio);
  // A plan that may use codecs is never slower than one that may not, and uses none for nothing.
  std::vector<PlacementRule> rules;
  const Problem plain = without_codecs(problem, &rules);
  HR_TRY(offer_placements(plain, name, portfolio));
  const bool enough =
      portfolio.found() && (problem.request->goal == Goal::kFit ||
                            portfolio.best().trace.total_ns <= compute_ns(problem));
  return enough ? Status() : offer_placements(problem, name + ", codecs", portfolio);
}

namespace {

// Emits a policy's schedule in full and offers it when it fits.
Status offer_schedule(const Problem& p, const std::string& name, PolicySchedule s,
                      Portfolio& portfolio) {
  EmitOptions emit;
  emit.search_nodes = search_nodes(p) / 10;
  Result<Emitted> emitted = emit_step(p, s.schedule, emit);
  if (!emitted.ok()) {
    portfolio.refuse(name);
    return {};
  }
  Emitted e = std::move(emitted).value();
  portfolio.count("offsets", e.search_nodes + static_cast<int64_t>(e.program.residencies.size()));
  if (e.excess > 0) {
    portfolio.note(name, false, 0, p.request->budget + e.excess);
    return {};
  }
  Candidate c;
  c.policy = name;
  c.trace = simulate(e.program);
  c.program = std::move(e.program);
  portfolio.count("simulate", static_cast<int64_t>(c.program.instrs.size()));
  if (check_rules(*p.request->workload, c.program).ok()) {
    portfolio.offer(std::move(c));
  } else {
    portfolio.note(name, false, 0, s.peak_bytes);
  }
  return {};
}

}  // namespace

Status plan_by_policy(const Problem& p, Policy policy, Portfolio& portfolio) {
  PolicySchedule s = run_policy(p, policy);
  portfolio.count("policies", s.work);
  if (!s.fits) {
    portfolio.note(name_of(policy), false, 0, s.peak_bytes);
    return {};
  }
  return offer_schedule(p, name_of(policy), std::move(s), portfolio);
}

Status plan_by_policies(const Problem& p, Portfolio& portfolio) {
  for (int i = 0; i < kPolicyCount; ++i) {
    const Policy policy = static_cast<Policy>(i);
    if (!p.request->recompute && (policy == Policy::kCheckpointBlocks ||
                                  policy == Policy::kRecomputeEverything)) {
      continue;
    }
    PolicySchedule s = run_policy(p, policy);
    portfolio.count("policies", s.work);
    if (!s.fits) {
      portfolio.note(name_of(policy), false, 0, s.peak_bytes);
      continue;
    }
    if (portfolio.found()) {
      // Its time when extents never get in the way.
      Result<Draft> walked = walk_schedule(p, s.schedule);
      if (!walked.ok()) {
        portfolio.refuse(name_of(policy));
        continue;
      }
      Draft draft = std::move(walked).value();
      add_room_waits(draft, p.budget);
      const Nanos at_least = simulate(draft.program).total_ns;
      portfolio.count("simulate", static_cast<int64_t>(draft.program.instrs.size()));
      const Nanos best = portfolio.best().trace.total_ns;
      const Nanos margin = p.size() > kShortStep ? best / 1000 : 0;  // not worth seconds of planning
      if (at_least + margin >= best) {
        portfolio.note(name_of(policy), true, at_least, s.peak_bytes);
        continue;
      }
    }
    HR_TRY(offer_schedule(p, name_of(policy), std::move(s), portfolio));
  }
  return {};
}

}  // namespace headrace::plan
