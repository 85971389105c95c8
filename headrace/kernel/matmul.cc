#include "headrace/kernel/matmul.h"

#include "headrace/kernel/matmul_layout.h"
#include "headrace/kernel/op_rows.h"
#include "headrace/kernel/ops_cpu.h"
#include "headrace/kernel/quant.h"
#include "headrace/kernel/quant_isa.h"
#include "headrace/kernel/weight_group.h"

namespace headrace {
namespace {

// Outputs a worker gets at least, in whole multiples: a span of the fast kernels' widest
// tile.
constexpr int64_t kSpanGrain = 4;

bool is_weight_type(DType type) {
  return info(type).quantised || type == DType::kF32 || type == DType::kF16 ||
         type == DType::kBF16;
}

}  // namespace

MatmulSpanFn matmul_span(Isa isa) {
  switch (isa) {
    case Isa::kAvx512Vnni: return matmul_span_avx512;
    case Isa::kAvx2: return matmul_span_avx2;
    case Isa::kScalar: break;
  }
  return matmul_span_scalar;
}

QuantizeRowFn quantize_row_fn(Isa isa) {
  return isa == Isa::kScalar ? quantize_row_scalar : quantize_row_avx2;
}

Bytes unpacked_row_bytes(DType type, int64_t k) {
  const int64_t chunks = (k + 63) / 64, groups = (k + kGroup - 1) / kGroup;
  const int64_t per = offset_elements(type);
  const int64_t scales = chunks * (per == 16 ? 4 : 2), offsets = groups * kGroup / per;
  return round_up(chunks * 64 + scales * 4 + offsets * 4, kLine);
}

Bytes matmul_scratch_bytes(DType type, int64_t k, int64_t m) {
  if (!info(type).quantised || m < kWideRows) return 0;
  return unpacked_row_bytes(type, k) * kUnpackedRows;
}

void matmul(const MatmulArgs& args, int64_t n, std::span<std::byte> workspace,
            ThreadPool& pool) {
  HR_CHECK(is_weight_type(args.type), "a matmul takes a weight type");
  const Bytes scratch = matmul_scratch_bytes(args.type, args.k, args.m);
  HR_CHECK(static_cast<Bytes>(workspace.size()) >= scratch * pool.size(),
           "the workspace holds every worker's scratch");
  const MatmulSpanFn span = matmul_span(current_isa());
  pool.for_range(n, kSpanGrain, [&](int64_t begin, int64_t end, int worker) {
    span(args, begin, end, workspace.data() + scratch * worker);
  });
}

Bytes matmul_workspace(const Graph& graph, const Op& op, int threads) {
  const Tensor& a = graph.at(op.inputs[0]);
  const Tensor& w = graph.at(op.inputs[1]);
  return matmul_scratch_bytes(w.dtype, w.cols, a.rows) * threads;
}

void matmul_cpu(const OpContext& ctx) {
  const Tensor& a = ctx.graph.at(ctx.op.inputs[0]);
  const Tensor& w = ctx.graph.at(ctx.op.inputs[1]);
  const Tensor& y = ctx.graph.at(ctx.op.outputs[0]);
  const int64_t column = ctx.op.iattr(Attr::kColBegin);
  HR_CHECK(a.dtype == (info(w.dtype).quantised ? DType::kActQ8 : DType::kF32),
           "a quantised weight takes act_q8, any other f32");
  HR_CHECK(a.cols == w.cols && column >= 0 && column + w.rows <= y.cols,
           "the weight tile fits its operands");
  const auto optional = [&](size_t i) -> const float* {
    if (i >= ctx.inputs.size() || !ctx.inputs[i]) return nullptr;
    return reinterpret_cast<const float*>(ctx.inputs[i]) + column;
  };
  MatmulArgs args;
  args.type = w.dtype;
  args.weight = ctx.inputs[1];
  args.k = w.cols;
  args.a = ctx.inputs[0];
  args.a_stride = row_bytes(a.dtype, a.cols);
  args.m = active_rows(ctx, ctx.op.inputs[0]);
  args.y = reinterpret_cast<float*>(ctx.outputs[0]) + column;
  args.y_stride = y.cols;
  args.bias = optional(2);
  args.residual = optional(3);
  matmul(args, w.rows, ctx.workspace, ctx.pool);
}

void quantize_cpu(const OpContext& ctx) {
  const Tensor& x = ctx.graph.at(ctx.op.inputs[0]);
  const Bytes out_stride = row_bytes(DType::kActQ8, x.cols);
  const float* in = reinterpret_cast<const float*>(ctx.inputs[0]);
  ctx.pool.for_range(
      active_rows(ctx, ctx.op.inputs[0]), 1, [&](int64_t begin, int64_t end, int) {
        for (int64_t r = begin; r < end; ++r) {
          quantize_row(in + r * x.cols, x.cols, ctx.outputs[0] + r * out_stride);
        }
      });
}

}  // namespace headrace
