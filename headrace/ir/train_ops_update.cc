// What losses, the norm of all gradients and optimizers ask of their operands.
#include "headrace/ir/train_ops_verify.h"

namespace headrace::verifier {

Status TrainOpVerifier::loss() {
  const bool bias = op_.iattr(Attr::kBias) > 0, weighted = op_.iattr(Attr::kWeights) > 0;
  HR_TRY(need_inputs(weighted ? 3 : 2, SIZE_MAX));
  const size_t operands = inputs() - (weighted ? 1 : 0);  // x, tiles, biases
  HR_TRY(need(!bias || operands % 2 == 1, "not as many biases as tiles"));
  const Tensor& x = in(0);
  if (weighted) HR_TRY(f32(in(operands), x.rows, 1));
  HR_TRY(set_compute(x));
  const size_t tiles = loss_tiles(op_);
  for (size_t i = 1; i <= tiles; ++i) HR_TRY(plain(in(i), in(i).rows, x.cols));
  for (size_t i = 1 + tiles; i < operands; ++i) HR_TRY(f32(in(i), 1, in(i - tiles).rows));
  const int64_t grad = op_.iattr(Attr::kGrad);
  if (grad < 2) HR_TRY(need_outputs(static_cast<size_t>(1 + grad)));
  if (grad == 2) {
    HR_TRY(find_targets(2));
    HR_TRY(need_targets(operands - 1));
    for (size_t i = 0; i < targets_.size(); ++i) {
      HR_TRY(f32(target(i), in(i + 1).rows, in(i + 1).cols));
    }
  }
  HR_TRY(f32(out(0), x.rows, 1));
  HR_TRY(step_rows(x.rows));
  return grad > 0 ? plain(out(1), x.rows, x.cols) : Status();
}

Status TrainOpVerifier::mean_loss() {
  HR_TRY(need_inputs(1, SIZE_MAX));
  HR_TRY(need_outputs(1));
  int64_t rows = 0;
  for (size_t i = 0; i < inputs(); ++i) {
    HR_TRY(f32(in(i), in(i).rows, 1));
    rows += in(i).rows;
  }
  HR_TRY(need(rows <= g_.max_rows, "more losses than the step has rows"));
  return f32(out(0), 1, 1);
}

Status TrainOpVerifier::sum_squares() {
  HR_TRY(need_inputs(1, 1));
  HR_TRY(need_outputs(1));
  HR_TRY(need(in(0).dtype == DType::kF32, in(0), "is not f32"));
  return f32(out(0), 1, 2);
}

Status TrainOpVerifier::guard() {
  HR_TRY(need_inputs(1, 1));
  HR_TRY(need_outputs(1));
  HR_TRY(f32(in(0), 1, 1));
  return f32(out(0), 1, 2);
}

Status TrainOpVerifier::clip() {
  HR_TRY(need_inputs(1, SIZE_MAX));
  HR_TRY(need_outputs(1));
  for (size_t i = 0; i < inputs(); ++i) HR_TRY(f32(in(i), 1, 2));
  return f32(out(0), 1, 2);
}

Status TrainOpVerifier::optimizer(size_t least, size_t most) {
  HR_TRY(need_inputs(1, 2));
  HR_TRY(need(op_.outputs.empty(), "an optimizer has no outputs"));
  if (op_.updates.size() < least || op_.updates.size() > most) {
    return error(Code::kBadFile, "%zu updates, not %zu to %zu", op_.updates.size(), least, most);
  }
  HR_TRY(need(in(0).dtype == DType::kF32, in(0), "is not f32"));
  return inputs() > 1 ? f32(in(1), 1, 2) : Status();
}

Status TrainOpVerifier::parameter(const Tensor& param, const Tensor* copy) {
  const bool is_f32 = param.dtype == DType::kF32;
  HR_TRY(need(is_f32 || param.dtype == DType::kBF16, param, "is neither f32 nor bf16"));
  HR_TRY(shape(param, in(0).rows, in(0).cols));
  if (copy == nullptr) return {};
  HR_TRY(need(is_f32, param, "has a copy and is not f32"));
  HR_TRY(need(is_half(*copy), *copy, "is a copy and is neither bf16 nor f16"));
  return shape(*copy, param.rows, param.cols);
}

Status TrainOpVerifier::adamw() {
  HR_TRY(optimizer(3, 4));
  for (size_t i = 1; i < 3; ++i) HR_TRY(f32(g_.at(op_.updates[i]), in(0).rows, in(0).cols));
  return parameter(g_.at(op_.updates[0]),
                   op_.updates.size() > 3 ? &g_.at(op_.updates[3]) : nullptr);
}

Status TrainOpVerifier::sgd() {
  const size_t kept = op_.attr(Attr::kMomentum) > 0 ? 2 : 1;
  HR_TRY(optimizer(kept, kept + 1));
  if (kept > 1) HR_TRY(f32(g_.at(op_.updates[1]), in(0).rows, in(0).cols));
  return parameter(g_.at(op_.updates[0]),
                   op_.updates.size() > kept ? &g_.at(op_.updates[kept]) : nullptr);
}

}  // namespace headrace::verifier
