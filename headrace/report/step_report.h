// StepReport: what plan_step decided, for people and for programs.
//
// Vocabulary
//   gap      how far a plan is above the lower bound, as a part of the bound.
//   over     by how much the step would exceed the budget at some time if everything were kept.
#pragma once

#include <string>
#include <vector>

#include "headrace/plan/step_plan.h"
#include "headrace/report/json_writer.h"
#include "headrace/report/text_style.h"

namespace headrace {

// What the plan was asked for.
struct StepRequestFacts {
  std::string workload;       // name, for people
  std::string machine;
  Bytes budget = 0;
  std::string budget_source;  // "set by --memory", "the machine's device"
  std::string goal;           // "latency"
};
const char* name_of(Goal goal);

// The plan's time above its bound; 0 when there is no bound.
double gap_to_bound(const StepPlan& plan);

// At most 100 columns.
std::string step_plan_text(const StepPlan& plan, const StepRequestFacts& facts,
                           const TextStyle& style);
// For each choice in words: why, where to, how early it comes back, what else it could have been.
// The most significant first, at most `limit` of them.
std::string explain_text(const StepPlan& plan, Bytes budget, size_t limit, const TextStyle& style);
// One choice, in full sentences. `over` as in the vocabulary, while the tensor is away.
std::string explain_choice(const Program& program, const Choice& choice, Bytes over);

// The certificate in words: lines, the last without a newline.
std::string infeasible_text(const Infeasible& refusal, const Graph& graph,
                            const StepRequestFacts& facts);

// For `--json`: bytes and seconds; the first `choices` choices in words as well.
std::string step_plan_json(const StepPlan& plan, const StepRequestFacts& facts, size_t choices);
std::string infeasible_json(const Infeasible& refusal, const Graph& graph,
                            const StepRequestFacts& facts);

// Tables for the timeline's page: the bound, the portfolio, the first `choices` choices in words.
std::string step_plan_html(const StepPlan& plan, const StepRequestFacts& facts, size_t choices);

// By choice: how far over `budget` the step would be at most between the two touches around the gap
// if everything were kept from its first touch to its last; 0 or less: never over.
std::vector<Bytes> over_by_choice(const StepPlan& plan, Bytes budget);

}  // namespace headrace
