// What is asked of one operand, and of those that an op and its gradients share.
#include <cmath>

#include "headrace/ir/train_ops_verify.h"

namespace headrace::verifier {

Status TrainOpVerifier::need(bool holds, const char* what) {
  return holds ? Status() : error(Code::kBadFile, "%s", what);
}

Status TrainOpVerifier::need(bool holds, const Tensor& t, const char* what) {
  return holds ? Status() : error(Code::kBadFile, "'%s' %s", t.name.c_str(), what);
}

Status TrainOpVerifier::need_inputs(size_t least, size_t most) {
  if (inputs() >= least && inputs() <= most) return {};
  return error(Code::kBadFile, "%zu inputs, not %zu to %zu", inputs(), least, most);
}

Status TrainOpVerifier::need_outputs(size_t number) {
  if (outputs() == number && op_.updates.empty()) return {};
  return error(Code::kBadFile, "%zu outputs and %zu updates, not %zu and none", outputs(),
               op_.updates.size(), number);
}

Status TrainOpVerifier::shape(const Tensor& t, int64_t rows, int64_t cols) {
  if (t.rows == rows && t.cols == cols) return {};
  return error(Code::kBadFile, "'%s' is [%lld, %lld], not [%lld, %lld]", t.name.c_str(),
               static_cast<long long>(t.rows), static_cast<long long>(t.cols),
               static_cast<long long>(rows), static_cast<long long>(cols));
}

Status TrainOpVerifier::f32(const Tensor& t, int64_t rows, int64_t cols) {
  HR_TRY(need(t.dtype == DType::kF32, t, "is not f32"));
  return shape(t, rows, cols);
}

Status TrainOpVerifier::plain(const Tensor& t, int64_t rows, int64_t cols) {
  HR_TRY(need(t.dtype == compute_, t, "is not of the compute type"));
  return shape(t, rows, cols);
}

Status TrainOpVerifier::set_compute(const Tensor& t) {
  compute_ = t.dtype;
  return need(t.dtype == DType::kF32 || is_half(t), t, "is neither f32 nor bf16 nor f16");
}

Status TrainOpVerifier::find_targets(size_t fixed) {
  HR_TRY(need(outputs() >= fixed, "too few outputs"));
  const bool writes = outputs() > fixed;
  HR_TRY(need(!writes || op_.updates.empty(), "targets among outputs and among updates"));
  targets_ = std::span(writes ? op_.outputs : op_.updates).subspan(writes ? fixed : 0);
  return need(!targets_.empty(), "no target");
}

Status TrainOpVerifier::need_targets(size_t number) {
  if (targets_.size() == number) return {};
  return error(Code::kBadFile, "%zu targets, not %zu", targets_.size(), number);
}

Status TrainOpVerifier::step_rows(int64_t rows) {
  return need(op_.iattr(Attr::kRowBegin) + rows <= g_.max_rows, "rows past those of the step");
}

Status TrainOpVerifier::whole_sequences(int64_t rows) {
  return need(rows % op_.iattr(Attr::kSequence) == 0, "rows are not whole sequences");
}

Status TrainOpVerifier::positions_in(const Tensor& table) {
  return need(table.rows >= op_.iattr(Attr::kFirst) + op_.iattr(Attr::kSequence), table,
              "has fewer rows than a sequence has positions");
}

Status TrainOpVerifier::columns(const Tensor& t, int64_t n) {
  return need(op_.iattr(Attr::kColBegin) + n <= t.cols, t, "has fewer columns than are used");
}

Status TrainOpVerifier::index_of(const Tensor& all, const Tensor& part) {
  HR_TRY(set_compute(all));
  HR_TRY(plain(part, all.rows, part.cols));
  const Tensor& index = in(1);
  HR_TRY(f32(index, 1, part.cols));
  HR_TRY(need(index.role == Role::kConstant, index, "is not a constant"));
  std::vector<bool> used(static_cast<size_t>(all.cols), false);
  for (const float column : index.constant) {
    const bool inside = column >= 0 && column < static_cast<float>(all.cols) &&
                        column == std::floor(column);
    HR_TRY(need(inside, index, "names a column that there is not"));
    HR_TRY(need(!used[static_cast<size_t>(column)], index, "names a column twice"));
    used[static_cast<size_t>(column)] = true;
  }
  return {};
}

Status TrainOpVerifier::part_of(const Tensor& all, const Tensor& part) {
  HR_TRY(set_compute(all));
  HR_TRY(whole_sequences(all.rows));
  HR_TRY(plain(part, part.rows, all.cols));
  const int64_t sequences = all.rows / op_.iattr(Attr::kSequence);
  HR_TRY(need(part.rows > 0 && part.rows % sequences == 0, part,
              "has not as many rows for each sequence"));
  return need(op_.iattr(Attr::kFirst) + part.rows / sequences <= op_.iattr(Attr::kSequence), part,
              "has more rows than there are");
}

Status TrainOpVerifier::weights_of(size_t first, int64_t cols, int64_t* rows) {
  for (size_t i = 0; i < count(Attr::kWeights); ++i) {
    const Tensor& w = in(first + i);
    HR_TRY(plain(w, w.rows, cols));
    *rows += w.rows;
  }
  return {};
}

Status TrainOpVerifier::norm_operands(const Tensor& x, const Tensor& stat) {
  HR_TRY(set_compute(x));
  return f32(stat, x.rows, 1 + op_.iattr(Attr::kAct));
}

Status TrainOpVerifier::heads(const Tensor& qkv) {
  const int64_t heads = op_.iattr(Attr::kHeads), kv = op_.iattr(Attr::kKvHeads);
  HR_TRY(set_compute(qkv));
  HR_TRY(need(heads % kv == 0, "kv_heads does not divide heads"));
  return shape(qkv, qkv.rows, (heads + 2 * kv) * op_.iattr(Attr::kHeadDim));
}

Status TrainOpVerifier::runs(const Tensor& q, const Tensor& k, const Tensor& stat) {
  const int64_t dim = op_.iattr(Attr::kHeadDim);
  int64_t runs = 0;
  for (const auto& [t, heads] : {std::pair(&q, op_.iattr(Attr::kHeads)),
                                 std::pair(&k, op_.iattr(Attr::kKvHeads))}) {
    HR_TRY(f32(*t, 1, t->cols == dim ? dim : heads * dim));
    runs += t->cols == dim ? heads : 1;
  }
  return f32(stat, stat.rows, runs * (1 + op_.iattr(Attr::kAct)));
}

bool TrainOpVerifier::gated() const {
  const int64_t act = op_.iattr(Attr::kAct);
  return act == 0 || act == 1 || act == 6;
}

Status TrainOpVerifier::act_shapes(const Tensor& x, const Tensor& y) {
  HR_TRY(set_compute(x));
  HR_TRY(need(!gated() || x.cols % 2 == 0, x, "is not gate | up"));
  return plain(y, x.rows, gated() ? x.cols / 2 : x.cols);
}

}  // namespace headrace::verifier
