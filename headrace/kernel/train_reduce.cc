// hr.sum_squares and hr.clip: the exact global norm (Pascanu, Mikolov and Bengio, arXiv 1211.5063).
#include "headrace/kernel/train_reduce.h"

#include <algorithm>
#include <cmath>

#include "headrace/kernel/row_ops.h"
#include "headrace/kernel/train.h"
#include "headrace/kernel/train_operands.h"

namespace headrace {
namespace {

constexpr int64_t kChunk = 65536;  // elements that are summed in 16 lanes of double

int64_t chunks_of(const Tensor& gradient) {
  return (gradient.rows * gradient.cols + kChunk - 1) / kChunk;
}

}  // namespace

Bytes train_sum_squares_workspace(const Graph& graph, const Op& op, int /*threads*/) {
  return round_up(chunks_of(graph.at(op.inputs[0])) * 8, kLine);
}

void train_sum_squares(const OpContext& ctx) {
  const Tensor& gradient = input_tensor(ctx, 0);
  const int64_t count = gradient.rows * gradient.cols, chunks = chunks_of(gradient);
  auto* sums = reinterpret_cast<double*>(ctx.workspace.data());
  const float* values = f32_row(ctx.inputs[0], 0, 0);
  const RowOps& rows = row_ops();
  ctx.pool.for_range(chunks, 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) {
      sums[i] = rows.sum_squares(values + i * kChunk, std::min(kChunk, count - i * kChunk));
    }
  });
  double sum = 0;
  for (int64_t i = 0; i < chunks; ++i) sum += sums[i];
  float* out = f32_row(ctx.outputs[0], 0, 2);
  out[0] = static_cast<float>(sum);
  out[1] = std::isfinite(out[0]) ? static_cast<float>(sum - static_cast<double>(out[0])) : 0.0f;
}

void train_guard(const OpContext& ctx) {
  float* out = f32_row(ctx.outputs[0], 0, 2);
  const bool finite = std::isfinite(f32_row(ctx.inputs[0], 0, 1)[0]);
  out[0] = finite ? static_cast<float>(1 / ctx.rows.loss_scale) : 0.0f;
  out[1] = 0;
}

void train_clip(const OpContext& ctx) {
  double sum = 0;
  for (const std::byte* input : ctx.inputs) {
    const float* part = f32_row(input, 0, 2);
    sum += static_cast<double>(part[0]) + static_cast<double>(part[1]);
  }
  const double norm = std::sqrt(sum) / ctx.rows.loss_scale;
  const double most = ctx.op.attr(Attr::kMaxNorm);
  const double limit = most > 0 && norm > most ? most / norm : 1;
  float* out = f32_row(ctx.outputs[0], 0, 2);
  out[0] = std::isfinite(norm) ? static_cast<float>(limit / ctx.rows.loss_scale) : 0.0f;
  out[1] = static_cast<float>(norm);
}

}  // namespace headrace
