// verify_train_op(): the table of train_ops.h, op by op.
#include "headrace/ir/train_ops.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <span>

namespace headrace {
namespace {

constexpr double kMostCount = 1 << 30;  // rows, columns, heads and numbers of streams
constexpr double kTiny = std::numeric_limits<double>::min();
constexpr double kBelowOne = 1 - 0x1p-53;

// An attribute that is not there counts as 0, which must lie in the range as well.
struct AttrRule {
  Attr attr;
  double least, most;
  bool integer = true;
};
constexpr AttrRule kRowBeginRule{Attr::kRowBegin, 0, kMostCount};
constexpr AttrRule kSequenceRule{Attr::kSequence, 1, kMostCount};
constexpr AttrRule kPositionsRule{Attr::kPositions, 0, 1};
constexpr AttrRule kWeightsRule{Attr::kWeights, 1, 64};
constexpr AttrRule kBiasRule{Attr::kBias, 0, 1};
constexpr AttrRule kScaleRule{Attr::kScale, -1e30, 1e30, false};
constexpr AttrRule kColBeginRule{Attr::kColBegin, 0, kMostCount};
constexpr AttrRule kNormRule{Attr::kAct, 0, 1};
constexpr AttrRule kEpsRule{Attr::kEps, kTiny, 1, false};
constexpr AttrRule kHeadsRule{Attr::kHeads, 1, 1 << 20};
constexpr AttrRule kKvHeadsRule{Attr::kKvHeads, 1, 1 << 20};
constexpr AttrRule kHeadDimRule{Attr::kHeadDim, 1, 1 << 20};
constexpr AttrRule kActRule{Attr::kAct, 0, 7};
constexpr AttrRule kAddOneRule{Attr::kAddOne, 0, 1};
constexpr AttrRule kFirstRule{Attr::kFirst, 0, kMostCount};
constexpr AttrRule kStreamRule{Attr::kStream, 0, kMostCount};
constexpr AttrRule kDecayRule{Attr::kWeightDecay, 0, 1e9, false};
constexpr AttrRule kGroupRule{Attr::kGroup, 0, 1 << 16};

bool is_float(const Tensor& t) { return t.dtype == DType::kF32 || t.dtype == DType::kBF16; }
bool is_half(const Tensor& t) { return t.dtype == DType::kBF16 || t.dtype == DType::kF16; }
bool same_shape(const Tensor& a, const Tensor& b) { return a.rows == b.rows && a.cols == b.cols; }

class OpVerifier {
 public:
  OpVerifier(const Graph& graph, const Op& op) : g_(graph), op_(op) {}

  Status run();

 private:
  struct Entry {
    std::string_view kernel;
    std::vector<AttrRule> attrs;
    Status (OpVerifier::*check)();
  };
  static const std::vector<Entry>& table();

  // ---- operands

  const Tensor& in(size_t i) const { return g_.at(op_.inputs[i]); }
  const Tensor& out(size_t i) const { return g_.at(op_.outputs[i]); }
  size_t inputs() const { return op_.inputs.size(); }
  size_t outputs() const { return op_.outputs.size(); }
  size_t count(Attr attr) const { return static_cast<size_t>(op_.iattr(attr)); }

  Status need(bool holds, const char* what) {
    return holds ? Status() : error(Code::kBadFile, "%s", what);
  }
  Status need(bool holds, const Tensor& t, const char* what) {
    return holds ? Status() : error(Code::kBadFile, "'%s' %s", t.name.c_str(), what);
  }
  Status need_inputs(size_t least, size_t most) {
    if (inputs() >= least && inputs() <= most) return {};
    return error(Code::kBadFile, "%zu inputs, not %zu to %zu", inputs(), least, most);
  }
  // Outputs that are no targets, and no updates.
  Status need_outputs(size_t number) {
    if (outputs() == number && op_.updates.empty()) return {};
    return error(Code::kBadFile, "%zu outputs and %zu updates, not %zu and none", outputs(),
                 op_.updates.size(), number);
  }
  Status f32(const Tensor& t, int64_t rows, int64_t cols) {
    HR_TRY(need(t.dtype == DType::kF32, t, "is not f32"));
    return shape(t, rows, cols);
  }
  // Of the compute type.
  Status plain(const Tensor& t, int64_t rows, int64_t cols) {
    HR_TRY(need(t.dtype == compute_, t, "is not of the compute type"));
    return shape(t, rows, cols);
  }
  Status shape(const Tensor& t, int64_t rows, int64_t cols) {
    if (t.rows == rows && t.cols == cols) return {};
    return error(Code::kBadFile, "'%s' is [%lld, %lld], not [%lld, %lld]", t.name.c_str(),
                 static_cast<long long>(t.rows), static_cast<long long>(t.cols),
                 static_cast<long long>(rows), static_cast<long long>(cols));
  }
  Status set_compute(const Tensor& t) {
    compute_ = t.dtype;
    return need(is_float(t) || is_half(t), t, "is neither f32 nor bf16 nor f16");
  }

