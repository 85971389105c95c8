// hr.adamw (Loshchilov and Hutter, arXiv 1711.05101) and hr.sgd.
#include <cmath>

#include "headrace/kernel/train.h"
#include "headrace/kernel/train_operands.h"
#include "headrace/kernel/train_rows.h"

namespace headrace {
namespace {

// Elements a worker takes at least; whole groups of random numbers and of cache lines.
constexpr int64_t kGrain = 16384;

// What both optimizers share: the parameter, and what gradients are multiplied by.
struct Param {
  int64_t count;
  bool bf16;
  float factor;  // 0: this step changes nothing
  double rate = 0;
  Draw draw;

  explicit Param(const OpContext& ctx) {
    const Tensor& param = ctx.graph.at(ctx.op.updates[0]);
    HR_CHECK(param.dtype == DType::kF32 || param.dtype == DType::kBF16,
             "a parameter is f32 or bf16");
    count = param.rows * param.cols;
    HR_CHECK(count < int64_t{1} << 34, "a parameter has fewer values than a row of random numbers");
    bf16 = param.dtype == DType::kBF16;
    const std::byte* clip = last_input(ctx, 1);
    factor = clip != nullptr ? f32_row(clip, 0, 2)[0]
                             : static_cast<float>(1 / ctx.rows.loss_scale);
    if (!ctx.rows.update) factor = 0;
    if (factor == 0) return;
    const auto group = static_cast<size_t>(ctx.op.iattr(Attr::kGroup));
    HR_CHECK(group < ctx.rows.rates.size(), "every parameter group has a rate");
    rate = ctx.rows.rates[group];
    draw = {ctx.rows.seed, static_cast<uint32_t>(ctx.op.iattr(Attr::kStream)), 0};
  }
};

// Sets the copy: the update after `before` others, if there is one.
template <typename Step>
void set_copy(const OpContext& ctx, size_t before, const Param& param, Step* step) {
  if (ctx.op.updates.size() <= before) return;
  const DType type = ctx.graph.at(ctx.op.updates[before]).dtype;
  HR_CHECK(!param.bf16 && (type == DType::kBF16 || type == DType::kF16),
           "an f32 parameter may have a copy in bf16 or f16");
  step->copy = ctx.updates[before];
  step->f16_copy = type == DType::kF16;
}

float* f32_update(const OpContext& ctx, size_t i) {
  return reinterpret_cast<float*>(ctx.updates[i]);
}

}  // namespace

void train_adamw(const OpContext& ctx) {
  const Param param(ctx);
  if (param.factor == 0) return;
  const double beta1 = ctx.op.attr(Attr::kBeta1), beta2 = ctx.op.attr(Attr::kBeta2);
  const auto t = static_cast<double>(ctx.rows.step);
  HR_CHECK(ctx.rows.step >= 1, "optimizer steps count from 1");
  AdamwStep step;
  step.gradient = f32_row(ctx.inputs[0], 0, 0);
  step.param = ctx.updates[0];
  step.m = f32_update(ctx, 1);
  step.v = f32_update(ctx, 2);
  set_copy(ctx, 3, param, &step);
  step.bf16_param = param.bf16;
  step.factor = param.factor;
  step.beta1 = static_cast<float>(beta1);
  step.rest1 = static_cast<float>(1 - beta1);
  step.beta2 = static_cast<float>(beta2);
  step.rest2 = static_cast<float>(1 - beta2);
  step.step = static_cast<float>(param.rate / (1 - std::pow(beta1, t)));
  step.root = static_cast<float>(1 / std::sqrt(1 - std::pow(beta2, t)));
  step.eps = static_cast<float>(ctx.op.attr(Attr::kEps));
  step.keep = static_cast<float>(1 - param.rate * ctx.op.attr(Attr::kWeightDecay));
  step.draw = param.draw;
  const TrainRows& rows = train_rows();
  ctx.pool.for_range(param.count, kGrain,
                     [&](int64_t begin, int64_t end, int) { rows.adamw(step, begin, end); });
}

void train_sgd(const OpContext& ctx) {
  const Param param(ctx);
  if (param.factor == 0) return;
  const double momentum = ctx.op.attr(Attr::kMomentum);
  SgdStep step;
  step.gradient = f32_row(ctx.inputs[0], 0, 0);
  step.param = ctx.updates[0];
  step.momentum = momentum > 0 ? f32_update(ctx, 1) : nullptr;
  set_copy(ctx, momentum > 0 ? 2 : 1, param, &step);
  step.bf16_param = param.bf16;
  step.factor = param.factor;
  step.rate = static_cast<float>(param.rate);
  step.decay = static_cast<float>(ctx.op.attr(Attr::kWeightDecay));
  step.keep_momentum = static_cast<float>(momentum);
  step.draw = param.draw;
  const TrainRows& rows = train_rows();
  ctx.pool.for_range(param.count, kGrain,
                     [&](int64_t begin, int64_t end, int) { rows.sgd(step, begin, end); });
}

}  // namespace headrace
