// What each gradient asks of its operands: rows of the table of train_ops.h.
#include "headrace/ir/train_ops_verify.h"

namespace headrace::verifier {

Status TrainOpVerifier::embed_grad() {
  HR_TRY(need_inputs(1, 1));
  HR_TRY(find_targets(0));
  const Tensor& dx = in(0);
  HR_TRY(set_compute(dx));
  for (size_t i = 0; i < targets_.size(); ++i) HR_TRY(f32(target(i), target(i).rows, dx.cols));
  if (op_.iattr(Attr::kPositions) > 0) {
    HR_TRY(positions_in(target(targets_.size() - 1)));
  }
  HR_TRY(step_rows(dx.rows));
  return whole_sequences(dx.rows);
}

Status TrainOpVerifier::columns_grad() {
  HR_TRY(need_inputs(2, 2));
  HR_TRY(need_outputs(1));
  return index_of(out(0), in(0));
}

Status TrainOpVerifier::scale_dw() {
  HR_TRY(need_inputs(2, 2));
  HR_TRY(find_targets(0));
  HR_TRY(need_targets(1));
  HR_TRY(set_compute(in(0)));
  HR_TRY(plain(in(1), in(0).rows, in(0).cols));
  return f32(target(0), 1, in(0).cols);
}

Status TrainOpVerifier::prefix_grad() {
  HR_TRY(need_inputs(1, 1));
  HR_TRY(find_targets(0));
  HR_TRY(need_targets(1));
  const Tensor& dy = in(0);
  HR_TRY(set_compute(dy));
  HR_TRY(whole_sequences(dy.rows));
  HR_TRY(f32(target(0), target(0).rows, dy.cols));
  const int64_t left = op_.iattr(Attr::kSequence) - op_.iattr(Attr::kFirst);
  const bool table = op_.iattr(Attr::kPositions) > 0;
  return need(left > 0 && (table || target(0).rows <= left), target(0),
              "has more rows than there are");
}

Status TrainOpVerifier::select_grad() {
  HR_TRY(need_inputs(1, 1));
  HR_TRY(need_outputs(1));
  return part_of(out(0), in(0));
}

Status TrainOpVerifier::mean_rows_grad() {
  HR_TRY(select_grad());
  return shape(in(0), out(0).rows / op_.iattr(Attr::kSequence), out(0).cols);
}

Status TrainOpVerifier::linear_dx() {
  const size_t plain_inputs = 1 + count(Attr::kWeights);
  HR_TRY(need_inputs(plain_inputs, plain_inputs + 1));
  HR_TRY(need_outputs(1));
  const Tensor& dx = out(0);
  HR_TRY(set_compute(in(0)));
  int64_t n = 0;
  HR_TRY(weights_of(1, dx.cols, &n));
  HR_TRY(columns(in(0), n));
  HR_TRY(plain(dx, in(0).rows, dx.cols));
  return inputs() > plain_inputs ? plain(in(plain_inputs), dx.rows, dx.cols) : Status();
}

Status TrainOpVerifier::linear_dw() {
  HR_TRY(need_inputs(2, 2));
  HR_TRY(find_targets(0));
  HR_TRY(need_targets(1 + count(Attr::kBias)));
  HR_TRY(set_compute(in(0)));
  HR_TRY(plain(in(1), in(0).rows, in(1).cols));
  const int64_t n = target(0).rows;
  HR_TRY(f32(target(0), n, in(1).cols));
  HR_TRY(columns(in(0), n));
  return targets_.size() > 1 ? f32(target(1), 1, n) : Status();
}

Status TrainOpVerifier::norm_dx() {
  HR_TRY(need_inputs(4, 5));
  HR_TRY(need_outputs(1));
  const Tensor& x = in(1);
  HR_TRY(norm_operands(x, in(3)));
  HR_TRY(plain(in(0), x.rows, x.cols));
  HR_TRY(f32(in(2), 1, x.cols));
  if (inputs() > 4) HR_TRY(plain(in(4), x.rows, x.cols));
  return plain(out(0), x.rows, x.cols);
}

Status TrainOpVerifier::norm_dw() {
  HR_TRY(need_inputs(3, 3));
  HR_TRY(find_targets(0));
  HR_TRY(need_targets(1 + count(Attr::kBias)));
  HR_TRY(norm_operands(in(1), in(2)));
  HR_TRY(plain(in(0), in(1).rows, in(1).cols));
  for (size_t i = 0; i < targets_.size(); ++i) HR_TRY(f32(target(i), 1, in(1).cols));
  return {};
}

Status TrainOpVerifier::qk_norm_dx() {
  HR_TRY(need_inputs(5, 5));
  HR_TRY(need_outputs(1));
  HR_TRY(heads(in(1)));
  HR_TRY(plain(in(0), in(1).rows, in(1).cols));
  HR_TRY(runs(in(2), in(3), in(4)));
  HR_TRY(shape(in(4), in(1).rows, in(4).cols));
  return plain(out(0), in(1).rows, in(1).cols);
}

Status TrainOpVerifier::qk_norm_dw() {
  HR_TRY(need_inputs(3, 3));
  HR_TRY(find_targets(0));
  HR_TRY(need_targets(2));
  HR_TRY(heads(in(1)));
  HR_TRY(plain(in(0), in(1).rows, in(1).cols));
  HR_TRY(runs(target(0), target(1), in(2)));
  return shape(in(2), in(1).rows, in(2).cols);
}

Status TrainOpVerifier::attention_grad() {
  HR_TRY(need_inputs(4, 4));
  HR_TRY(need_outputs(1));
  const Tensor& qkv = in(1);
  HR_TRY(heads(qkv));
  HR_TRY(whole_sequences(qkv.rows));
  const int64_t width = op_.iattr(Attr::kHeads) * op_.iattr(Attr::kHeadDim);
  HR_TRY(plain(in(0), qkv.rows, width));
  HR_TRY(plain(in(2), qkv.rows, width));
  HR_TRY(f32(in(3), qkv.rows, op_.iattr(Attr::kHeads)));
  return plain(out(0), qkv.rows, qkv.cols);
}

Status TrainOpVerifier::act_grad() {
  HR_TRY(need_inputs(2, 2));
  HR_TRY(need_outputs(1));
  const Tensor& x = in(1);
  HR_TRY(act_shapes(x, in(0)));
  return plain(out(0), x.rows, x.cols);
}

}  // namespace headrace::verifier
