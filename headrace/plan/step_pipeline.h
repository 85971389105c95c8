// What the pipeline of plan_step is made of. Internal to plan/.
#pragma once

#include <string>
#include <vector>

#include "headrace/plan/heuristics.h"
#include "headrace/plan/infeasible.h"
#include "headrace/plan/order.h"
#include "headrace/plan/problem.h"

namespace headrace::plan {

// Positions of a step that is planned in a fraction of a second.
constexpr int32_t kShortStep = 2000;

// A Program that fits, and what the simulator says of it.
struct Candidate {
  std::string policy;
  Program program;
  Trace trace;
  std::vector<Choice> alternatives;  // what placement knew of the ways not taken
  bool valid() const { return program.graph != nullptr; }
};

// The pass that counts candidates which were not valid. No test may see it above 0.
constexpr const char* kRefused = "refused candidates";

// The best so far, all that were considered, and the work counted.
class Portfolio {
 public:
  // Takes `candidate` when it is faster than the best; ties go to the one that came first.
  void offer(Candidate candidate);
  // Counts a policy that is not a candidate: does not fit, or cannot be faster than `at_least`.
  void note(const std::string& policy, bool fits, Nanos at_least, Bytes peak);
  void count(const std::string& pass, int64_t work);
  int64_t work_of(const std::string& pass) const;  // counted so far
  // Counts a policy whose schedule or Program is not valid, under kRefused: a mistake of ours, which
  // costs the candidate and not the plan.
  void refuse(const std::string& policy);

  const Candidate& best() const { return best_; }
  bool found() const { return best_.valid(); }
  StepPlan finish(const Problem& problem);

 private:
  Candidate best_;
  std::vector<Considered> considered_;
  std::vector<PassTime> passes_;
};

// The planner's own placement for this problem: placement, emit, offsets, again with less where the
// offsets need more, a counted number of times. Errors: rules that cannot be obeyed.
Status plan_by_placement(const Problem& problem, const std::string& name, Portfolio& portfolio);

// The policies, each looked at only as closely as it deserves: its live bytes first, then its time
// without offsets, then all of it.
Status plan_by_policies(const Problem& problem, Portfolio& portfolio);
// One of them, whatever its time.
Status plan_by_policy(const Problem& problem, Policy policy, Portfolio& portfolio);

// Choices of a Program, read off its instructions; times from its trace.
std::vector<Choice> choices_of(const Program& program, const Trace& trace,
                               const std::vector<Choice>& alternatives);

// Ok, or the rule that the Program does not obey.
Status check_rules(const Workload& workload, const Program& program);

}  // namespace headrace::plan
