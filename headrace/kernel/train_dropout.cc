// hr.dropout (Srivastava et al., JMLR 15, 2014), its mask drawn again instead of stored: philox.h.
#include "headrace/kernel/train.h"
#include "headrace/kernel/train_operands.h"
#include "headrace/kernel/train_rows.h"

namespace headrace {

void train_dropout(const OpContext& ctx) {
  const double asked = ctx.op.attr(Attr::kProbability);
  HR_CHECK(asked >= 0 && asked < 1, "the probability of dropping is at least 0 and below 1");
  const double p = ctx.rows.update ? asked : 0;  // an evaluation drops nothing
  const int64_t n = output_tensor(ctx).cols, first = ctx.op.iattr(Attr::kRowBegin);
  const TypedTrainRows& rows = train_rows().of(output_tensor(ctx).dtype);
  const auto stream = static_cast<uint32_t>(ctx.op.iattr(Attr::kStream));
  each_output_row(ctx, 4 * n, [&](int64_t row) {
    const Draw draw{ctx.rows.seed, stream, static_cast<uint32_t>(first + row)};
    rows.dropout(input_row(ctx, 0, row), output_row(ctx, 0, row), n, draw, static_cast<float>(p),
                 static_cast<float>(1 / (1 - p)));
  });
}

}  // namespace headrace
