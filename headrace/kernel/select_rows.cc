// kSelectRows: the rows whose logits are wanted, packed.
#include <cstring>

#include "headrace/kernel/op_rows.h"
#include "headrace/kernel/ops_cpu.h"

namespace headrace {

void select_rows_cpu(const OpContext& ctx) {
  const Tensor& x = input_tensor(ctx, 0);
  const Bytes bytes = row_bytes(x.dtype, x.cols);
  int64_t out = 0;
  for (const int32_t row : ctx.rows.output_rows) {
    std::memcpy(ctx.outputs[0] + out * bytes, ctx.inputs[0] + row * bytes,
                static_cast<size_t>(bytes));
    ++out;
  }
}

}  // namespace headrace
