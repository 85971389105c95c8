// From library structs to the plain numbers of headrace/report/, and advice when a model
// does not fit.
#pragma once

#include <string>
#include <vector>

#include "headrace/report/plan_report.h"
#include "headrace/session/session_plan.h"
#include "tools/options.h"

namespace headrace::cli {

// The name people know the model by: general.name of its metadata, else its file's or
// folder's.
std::string model_name(const Model& model, const std::string& path);
// The type that most weight bytes have.
std::string main_type(const ModelSummary& summary);

ProgramFigures figures_of(const Program& program, int64_t rows, int64_t position = 0);
PlanReport plan_report(const Model& model, const std::string& path,
                       const SessionPlan& plan, const Setup& setup);

// kDoesNotFit, with the numbers and the least budget, when this process has held more
// than the budget already (reading a model takes memory for a moment); errors of
// least_memory.
Status check_peak(const Model& model, const SessionOptions& options);

// `refusal`, a kDoesNotFit of plan_session with `options`, told with the shortfall, the
// least budget and the nearest options that really fit; unchanged where they cannot be
// found out.
Status with_advice(const Status& refusal, const Model& model,
                   const SessionOptions& options);

// Plans for budgets of 25, 50, 75 and 100 % of the weights and for the least one that
// keeps all of them; the budget of `plan` stands among them in order.
std::vector<BudgetOption> other_budgets(const Model& model, const SessionPlan& plan);

}  // namespace headrace::cli
