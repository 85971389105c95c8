// What every training op asks of its OpContext.
#pragma once

#include "headrace/kernel/op_rows.h"

namespace headrace {

// The gradients of weights that an op makes: all its `updates`, which it adds to, or its `outputs`,
// which it sets.
struct Targets {
  const OpContext& ctx;
  bool add;  // to what they hold

  explicit Targets(const OpContext& context) : ctx(context), add(!context.op.updates.empty()) {}
  size_t size() const { return ids().size(); }
  const Tensor& tensor(size_t i) const { return ctx.graph.at(ids()[i]); }
  float* data(size_t i) const {
    return reinterpret_cast<float*>(add ? ctx.updates[i] : ctx.outputs[i]);
  }

 private:
  const std::vector<TensorId>& ids() const { return add ? ctx.op.updates : ctx.op.outputs; }
};

// Row `row` of an input or output tensor.
inline const std::byte* input_row(const OpContext& ctx, size_t i, int64_t row) {
  const Tensor& tensor = input_tensor(ctx, i);
  return ctx.inputs[i] + row * row_bytes(tensor.dtype, tensor.cols);
}
inline std::byte* output_row(const OpContext& ctx, size_t i, int64_t row) {
  const Tensor& tensor = output_tensor(ctx, i);
  return ctx.outputs[i] + row * row_bytes(tensor.dtype, tensor.cols);
}

// The last input when the op has more than `required`, else null.
inline const std::byte* last_input(const OpContext& ctx, size_t required) {
  return ctx.inputs.size() > required ? ctx.inputs[required] : nullptr;
}

// Calls fn(row) for every row of output 0, rows spread over the workers; `cols` elements of work a
// row.
template <typename F>
void each_output_row(const OpContext& ctx, int64_t cols, F&& fn) {
  ctx.pool.for_range(output_tensor(ctx).rows, row_grain(cols),
                     [&](int64_t begin, int64_t end, int) {
                       for (int64_t row = begin; row < end; ++row) fn(row);
                     });
}

}  // namespace headrace
