// hr.add.
#include "headrace/kernel/train.h"
#include "headrace/kernel/train_operands.h"
#include "headrace/kernel/train_rows.h"

namespace headrace {

void train_add(const OpContext& ctx) {
  const int64_t n = output_tensor(ctx).cols;
  const TypedTrainRows& rows = train_rows().of(output_tensor(ctx).dtype);
  each_output_row(ctx, n, [&](int64_t row) {
    rows.add(input_row(ctx, 0, row), input_row(ctx, 1, row), output_row(ctx, 0, row), n);
  });
}

}  // namespace headrace
