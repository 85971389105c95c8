// Small things that every op of this folder asks of its OpContext.
#pragma once

#include <cstddef>
#include <cstdint>

#include "headrace/kernel/kernel.h"

namespace headrace {

// How many rows of `tensor` this step computes. Behind kSelectRows tensors have
// max_output_rows rows. Where that is as many as max_rows the two cannot be told apart,
// and all rows of the step are computed: more than needed, never fewer.
inline int64_t active_rows(const OpContext& ctx, TensorId tensor) {
  const bool selected = ctx.graph.at(tensor).rows < ctx.graph.max_rows;
  return selected ? static_cast<int64_t>(ctx.rows.output_rows.size()) : ctx.rows.rows();
}

inline const Tensor& input_tensor(const OpContext& ctx, size_t i) {
  return ctx.graph.at(ctx.op.inputs[i]);
}
inline const Tensor& output_tensor(const OpContext& ctx, size_t i = 0) {
  return ctx.graph.at(ctx.op.outputs[i]);
}
// Address of optional input `i`; null when absent.
inline const std::byte* optional_input(const OpContext& ctx, size_t i) {
  return i < ctx.inputs.size() ? ctx.inputs[i] : nullptr;
}

inline const float* f32_row(const std::byte* base, int64_t row, int64_t cols) {
  return reinterpret_cast<const float*>(base) + row * cols;
}
inline float* f32_row(std::byte* base, int64_t row, int64_t cols) {
  return reinterpret_cast<float*>(base) + row * cols;
}

// Rows a worker should get at least: below about 16k elements of elementwise work a
// barrier (1 us) costs more than it saves.
inline int64_t row_grain(int64_t cols) { return 1 + 16384 / (cols + 1); }

}  // namespace headrace
