// hr.act and hr.act_grad: gated SiLU (Shazeer, arXiv 2002.05202), GELU and its tanh form (Hendrycks
// and Gimpel, arXiv 1606.08415), and what is left of them without a gate.
#include "headrace/kernel/train.h"
#include "headrace/kernel/train_operands.h"
#include "headrace/kernel/train_rows.h"

namespace headrace {
namespace {

TrainAct act_of(const OpContext& ctx) {
  const int64_t act = ctx.op.iattr(Attr::kAct);
  HR_CHECK(act >= 0 && act < kTrainActs, "act is one of TrainAct");
  return static_cast<TrainAct>(act);
}

}  // namespace

void train_act(const OpContext& ctx) {
  const TrainAct act = act_of(ctx);
  const int64_t n = output_tensor(ctx).cols;
  const TypedTrainRows& rows = train_rows().of(output_tensor(ctx).dtype);
  each_output_row(ctx, 4 * n, [&](int64_t row) {
    rows.act(input_row(ctx, 0, row), output_row(ctx, 0, row), n, act);
  });
}

void train_act_grad(const OpContext& ctx) {
  const TrainAct act = act_of(ctx);
  const int64_t n = input_tensor(ctx, 0).cols;
  const TypedTrainRows& rows = train_rows().of(output_tensor(ctx).dtype);
  each_output_row(ctx, 8 * n, [&](int64_t row) {
    rows.act_grad(input_row(ctx, 0, row), input_row(ctx, 1, row), output_row(ctx, 0, row), n, act);
  });
}

}  // namespace headrace
