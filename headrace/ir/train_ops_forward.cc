// What each op of the forward pass asks of its operands: rows of the table of train_ops.h.
#include "headrace/ir/train_ops_verify.h"

namespace headrace::verifier {

Status TrainOpVerifier::embed() {
  const size_t positions = count(Attr::kPositions);
  HR_TRY(need_inputs(1 + positions, SIZE_MAX));
  HR_TRY(need_outputs(1));
  const Tensor& x = out(0);
  HR_TRY(set_compute(x));
  for (size_t i = 0; i < inputs(); ++i) HR_TRY(plain(in(i), in(i).rows, x.cols));
  if (positions > 0) {
    HR_TRY(positions_in(in(inputs() - 1)));
  }
  HR_TRY(step_rows(x.rows));
  return whole_sequences(x.rows);
}

Status TrainOpVerifier::columns() {
  HR_TRY(need_inputs(2, 2));
  HR_TRY(need_outputs(1));
  return index_of(in(0), out(0));
}

Status TrainOpVerifier::scale() {
  HR_TRY(need_inputs(1, 2));
  HR_TRY(need_outputs(1));
  HR_TRY(set_compute(in(0)));
  if (inputs() > 1) HR_TRY(f32(in(1), 1, in(0).cols));
  return plain(out(0), in(0).rows, in(0).cols);
}

Status TrainOpVerifier::patches() {
  HR_TRY(need_inputs(1, 1));
  HR_TRY(need_outputs(1));
  const Tensor& images = in(0);
  const int64_t channels = op_.iattr(Attr::kChannels), patch = op_.iattr(Attr::kPatch);
  const int64_t height = op_.iattr(Attr::kHeight), width = images.cols / channels / height;
  HR_TRY(f32(images, images.rows, channels * height * width));
  HR_TRY(need(width > 0 && height % patch == 0 && width % patch == 0, images,
              "is not of whole patches"));
  HR_TRY(set_compute(out(0)));
  return shape(out(0), images.rows * (height / patch) * (width / patch),
               channels * patch * patch);
}

Status TrainOpVerifier::prefix() {
  const size_t weights = count(Attr::kWeights), positions = count(Attr::kPositions);
  HR_TRY(need_inputs(1 + weights + positions, 1 + weights + positions));
  HR_TRY(need_outputs(1));
  const Tensor& x = in(0);
  const int64_t sequence = op_.iattr(Attr::kSequence);
  HR_TRY(set_compute(x));
  int64_t before = 0;
  HR_TRY(weights_of(1, x.cols, &before));
  HR_TRY(need(before < sequence, "no rows of x in a sequence"));
  HR_TRY(plain(out(0), out(0).rows, x.cols));
  HR_TRY(whole_sequences(out(0).rows));
  HR_TRY(shape(x, out(0).rows / sequence * (sequence - before), x.cols));
  if (positions == 0) return {};
  const Tensor& table = in(1 + weights);
  HR_TRY(plain(table, table.rows, x.cols));
  return positions_in(table);
}

Status TrainOpVerifier::select() {
  HR_TRY(need_inputs(1, 1));
  HR_TRY(need_outputs(1));
  return part_of(in(0), out(0));
}

Status TrainOpVerifier::mean_rows() {
  HR_TRY(select());
  return shape(out(0), in(0).rows / op_.iattr(Attr::kSequence), in(0).cols);
}

Status TrainOpVerifier::linear() {
  const size_t weights = count(Attr::kWeights);
  const size_t plain_inputs = 1 + weights * (1 + count(Attr::kBias));
  HR_TRY(need_inputs(plain_inputs, plain_inputs + 1));
  HR_TRY(need_outputs(1));
  const Tensor& x = in(0);
  const Tensor& y = out(0);
  HR_TRY(set_compute(x));
  int64_t n = 0;
  HR_TRY(weights_of(1, x.cols, &n));
  for (size_t i = 1 + weights; i < plain_inputs; ++i) HR_TRY(f32(in(i), 1, in(i - weights).rows));
  HR_TRY(plain(y, x.rows, y.cols));
  HR_TRY(columns(y, n));
  if (inputs() > plain_inputs) return plain(in(plain_inputs), y.rows, y.cols);
  return need(n == y.cols, y, "has columns that nothing is written to: there is no residual");
}

Status TrainOpVerifier::norm() {
  HR_TRY(need_inputs(2, 3));
  HR_TRY(need_outputs(2));
  HR_TRY(norm_operands(in(0), out(1)));
  for (size_t i = 1; i < inputs(); ++i) HR_TRY(f32(in(i), 1, in(0).cols));
  return plain(out(0), in(0).rows, in(0).cols);
}

Status TrainOpVerifier::qk_norm() {
  HR_TRY(need_inputs(3, 3));
  HR_TRY(need_outputs(2));
  HR_TRY(heads(in(0)));
  HR_TRY(runs(in(1), in(2), out(1)));
  HR_TRY(shape(out(1), in(0).rows, out(1).cols));
  return plain(out(0), in(0).rows, in(0).cols);
}

Status TrainOpVerifier::rope() {
  HR_TRY(need_inputs(2, 2));
  HR_TRY(need_outputs(1));
  HR_TRY(heads(in(0)));
  HR_TRY(whole_sequences(in(0).rows));
  HR_TRY(f32(in(1), 1, in(1).cols));
  HR_TRY(need(2 * in(1).cols <= op_.iattr(Attr::kHeadDim), in(1), "has more pairs than a head"));
  return plain(out(0), in(0).rows, in(0).cols);
}

Status TrainOpVerifier::attention() {
  HR_TRY(need_inputs(1, 1));
  HR_TRY(need_outputs(2));
  HR_TRY(heads(in(0)));
  HR_TRY(whole_sequences(in(0).rows));
  HR_TRY(plain(out(0), in(0).rows, op_.iattr(Attr::kHeads) * op_.iattr(Attr::kHeadDim)));
  return f32(out(1), in(0).rows, op_.iattr(Attr::kHeads));
}

Status TrainOpVerifier::act() {
  HR_TRY(need_inputs(1, 1));
  HR_TRY(need_outputs(1));
  return act_shapes(in(0), out(0));
}

Status TrainOpVerifier::dropout() {
  HR_TRY(need_inputs(1, 1));
  HR_TRY(need_outputs(1));
  HR_TRY(set_compute(in(0)));
  HR_TRY(step_rows(in(0).rows));
  return plain(out(0), in(0).rows, in(0).cols);
}

Status TrainOpVerifier::add() {
  HR_TRY(need_inputs(2, 2));
  HR_TRY(need_outputs(1));
  HR_TRY(set_compute(in(0)));
  HR_TRY(plain(in(1), in(0).rows, in(0).cols));
  return plain(out(0), in(0).rows, in(0).cols);
}

}  // namespace headrace::verifier
