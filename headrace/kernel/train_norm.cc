// hr.norm, hr.norm_dx, hr.norm_dw. Formulas of layer norm: Ba, Kiros and Hinton (arXiv 1607.06450);
// of RMS norm: Zhang and Sennrich (arXiv 1910.07467).
#include <algorithm>

#include "headrace/kernel/train.h"
#include "headrace/kernel/train_operands.h"
#include "headrace/kernel/train_rows.h"

namespace headrace {
namespace {

NormKind kind_of(const OpContext& ctx, int64_t n) {
  const int64_t act = ctx.op.iattr(Attr::kAct);
  HR_CHECK(act == 0 || act == 1, "act of a norm is 0 (RMS) or 1 (layer norm)");
  return {n, act == 1, ctx.op.attr(Attr::kEps), ctx.op.iattr(Attr::kAddOne) == 1};
}

// The sums of norm_dw: rows in chunks, so that an element is the sum of T / 64 sums of 64.
constexpr int64_t kChunkRows = 64;
constexpr int64_t kColumns = 256;  // of a worker at a time; four arrays of them are on its stack

struct NormDw {
  const OpContext& ctx;
  const NormKind kind;
  const TypedTrainRows& rows;
  const Bytes element;
  const Targets targets;
  const bool bias;

  explicit NormDw(const OpContext& context)
      : ctx(context),
        kind(kind_of(ctx, input_tensor(ctx, 0).cols)),
        rows(train_rows().of(input_tensor(ctx, 0).dtype)),
        element(row_bytes(input_tensor(ctx, 0).dtype, 1)),
        targets(ctx),
        bias(ctx.op.iattr(Attr::kBias) == 1) {}

  // Columns [begin, begin + n), n <= kColumns.
  void columns(int64_t begin, int64_t n) const {
    float weight[kColumns] = {}, shift[kColumns] = {};  // totals
    const int64_t total = input_tensor(ctx, 0).rows, stats = kind.layer ? 2 : 1;
    for (int64_t first = 0; first < total; first += kChunkRows) {
      float chunk_weight[kColumns] = {}, chunk_shift[kColumns] = {};
      for (int64_t t = first; t < std::min(first + kChunkRows, total); ++t) {
        NormKind part = kind;
        part.n = n;
        rows.norm_dw(part, input_row(ctx, 0, t) + begin * element,
                     input_row(ctx, 1, t) + begin * element, f32_row(ctx.inputs[2], t, stats),
                     chunk_weight, bias ? chunk_shift : nullptr);
      }
      for (int64_t j = 0; j < n; ++j) weight[j] += chunk_weight[j];
      for (int64_t j = 0; bias && j < n; ++j) shift[j] += chunk_shift[j];
    }
    put(0, begin, n, weight);
    if (bias) put(1, begin, n, shift);
  }

  void put(size_t target, int64_t begin, int64_t n, const float* sum) const {
    float* to = targets.data(target) + begin;
    for (int64_t j = 0; j < n; ++j) to[j] = targets.add ? to[j] + sum[j] : sum[j];
  }
};

}  // namespace

void train_norm(const OpContext& ctx) {
  const NormKind kind = kind_of(ctx, output_tensor(ctx).cols);
  const TypedTrainRows& rows = train_rows().of(output_tensor(ctx).dtype);
  const std::byte* bias = last_input(ctx, 2);
  each_output_row(ctx, 4 * kind.n, [&](int64_t row) {
    rows.norm(kind, input_row(ctx, 0, row), ctx.inputs[1], bias, output_row(ctx, 0, row),
              f32_row(ctx.outputs[1], row, kind.layer ? 2 : 1));
  });
}

void train_norm_dx(const OpContext& ctx) {
  const NormKind kind = kind_of(ctx, output_tensor(ctx).cols);
  const TypedTrainRows& rows = train_rows().of(output_tensor(ctx).dtype);
  const bool add = ctx.inputs.size() > 4;
  each_output_row(ctx, 4 * kind.n, [&](int64_t row) {
    rows.norm_dx(kind, input_row(ctx, 0, row), input_row(ctx, 1, row), ctx.inputs[2],
                 f32_row(ctx.inputs[3], row, kind.layer ? 2 : 1),
                 add ? input_row(ctx, 4, row) : nullptr, output_row(ctx, 0, row));
  });
}

void train_norm_dw(const OpContext& ctx) {
  const NormDw job(ctx);
  // Whole cache lines of dy a worker; T rows make even 64 columns worth a barrier.
  ctx.pool.for_range(job.kind.n, 64, [&](int64_t begin, int64_t end, int) {
    for (int64_t at = begin; at < end; at += kColumns) {
      job.columns(at, std::min(kColumns, end - at));
    }
  });
}

}  // namespace headrace
