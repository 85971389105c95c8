// The parts of verify_train_op(). Internal to ir/.
//
//   train_ops.cc            which ops there are and what attributes each has
//   train_ops_shapes.cc     what is asked of one operand, and of those that several ops share
//   train_ops_forward.cc    one check an op of the forward pass
//   train_ops_gradients.cc  one check a gradient
//   train_ops_update.cc     losses, the norm of all gradients, optimizers
//
// What a check asks for is in the table of train_ops.h, with its letters; an error names the
// operand and the numbers.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "headrace/ir/train_ops.h"

namespace headrace::verifier {

inline bool is_half(const Tensor& t) {
  return t.dtype == DType::kBF16 || t.dtype == DType::kF16;
}

class TrainOpVerifier {
 public:
  TrainOpVerifier(const Graph& graph, const Op& op) : g_(graph), op_(op) {}

  Status run();

 private:
  struct Entry;
  static const std::vector<Entry>& table();
  Status check_attrs(const Entry& entry);
  // Nothing is written twice, and nothing that is written is read under another name.
  Status check_distinct();

  // ---- operands

  const Tensor& in(size_t i) const { return g_.at(op_.inputs[i]); }
  const Tensor& out(size_t i) const { return g_.at(op_.outputs[i]); }
  size_t inputs() const { return op_.inputs.size(); }
  size_t outputs() const { return op_.outputs.size(); }
  size_t count(Attr attr) const { return static_cast<size_t>(op_.iattr(attr)); }

  Status need(bool holds, const char* what);
  Status need(bool holds, const Tensor& t, const char* what);
  Status need_inputs(size_t least, size_t most);
  // Outputs that are no targets, and no updates.
  Status need_outputs(size_t number);
  Status shape(const Tensor& t, int64_t rows, int64_t cols);
  Status f32(const Tensor& t, int64_t rows, int64_t cols);
  // Of the compute type, which set_compute() takes from an operand.
  Status plain(const Tensor& t, int64_t rows, int64_t cols);
  Status set_compute(const Tensor& t);

  // The targets: outputs from number `fixed` on, or all updates.
  Status find_targets(size_t fixed);
  const Tensor& target(size_t i) const { return g_.at(targets_[i]); }
  Status need_targets(size_t number);

  // Rows [row_begin, row_begin + rows) of the step.
  Status step_rows(int64_t rows);
  Status whole_sequences(int64_t rows);
  // A position table, from row `first` on.
  Status positions_in(const Tensor& table);
  // Columns [col_begin, col_begin + n) of t.
  Status columns(const Tensor& t, int64_t n);

  // ---- what an op and its gradients share

  // Inputs first .. first + weights - 1, each [any, cols]; *rows is the sum of theirs.
  Status weights_of(size_t first, int64_t cols, int64_t* rows);
  // `all` [S sequence, n], `part` [S m, n]: rows first .. first + m are in the sequence.
  Status part_of(const Tensor& all, const Tensor& part);
  // Input 1 says which columns of `all` those of `part` are: each at most once.
  Status index_of(const Tensor& all, const Tensor& part);
  Status norm_operands(const Tensor& x, const Tensor& stat);
  // qkv [T, (heads + 2 kv_heads) head_dim]; sets the compute type.
  Status heads(const Tensor& qkv);
  // Weights (or their gradients) q and k, each of one head or of all, and the statistics of what
  // they normalise.
  Status runs(const Tensor& q, const Tensor& k, const Tensor& stat);
  // Whether x is gate | up.
  bool gated() const;
  Status act_shapes(const Tensor& x, const Tensor& y);

  // ---- one check a row of the table

  Status embed();
  Status columns();
  Status scale();
  Status patches();
  Status prefix();
  Status select();
  Status mean_rows();
  Status linear();
  Status norm();
  Status qk_norm();
  Status rope();
  Status attention();
  Status act();
  Status dropout();
  Status add();

  Status embed_grad();
  Status columns_grad();
  Status scale_dw();
  Status prefix_grad();
  Status select_grad();
  Status mean_rows_grad();
  Status linear_dx();
  Status linear_dw();
  Status norm_dx();
  Status norm_dw();
  Status qk_norm_dx();
  Status qk_norm_dw();
  Status attention_grad();
  Status act_grad();

  Status loss();
  Status mean_loss();
  Status sum_squares();
  Status guard();
  Status clip();
  Status adamw();
  Status sgd();
  // in: gradient f32, +clip. updates: least to most, the last of which may be a copy.
  Status optimizer(size_t least, size_t most);
  Status parameter(const Tensor& param, const Tensor* copy);

  const Graph& g_;
  const Op& op_;
  DType compute_ = DType::kF32;
  std::span<const TensorId> targets_;
};

}  // namespace headrace::verifier
