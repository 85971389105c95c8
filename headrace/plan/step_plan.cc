// plan_step: the list of passes. Read this first.
#include "headrace/plan/step_plan.h"

#include <algorithm>
#include <array>

#include "headrace/plan/bounds.h"
#include "headrace/plan/plan.h"
#include "headrace/plan/step_pipeline.h"
#include "headrace/sim/simulate.h"

namespace headrace {

const char* name_of(Way way) {
  static constexpr std::array<const char*, 5> kNames = {"keep", "move", "recompute", "compress",
                                                        "move compressed"};
  return kNames[static_cast<size_t>(way)];
}

namespace plan {
namespace {

constexpr size_t kMostOrders = 2;       // orders that placement is run for
constexpr int kBoundIterations = 150;   // of the dual ascent, at 1,000 positions
constexpr int kLeastBudgetSteps = 12;   // halvings in the search for the least budget

// A cyclic plan for read-only weights of a model's graph is known to be optimal (plan.h).
Status offer_cyclic(const Problem& p, Portfolio& portfolio) {
  const StepRequest& r = *p.request;
  const bool weights = std::any_of(p.values.begin(), p.values.end(), [&](const Value& v) {
    return p.graph->at(v.tensor).role == Role::kWeight;
  });
  const bool kernels = std::any_of(p.graph->ops.begin(), p.graph->ops.end(), [](const Op& op) {
    return op.kind == OpKind::kKernel;
  });
  const bool reordered = p.order != program_order(*p.graph);
  // A codec that is allowed need not be used.
  const auto& rules = r.workload->rules;
  const bool asked = std::any_of(rules.begin(), rules.end(), [](PlacementRule rule) {
    rule.codecs.clear();
    rule.tensor = TensorId();
    return rule != PlacementRule();
  });
  if (!p.cyclic || !weights || kernels || reordered || asked) return {};
  PlanRequest request;
  request.name = r.name;
  request.graph = std::shared_ptr<const Graph>(r.workload, &r.workload->graph);
  request.machine = r.machine;
  request.arena_bytes = r.budget;
  request.cost = r.cost;
  auto program = plan_cyclic(request);
  if (!program.ok()) {
    if (program.status().code() != Code::kDoesNotFit) return program.status();
    portfolio.note("cyclic weights", false, 0, least_arena_bytes(*p.graph));
    return {};
  }
  Candidate c;
  c.policy = "cyclic weights";
  c.program = std::move(program).value();
  c.trace = simulate(c.program);
  portfolio.offer(std::move(c));
  return {};
}

// A plan made for less memory or a slower link still runs: its costs are those of this machine now.
Status offer_inherited(const Problem& p, Portfolio& portfolio) {
  const Program* old = p.request->inherit;
  if (old == nullptr) return {};
  const char* name = "inherited";
  const bool same = old->graph != nullptr && old->cyclic == p.cyclic &&
                    old->tiers.size() == p.machine->tiers.size() &&
                    fingerprint(*old->graph) == fingerprint(*p.graph);
  if (!same) {
    return error(Code::kUsage, "the plan to inherit from ('%s') is of another step, or of a machine "
                 "with other tiers", old->name.c_str());
  }
  if (old->arena_bytes > p.request->budget) {
    portfolio.note(name, false, 0, old->arena_bytes);
    return {};
  }
  Candidate c;
  c.policy = name;
  c.program = *old;
  c.program.name = p.request->name;
  c.program.graph = std::shared_ptr<const Graph>(p.request->workload, &p.request->workload->graph);
  c.program.machine = p.machine->name;
  c.program.tiers = p.machine->tiers;
  c.program.tiers[0].capacity = p.request->budget;
  for (size_t t = 1; t < old->tiers.size(); ++t) {
    if (c.program.tiers[t].capacity == 0) c.program.tiers[t].capacity = old->tiers[t].capacity;
  }
  for (const Residency& r : c.program.residencies) {
    const Bytes capacity = c.program.tiers[r.tier.index()].capacity;
    if (r.tier == kDevice || capacity <= 0 || r.offset + r.bytes <= capacity) continue;
    portfolio.note(name, false, 0, old->arena_bytes);
    return {};
  }
  std::vector<Nanos> cost(p.graph->ops.size(), 0);
  for (size_t k = 0; k < p.order.size(); ++k) cost[p.order[k].index()] = p.cost[k];
  for (Instr& i : c.program.instrs) {
    if (i.kind == InstrKind::kCompute) i.cost_ns = cost[i.op.index()];
    if (is_transfer(i.kind)) i.stream = link_stream(c.program.tiers, i.tier, i.kind);
  }
  for (size_t t = 1; t < old->tiers.size(); ++t) {
    // Other streams would need other waits.
    const bool links = old->tiers[t].duplex == c.program.tiers[t].duplex &&
                       old->tiers[t].group == c.program.tiers[t].group;
    if (links) continue;
    portfolio.note(name, false, 0, old->arena_bytes);
    return {};
  }
  if (!check_rules(*p.request->workload, c.program).ok()) {
    portfolio.note(name, false, 0, old->arena_bytes);
    return {};
  }
  c.trace = simulate(c.program);
  portfolio.offer(std::move(c));
  return {};
}

// The best plan so far waits for nothing and runs nothing twice.
bool unbeatable(const Portfolio& portfolio, const Problem& p) {
  return portfolio.found() && portfolio.best().trace.total_ns <= compute_ns(p);
}

// Everything that is tried for one order. `main`: the first order, for which the policies run too.
Status plan_order(const Problem& p, const std::string& name, bool main, Portfolio& portfolio) {
  const bool fit_only = p.request->goal == Goal::kFit;
  if (main) {
    HR_TRY(offer_inherited(p, portfolio));
    HR_TRY(plan_by_policy(p, Policy::kKeepEverything, portfolio));
    if ((portfolio.found() && fit_only) || unbeatable(portfolio, p)) return {};
    HR_TRY(offer_cyclic(p, portfolio));
    if (portfolio.found() && fit_only) return {};
  }
  HR_TRY(plan_by_placement(p, name, portfolio));
  if (portfolio.found() && fit_only) return {};
  if (main) HR_TRY(plan_by_policies(p, portfolio));
  return {};
}

// All orders. `best` is the Problem of the best plan.
struct Attempt {
  std::unique_ptr<StepRequest> request;  // that of the problems
  std::vector<Problem> problems;
  size_t best = 0;
  Portfolio portfolio;
};

Result<Attempt> attempt(const StepRequest& asked, const std::vector<OrderChoice>& orders) {
  Attempt a;
  a.request = std::make_unique<StepRequest>(asked);
  const StepRequest& request = *a.request;
  a.problems.reserve(orders.size());
  for (size_t i = 0; i < orders.size(); ++i) {
    HR_ASSIGN(Problem p, make_problem(request, orders[i].order));
    a.problems.push_back(std::move(p));
    // Another order that saves little memory is not worth the seconds that a long step takes.
    const bool promising = orders[i].peak_bytes < orders[0].peak_bytes / 10 * 9 ||
                           a.problems.back().size() <= kShortStep || !a.portfolio.found();
    if (i > 0 && !promising) continue;
    const Nanos before = a.portfolio.found() ? a.portfolio.best().trace.total_ns : -1;
    const std::string name = i == 0 ? "planner" : "planner, " + orders[i].name;
    HR_TRY(plan_order(a.problems.back(), name, i == 0, a.portfolio));
    const bool better = a.portfolio.found() && (before < 0 ||
                                                a.portfolio.best().trace.total_ns < before);
    if (better) a.best = i;
    if (a.portfolio.found() && request.goal == Goal::kFit) break;
    if (unbeatable(a.portfolio, a.problems.back())) break;
  }
  return a;
}

// The same step, for whichever plan fits first: what certificates are made with.
StepRequest fit_only(const StepRequest& request) {
  StepRequest fit = request;
  fit.goal = Goal::kFit;
  fit.inherit = nullptr;
  if (request.goal == Goal::kThroughput && !request.workload->cyclic) {
    auto cyclic = std::make_shared<Workload>(*request.workload);
    cyclic->cyclic = true;
    fit.workload = std::move(cyclic);
  }
  return fit;
}

// The plan of the least budget that is found to succeed, and so of every budget above it: from what is
// needed at one time (`need`) upwards, by doubling the step and then by halving it. The budgets that
// are tried do not depend on the one that was asked for.
Result<Attempt> least_plan(StepRequest request, const std::vector<OrderChoice>& orders, Need& need) {
  request = fit_only(request);
  HR_ASSIGN(const Problem p, make_problem(request, orders[0].order));
  need = irreducible(p);
  Bytes ceiling = need.bytes;
  for (Bytes b : resident_profile(p)) ceiling = std::max(ceiling, b);
  Bytes low = need.bytes, high = low;
  request.budget = low;
  HR_ASSIGN(Attempt best, attempt(request, orders));
  if (best.portfolio.found()) return best;
  for (Bytes step = std::max<Bytes>(kPage, low / 256); !best.portfolio.found(); step *= 2) {
    low = high;
    high = low + step;
    if (low > 4 * ceiling) return best;
    request.budget = high;
    HR_ASSIGN(best, attempt(request, orders));
  }
  const int steps = request.workload->graph.ops.size() > 20000 ? 3 : kLeastBudgetSteps;
  for (int i = 0; i < steps && high - low > kLine; ++i) {
    request.budget = low + (high - low) / 2;
    HR_ASSIGN(Attempt tried, attempt(request, orders));
    if (!tried.portfolio.found()) {
      low = request.budget;
      continue;
    }
    high = request.budget;
    best = std::move(tried);
  }
  return best;
}

Result<std::vector<OrderChoice>> orders_of(const StepRequest& request) {
  std::vector<OrderChoice> orders = choose_orders(request, kMostOrders);
  if (request.goal != Goal::kFit) HR_TRY(search_orders(request, orders));
  return orders;
}

int bound_iterations(int32_t positions) {
  return static_cast<int>(std::clamp<int64_t>(
      static_cast<int64_t>(kBoundIterations) * 1000 / std::max(1, positions), 5,
      2 * kBoundIterations));
}

}  // namespace
}  // namespace plan

Result<StepResult> plan_step(const StepRequest& request) {
  using namespace plan;
  HR_TRY(check_request(request));
  const Graph& graph = request.workload->graph;
  if (graph.ops.empty()) {
    return error(Code::kUsage, "'%s' has no ops: there is nothing to plan", graph.name.c_str());
  }
  HR_ASSIGN(std::vector<OrderChoice> orders, orders_of(request));
  HR_ASSIGN(Attempt a, attempt(request, orders));
  if (!a.portfolio.found()) {
    StepRequest small = request;  // its orders are those of every budget that is too small
    small.budget = 0;
    HR_ASSIGN(orders, orders_of(small));
    Need need;
    HR_ASSIGN(a, least_plan(request, orders, need));
    const bool found = a.portfolio.found();
    if (!found || a.request->budget > request.budget) {
      a.problems[0].request = &request;
      return StepResult(explain_infeasible(a.problems[0], need, found ? a.request->budget : 0));
    }
  }
  for (const OrderChoice& o : orders) a.portfolio.count("order", o.work);
  Problem& p = a.problems[a.best];
  p.request = &request;
  p.budget = request.budget;
  HR_TRY(check_rules(*request.workload, a.portfolio.best().program));
  const int iterations = bound_iterations(p.size());
  Bound bound = lower_bound(p, iterations, a.portfolio.best().trace.total_ns);
  // The link's bound is of one order: in another, other bytes are live.
  const Nanos any_order = std::max(bound.compute_ns, cycle_link_ns(p));
  if (request.reorder && bound.total_ns > any_order) {
    bound.total_ns = any_order;
    const char* what = any_order == bound.compute_ns ? "every op runs once"
                                                     : "as much must cross the link";
    bound.reason = text_of("in any order %s: %.3f ms; ", what,
                           static_cast<double>(any_order) * 1e-6) + bound.reason;
  }
  a.portfolio.count("bound", iterations);
  StepPlan plan = a.portfolio.finish(p);
  plan.program.graph = std::shared_ptr<const Graph>(request.workload, &graph);
  plan.program.tiers[0].capacity = request.budget;
  plan.bound = bound;
  return StepResult(std::move(plan));
}

}  // namespace headrace
