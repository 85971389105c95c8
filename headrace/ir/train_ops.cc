// verify_train_op(): which ops there are, the attributes of each, and the check of its operands.
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "headrace/ir/train_ops_verify.h"

namespace headrace {
namespace verifier {
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

}  // namespace

struct TrainOpVerifier::Entry {
  std::string_view kernel;
  std::vector<AttrRule> attrs;
  Status (TrainOpVerifier::*check)();
};

const std::vector<TrainOpVerifier::Entry>& TrainOpVerifier::table() {
  using V = TrainOpVerifier;
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
        {Attr::kWeights, 0, 1}, {Attr::kSmoothing, 0, 1, false}},
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

Status TrainOpVerifier::run() {
  for (const Entry& entry : table()) {
    if (entry.kernel != op_.kernel) continue;
    HR_TRY(check_attrs(entry));
    HR_TRY(check_distinct());
    return (this->*entry.check)();
  }
  return error(Code::kBadFile, "no training op is called '%s'", op_.kernel.c_str());
}

Status TrainOpVerifier::check_attrs(const Entry& entry) {
  constexpr std::array kOfAllKernels = {Attr::kSeconds, Attr::kFlops, Attr::kTraffic,
                                        Attr::kRecompute};
  for (const auto& [attr, value] : op_.attrs) {
    const bool known =
        std::find(kOfAllKernels.begin(), kOfAllKernels.end(), attr) != kOfAllKernels.end() ||
        std::any_of(entry.attrs.begin(), entry.attrs.end(),
                    [&](const AttrRule& r) { return r.attr == attr; });
    if (!known) {
      return error(Code::kBadFile, "%s has no attribute '%s'", op_.kernel.c_str(), name_of(attr));
    }
  }
  for (const AttrRule& rule : entry.attrs) {
    const double value = op_.attr(rule.attr);
    // Written so that NaN fails.
    const bool inside = value >= rule.least && value <= rule.most;
    if (inside && (!rule.integer || value == std::floor(value))) continue;
    return error(Code::kBadFile, "attribute '%s' is %g, not %s from %g to %g", name_of(rule.attr),
                 value, rule.integer ? "an integer" : "a number", rule.least, rule.most);
  }
  return {};
}

Status TrainOpVerifier::check_distinct() {
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

}  // namespace verifier

Status verify_train_op(const Graph& graph, const Op& op) {
  return verifier::TrainOpVerifier(graph, op).run();
}

}  // namespace headrace