  // The targets: outputs from number `fixed` on, or all updates.
  Status find_targets(size_t fixed) {
    HR_TRY(need(outputs() >= fixed, "too few outputs"));
    const bool writes = outputs() > fixed;
    HR_TRY(need(!writes || op_.updates.empty(), "targets among outputs and among updates"));
    targets_ = std::span(writes ? op_.outputs : op_.updates).subspan(writes ? fixed : 0);
    return need(!targets_.empty(), "no target");
  }
  const Tensor& target(size_t i) const { return g_.at(targets_[i]); }
  Status need_targets(size_t number) {
    if (targets_.size() == number) return {};
    return error(Code::kBadFile, "%zu targets, not %zu", targets_.size(), number);
  }

  // Rows [row_begin, row_begin + rows) of the step.
  Status step_rows(int64_t rows) {
    return need(op_.iattr(Attr::kRowBegin) + rows <= g_.max_rows, "rows past those of the step");
  }
  Status whole_sequences(int64_t rows) {
    return need(rows % op_.iattr(Attr::kSequence) == 0, "rows are not whole sequences");
  }
  // A position table, from row `first` on.
  Status positions_in(const Tensor& table) {
    return need(table.rows >= op_.iattr(Attr::kFirst) + op_.iattr(Attr::kSequence), table,
                "has fewer rows than a sequence has positions");
  }
  // Columns [col_begin, col_begin + n) of t.
  Status columns(const Tensor& t, int64_t n) {
    return need(op_.iattr(Attr::kColBegin) + n <= t.cols, t, "has fewer columns than are used");
  }

  // ---- one check a row of the table

  Status embed();
  Status embed_grad();
  Status columns();
  Status columns_grad();
  Status scale();
  Status scale_dw();
  Status patches();
  Status prefix();
  Status prefix_grad();
  Status select();
  Status select_grad();
  Status mean_rows();
  Status mean_rows_grad();
  Status linear();
  Status linear_dx();
  Status linear_dw();
  Status norm();
  Status norm_dx();
  Status norm_dw();
  Status qk_norm();
  Status qk_norm_dx();
  Status qk_norm_dw();
  Status rope();
  Status attention();
  Status attention_grad();
  Status act();
  Status act_grad();
  Status dropout();
  Status add();
  Status loss();
  Status mean_loss();
  Status sum_squares();
  Status guard();
  Status clip();
  Status adamw();
  Status sgd();

  Status check_attrs(const std::vector<AttrRule>& rules);
  Status check_distinct();
  Status weights_of(size_t first, int64_t cols, int64_t* rows);
  Status part_of(const Tensor& all, const Tensor& part);
  Status index_of(const Tensor& all, const Tensor& part);
  Status norm_operands(const Tensor& x, const Tensor& stat);
  Status heads(const Tensor& qkv);
  Status runs(const Tensor& q, const Tensor& k, const Tensor& stat);
  bool gated() const;
  Status act_shapes(const Tensor& x, const Tensor& y);
  Status optimizer(size_t least, size_t most);
  Status parameter(const Tensor& param, const Tensor* copy);

  const Graph& g_;
  const Op& op_;
  DType compute_ = DType::kF32;
  std::span<const TensorId> targets_;
};

const std::vector<OpVerifier::Entry>& OpVerifier::table() {
  using V = OpVerifier;
  static const std::vector<AttrRule> kHeadRules = {
      kHeadsRule, kKvHeadsRule, kHeadDimRule, kScaleRule, kSequenceRule,
      {Attr::kCausal, 0, 1}, {Attr::kWindow, 0, kMostCount}};
  static const std::vector<Entry> kTable = {
      {"hr.embed", {kRowBeginRule, kSequenceRule, kPositionsRule, kFirstRule}, &V::embed},
      {"hr.embed_grad",
       {kRowBeginRule, kSequenceRule, kPositionsRule, kFirstRule},
       &V::embed_grad},
      {"hr.columns", {}, &V::columns},
      {"hr.columns_grad", {}, &V::columns_grad},
      {"hr.scale", {kScaleRule}, &V::scale},
      {"hr.scale_dw", {kScaleRule}, &V::scale_dw},
      {"hr.patches",
       {{Attr::kChannels, 1, kMostCount}, {Attr::kHeight, 1, kMostCount},
        {Attr::kPatch, 1, kMostCount}},
       &V::patches},
      {"hr.prefix", {kSequenceRule, {Attr::kWeights, 0, 64}, kPositionsRule}, &V::prefix},
      {"hr.prefix_grad", {kSequenceRule, kFirstRule, kPositionsRule}, &V::prefix_grad},
      {"hr.select", {kSequenceRule, kFirstRule}, &V::select},
      {"hr.select_grad", {kSequenceRule, kFirstRule}, &V::select_grad},
      {"hr.mean_rows", {kSequenceRule, kFirstRule}, &V::mean_rows},
      {"hr.mean_rows_grad", {kSequenceRule, kFirstRule}, &V::mean_rows_grad},
      {"hr.linear", {kWeightsRule, kBiasRule, kScaleRule, kColBeginRule}, &V::linear},
      {"hr.linear_dx", {kWeightsRule, kScaleRule, kColBeginRule}, &V::linear_dx},
      {"hr.linear_dw", {kBiasRule, kScaleRule, kColBeginRule}, &V::linear_dw},
      {"hr.norm", {kNormRule, kEpsRule, kAddOneRule}, &V::norm},
      {"hr.norm_dx", {kNormRule, kAddOneRule}, &V::norm_dx},
      {"hr.norm_dw", {kNormRule, kBiasRule}, &V::norm_dw},
      {"hr.qk_norm",
       {kHeadsRule, kKvHeadsRule, kHeadDimRule, kNormRule, kEpsRule, kAddOneRule},
       &V::qk_norm},
      {"hr.qk_norm_dx",
       {kHeadsRule, kKvHeadsRule, kHeadDimRule, kNormRule, kAddOneRule},
       &V::qk_norm_dx},
      {"hr.qk_norm_dw", {kHeadsRule, kKvHeadsRule, kHeadDimRule, kNormRule}, &V::qk_norm_dw},
      {"hr.rope",
       {kHeadsRule, kKvHeadsRule, kHeadDimRule, {Attr::kRopeHalfSplit, 0, 1}, kSequenceRule,
        {Attr::kInverse, 0, 1}},
       &V::rope},
      {"hr.attention", kHeadRules, &V::attention},
      {"hr.attention_grad", kHeadRules, &V::attention_grad},
      {"hr.act", {kActRule}, &V::act},
      {"hr.act_grad", {kActRule}, &V::act_grad},
      {"hr.dropout",
       {{Attr::kProbability, 0, kBelowOne, false}, kStreamRule, kRowBeginRule},
       &V::dropout},
      {"hr.add", {}, &V::add},
      {"hr.loss",
       {kRowBeginRule, {Attr::kGrad, 0, 2}, kBiasRule, kScaleRule, {Attr::kOwnMean, 0, 1},
        {Attr::kSmoothing, 0, 1, false}},
       &V::loss},
      {"hr.mean_loss", {}, &V::mean_loss},
      {"hr.guard", {}, &V::guard},
      {"hr.sum_squares", {}, &V::sum_squares},
      {"hr.clip", {{Attr::kMaxNorm, 0, 1e30, false}}, &V::clip},
      {"hr.adamw",
       {{Attr::kBeta1, 0, kBelowOne, false}, {Attr::kBeta2, 0, kBelowOne, false}, kEpsRule,
        kDecayRule, kGroupRule, kStreamRule},
       &V::adamw},
      {"hr.sgd",
       {{Attr::kMomentum, 0, kBelowOne, false}, kDecayRule, kGroupRule, kStreamRule},
       &V::sgd},
  };
  return kTable;
}

Status OpVerifier::run() {
  for (const Entry& entry : table()) {
    if (entry.kernel != op_.kernel) continue;
    HR_TRY(check_attrs(entry.attrs));
    HR_TRY(check_distinct());
    return (this->*entry.check)();
  }
  return error(Code::kBadFile, "no training op is called '%s'", op_.kernel.c_str());
}

Status OpVerifier::check_attrs(const std::vector<AttrRule>& rules) {
  constexpr std::array kOfAllKernels = {Attr::kSeconds, Attr::kFlops, Attr::kTraffic,
                                        Attr::kRecompute};
  for (const auto& [attr, value] : op_.attrs) {
    const bool known =
        std::find(kOfAllKernels.begin(), kOfAllKernels.end(), attr) != kOfAllKernels.end() ||
        std::any_of(rules.begin(), rules.end(), [&](const AttrRule& r) { return r.attr == attr; });
    if (!known) {
      return error(Code::kBadFile, "%s has no attribute '%s'", op_.kernel.c_str(), name_of(attr));
    }
  }
  for (const AttrRule& rule : rules) {
    const double value = op_.attr(rule.attr);
    // Written so that NaN fails.
    const bool inside = value >= rule.least && value <= rule.most;
    if (inside && (!rule.integer || value == std::floor(value))) continue;
    return error(Code::kBadFile, "attribute '%s' is %g, not %s from %g to %g", name_of(rule.attr),
                 value, rule.integer ? "an integer" : "a number", rule.least, rule.most);
  }
  return {};
}

// Nothing is written twice, and nothing that is written is read under another name.
Status OpVerifier::check_distinct() {
  std::vector<TensorId> written(op_.outputs);
  written.insert(written.end(), op_.updates.begin(), op_.updates.end());
  for (size_t i = 0; i < written.size(); ++i) {
    for (size_t j = 0; j < i; ++j) {
      HR_TRY(need(written[i] != written[j], g_.at(written[i]), "is written twice by one op"));
    }
    const bool read =
        std::find(op_.inputs.begin(), op_.inputs.end(), written[i]) != op_.inputs.end();
    HR_TRY(need(!read, g_.at(written[i]), "is both read and written"));
  }
  return {};
}

Status OpVerifier::embed() {
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

Status OpVerifier::embed_grad() {
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

// Input 1 says which columns of `all` those of `part` are: each at most once.
Status OpVerifier::index_of(const Tensor& all, const Tensor& part) {
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

Status OpVerifier::columns() {
  HR_TRY(need_inputs(2, 2));
  HR_TRY(need_outputs(1));
  return index_of(in(0), out(0));
}

Status OpVerifier::columns_grad() {
  HR_TRY(need_inputs(2, 2));
  HR_TRY(need_outputs(1));
  return index_of(out(0), in(0));
}

Status OpVerifier::scale() {
  HR_TRY(need_inputs(1, 2));
  HR_TRY(need_outputs(1));
  HR_TRY(set_compute(in(0)));
  if (inputs() > 1) HR_TRY(f32(in(1), 1, in(0).cols));
  return plain(out(0), in(0).rows, in(0).cols);
}

Status OpVerifier::scale_dw() {
  HR_TRY(need_inputs(2, 2));
  HR_TRY(find_targets(0));
  HR_TRY(need_targets(1));
  HR_TRY(set_compute(in(0)));
  HR_TRY(plain(in(1), in(0).rows, in(0).cols));
  return f32(target(0), 1, in(0).cols);
}

Status OpVerifier::patches() {
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

Status OpVerifier::prefix() {
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

Status OpVerifier::prefix_grad() {
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

// `all` [S sequence, n], `part` [S m, n]: rows first .. first + m are in the sequence.
Status OpVerifier::part_of(const Tensor& all, const Tensor& part) {
  HR_TRY(set_compute(all));
  HR_TRY(whole_sequences(all.rows));
  HR_TRY(plain(part, part.rows, all.cols));
  const int64_t sequences = all.rows / op_.iattr(Attr::kSequence);
  HR_TRY(need(part.rows > 0 && part.rows % sequences == 0, part,
              "has not as many rows for each sequence"));
  return need(op_.iattr(Attr::kFirst) + part.rows / sequences <= op_.iattr(Attr::kSequence), part,
              "has more rows than there are");
}

Status OpVerifier::select() {
  HR_TRY(need_inputs(1, 1));
  HR_TRY(need_outputs(1));
  return part_of(in(0), out(0));
}

Status OpVerifier::select_grad() {
  HR_TRY(need_inputs(1, 1));
  HR_TRY(need_outputs(1));
  return part_of(out(0), in(0));
}

Status OpVerifier::mean_rows() {
  HR_TRY(select());
  return shape(out(0), in(0).rows / op_.iattr(Attr::kSequence), in(0).cols);
}

Status OpVerifier::mean_rows_grad() {
  HR_TRY(select_grad());
  return shape(in(0), out(0).rows / op_.iattr(Attr::kSequence), out(0).cols);
}

// Inputs first .. first + weights - 1, each [any, cols]; *rows is the sum of theirs.
Status OpVerifier::weights_of(size_t first, int64_t cols, int64_t* rows) {
  for (size_t i = 0; i < count(Attr::kWeights); ++i) {
    const Tensor& w = in(first + i);
    HR_TRY(plain(w, w.rows, cols));
    *rows += w.rows;
  }
  return {};
}

Status OpVerifier::linear() {
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

Status OpVerifier::linear_dx() {
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

Status OpVerifier::linear_dw() {
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

Status OpVerifier::norm_operands(const Tensor& x, const Tensor& stat) {
  HR_TRY(set_compute(x));
  return f32(stat, x.rows, 1 + op_.iattr(Attr::kAct));
}

Status OpVerifier::norm() {
  HR_TRY(need_inputs(2, 3));
  HR_TRY(need_outputs(2));
  HR_TRY(norm_operands(in(0), out(1)));
  for (size_t i = 1; i < inputs(); ++i) HR_TRY(f32(in(i), 1, in(0).cols));
  return plain(out(0), in(0).rows, in(0).cols);
}

Status OpVerifier::norm_dx() {
  HR_TRY(need_inputs(4, 5));
  HR_TRY(need_outputs(1));
  const Tensor& x = in(1);
  HR_TRY(norm_operands(x, in(3)));
  HR_TRY(plain(in(0), x.rows, x.cols));
  HR_TRY(f32(in(2), 1, x.cols));
  if (inputs() > 4) HR_TRY(plain(in(4), x.rows, x.cols));
  return plain(out(0), x.rows, x.cols);
}

Status OpVerifier::norm_dw() {
  HR_TRY(need_inputs(3, 3));
  HR_TRY(find_targets(0));
  HR_TRY(need_targets(1 + count(Attr::kBias)));
  HR_TRY(norm_operands(in(1), in(2)));
  HR_TRY(plain(in(0), in(1).rows, in(1).cols));
  for (size_t i = 0; i < targets_.size(); ++i) HR_TRY(f32(target(i), 1, in(1).cols));
  return {};
}

// qkv [T, (heads + 2 kv_heads) head_dim]; sets the compute type.
Status OpVerifier::heads(const Tensor& qkv) {
  const int64_t heads = op_.iattr(Attr::kHeads), kv = op_.iattr(Attr::kKvHeads);
  HR_TRY(set_compute(qkv));
  HR_TRY(need(heads % kv == 0, "kv_heads does not divide heads"));
  return shape(qkv, qkv.rows, (heads + 2 * kv) * op_.iattr(Attr::kHeadDim));
}

// Weights (or their gradients) q and k, each of one head or of all, and the statistics of what they
// normalise.
Status OpVerifier::runs(const Tensor& q, const Tensor& k, const Tensor& stat) {
  const int64_t dim = op_.iattr(Attr::kHeadDim);
  int64_t runs = 0;
  for (const auto& [t, heads] : {std::pair(&q, op_.iattr(Attr::kHeads)),
                                 std::pair(&k, op_.iattr(Attr::kKvHeads))}) {
    HR_TRY(f32(*t, 1, t->cols == dim ? dim : heads * dim));
    runs += t->cols == dim ? heads : 1;
  }
  return f32(stat, stat.rows, runs * (1 + op_.iattr(Attr::kAct)));
}

Status OpVerifier::qk_norm() {
  HR_TRY(need_inputs(3, 3));
  HR_TRY(need_outputs(2));
  HR_TRY(heads(in(0)));
  HR_TRY(runs(in(1), in(2), out(1)));
  HR_TRY(shape(out(1), in(0).rows, out(1).cols));
  return plain(out(0), in(0).rows, in(0).cols);
}

Status OpVerifier::qk_norm_dx() {
  HR_TRY(need_inputs(5, 5));
  HR_TRY(need_outputs(1));
  HR_TRY(heads(in(1)));
  HR_TRY(plain(in(0), in(1).rows, in(1).cols));
  HR_TRY(runs(in(2), in(3), in(4)));
  HR_TRY(shape(in(4), in(1).rows, in(4).cols));
  return plain(out(0), in(1).rows, in(1).cols);
}

Status OpVerifier::qk_norm_dw() {
  HR_TRY(need_inputs(3, 3));
  HR_TRY(find_targets(0));
  HR_TRY(need_targets(2));
  HR_TRY(heads(in(1)));
  HR_TRY(plain(in(0), in(1).rows, in(1).cols));
  HR_TRY(runs(target(0), target(1), in(2)));
  return shape(in(2), in(1).rows, in(2).cols);
}

Status OpVerifier::rope() {
  HR_TRY(need_inputs(2, 2));
  HR_TRY(need_outputs(1));
  HR_TRY(heads(in(0)));
  HR_TRY(whole_sequences(in(0).rows));
  HR_TRY(f32(in(1), 1, in(1).cols));
  HR_TRY(need(2 * in(1).cols <= op_.iattr(Attr::kHeadDim), in(1), "has more pairs than a head"));
  return plain(out(0), in(0).rows, in(0).cols);
}

Status OpVerifier::attention() {
  HR_TRY(need_inputs(1, 1));
  HR_TRY(need_outputs(2));
  HR_TRY(heads(in(0)));
  HR_TRY(whole_sequences(in(0).rows));
  HR_TRY(plain(out(0), in(0).rows, op_.iattr(Attr::kHeads) * op_.iattr(Attr::kHeadDim)));
  return f32(out(1), in(0).rows, op_.iattr(Attr::kHeads));
}

Status OpVerifier::attention_grad() {
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

// Whether x is gate | up.
bool OpVerifier::gated() const {
  const int64_t act = op_.iattr(Attr::kAct);
  return act == 0 || act == 1 || act == 6;
}

Status OpVerifier::act_shapes(const Tensor& x, const Tensor& y) {
  HR_TRY(set_compute(x));
  HR_TRY(need(!gated() || x.cols % 2 == 0, x, "is not gate | up"));
  return plain(y, x.rows, gated() ? x.cols / 2 : x.cols);
}

Status OpVerifier::act() {
  HR_TRY(need_inputs(1, 1));
  HR_TRY(need_outputs(1));
  return act_shapes(in(0), out(0));
}

Status OpVerifier::act_grad() {
  HR_TRY(need_inputs(2, 2));
  HR_TRY(need_outputs(1));
  const Tensor& x = in(1);
  HR_TRY(act_shapes(x, in(0)));
  return plain(out(0), x.rows, x.cols);
}

Status OpVerifier::dropout() {
  HR_TRY(need_inputs(1, 1));
  HR_TRY(need_outputs(1));
  HR_TRY(set_compute(in(0)));
  HR_TRY(step_rows(in(0).rows));
  return plain(out(0), in(0).rows, in(0).cols);
}

Status OpVerifier::add() {
  HR_TRY(need_inputs(2, 2));
  HR_TRY(need_outputs(1));
  HR_TRY(set_compute(in(0)));
  HR_TRY(plain(in(1), in(0).rows, in(0).cols));
  return plain(out(0), in(0).rows, in(0).cols);
}

Status OpVerifier::loss() {
  HR_TRY(need_inputs(2, SIZE_MAX));
  const bool bias = op_.iattr(Attr::kBias) > 0;
  HR_TRY(need(!bias || inputs() % 2 == 1, "not as many biases as tiles"));
  const Tensor& x = in(0);
  HR_TRY(set_compute(x));
  const size_t tiles = loss_tiles(op_);
  for (size_t i = 1; i <= tiles; ++i) HR_TRY(plain(in(i), in(i).rows, x.cols));
  for (size_t i = 1 + tiles; i < inputs(); ++i) HR_TRY(f32(in(i), 1, in(i - tiles).rows));
  const int64_t grad = op_.iattr(Attr::kGrad);
  if (grad < 2) HR_TRY(need_outputs(static_cast<size_t>(1 + grad)));
  if (grad == 2) {
    HR_TRY(find_targets(2));
    HR_TRY(need_targets(inputs() - 1));
    for (size_t i = 0; i < targets_.size(); ++i) {
      HR_TRY(f32(target(i), in(i + 1).rows, in(i + 1).cols));
    }
  }
  HR_TRY(f32(out(0), x.rows, 1));
  HR_TRY(step_rows(x.rows));
  return grad > 0 ? plain(out(1), x.rows, x.cols) : Status();
}

Status OpVerifier::mean_loss() {
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

Status OpVerifier::sum_squares() {
  HR_TRY(need_inputs(1, 1));
  HR_TRY(need_outputs(1));
  HR_TRY(need(in(0).dtype == DType::kF32, in(0), "is not f32"));
  return f32(out(0), 1, 2);
}

Status OpVerifier::guard() {
  HR_TRY(need_inputs(1, 1));
  HR_TRY(need_outputs(1));
  HR_TRY(f32(in(0), 1, 1));
  return f32(out(0), 1, 2);
}

Status OpVerifier::clip() {
  HR_TRY(need_inputs(1, SIZE_MAX));
  HR_TRY(need_outputs(1));
  for (size_t i = 0; i < inputs(); ++i) HR_TRY(f32(in(i), 1, 2));
  return f32(out(0), 1, 2);
}

// in: gradient f32, +clip. updates: least to most, the last of which may be a copy.
Status OpVerifier::optimizer(size_t least, size_t most) {
  HR_TRY(need_inputs(1, 2));
  HR_TRY(need(op_.outputs.empty(), "an optimizer has no outputs"));
  if (op_.updates.size() < least || op_.updates.size() > most) {
    return error(Code::kBadFile, "%zu updates, not %zu to %zu", op_.updates.size(), least, most);
  }
  HR_TRY(need(in(0).dtype == DType::kF32, in(0), "is not f32"));
  return inputs() > 1 ? f32(in(1), 1, 2) : Status();
}

Status OpVerifier::parameter(const Tensor& param, const Tensor* copy) {
  HR_TRY(need(is_float(param), param, "is neither f32 nor bf16"));
  HR_TRY(shape(param, in(0).rows, in(0).cols));
  if (copy == nullptr) return {};
  HR_TRY(need(param.dtype == DType::kF32, param, "has a copy and is not f32"));
  HR_TRY(need(is_half(*copy), *copy, "is a copy and is neither bf16 nor f16"));
  return need(same_shape(*copy, param), *copy, "is not of the parameter's shape");
}

Status OpVerifier::adamw() {
  HR_TRY(optimizer(3, 4));
  for (size_t i = 1; i < 3; ++i) HR_TRY(f32(g_.at(op_.updates[i]), in(0).rows, in(0).cols));
  return parameter(g_.at(op_.updates[0]),
                   op_.updates.size() > 3 ? &g_.at(op_.updates[3]) : nullptr);
}

Status OpVerifier::sgd() {
  const size_t kept = op_.attr(Attr::kMomentum) > 0 ? 2 : 1;
  HR_TRY(optimizer(kept, kept + 1));
  if (kept > 1) HR_TRY(f32(g_.at(op_.updates[1]), in(0).rows, in(0).cols));
  return parameter(g_.at(op_.updates[0]),
                   op_.updates.size() > kept ? &g_.at(op_.updates[kept]) : nullptr);
}

}  // namespace

Status verify_train_op(const Graph& graph, const Op& op) { return OpVerifier(graph, op).run(); }

}  // namespace headrace
