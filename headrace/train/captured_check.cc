#include <algorithm>
#include <array>
#include <set>

#include "headrace/base/json_text.h"
#include "headrace/ir/train_ops.h"
#include "headrace/train/captured_forward.h"

namespace headrace {
namespace {

std::string shown(const std::string& name) { return "'" + printable(name) + "'"; }

// Ops that a forward pass may not have: gradients, and what the step is finished with.
bool is_forward(const std::string& kernel) {
  constexpr std::array<std::string_view, 6> kOurs = {"hr.mean_loss", "hr.guard", "hr.sum_squares",
                                                     "hr.clip",      "hr.adamw", "hr.sgd"};
  if (!kernel.starts_with(kTrainPrefix)) return false;
  for (const std::string_view end : {"_grad", "_dx", "_dw"}) {
    if (kernel.ends_with(end)) return false;
  }
  return std::find(kOurs.begin(), kOurs.end(), kernel) == kOurs.end();
}

// Operands [begin, end) of an op that are weights: what it computes gradients of.
struct Operands {
  size_t begin = 0, end = 0;
};
Operands weights_of(const CapturedOp& op) {
  const auto attr = [&](Attr key) {
    const auto found = op.attrs.find(key);
    const double value = found == op.attrs.end() ? 0 : found->second;
    const bool count = value >= 0 && value <= static_cast<double>(kMostCapturedOperands);
    return count ? static_cast<size_t>(value) : size_t{0};
  };
  const size_t all = op.inputs.size();
  if (op.kernel == "hr.embed") return {0, all};
  if (op.kernel == "hr.loss") return {1, std::max<size_t>(1, all - attr(Attr::kWeights))};
  for (const std::string_view kernel : {"hr.norm", "hr.qk_norm", "hr.scale"}) {
    if (op.kernel == kernel) return {1, all};
  }
  if (op.kernel == "hr.linear") return {1, 1 + attr(Attr::kWeights) * (1 + attr(Attr::kBias))};
  if (op.kernel == "hr.prefix") return {1, 1 + attr(Attr::kWeights) + attr(Attr::kPositions)};
  return {};
}

class Checker {
 public:
  explicit Checker(CapturedForward* forward) : c_(*forward) {}

  Status run() {
    HR_TRY(names());
    for (size_t m = 0; m < c_.micro_batches.size(); ++m) {
      HR_TRY(micro_batch(&c_.micro_batches[m]).within(text_of("micro-batch %zu", m)));
    }
    for (CapturedParameter& p : c_.parameters) {
      p.table = tables_.contains(p.name) && !p.transposed;
      const double tiles = static_cast<double>(p.rows) * static_cast<double>(p.cols) * 4 /
                           static_cast<double>(kTableTile);
      if (!p.table || tiles < static_cast<double>(kMostCapturedOperands)) continue;
      return error(Code::kUnsupported, "parameter %s: a table of more than %zu tiles of 16 MiB",
                   shown(p.name).c_str(), kMostCapturedOperands);
    }
    const auto trained = [&](const CapturedParameter& p) {
      return p.trainable && used_.contains(p.name);
    };
    if (std::any_of(c_.parameters.begin(), c_.parameters.end(), trained)) return {};
    return error(Code::kUsage, "the captured forward pass: no parameter that is used is trainable");
  }

 private:
  enum class What : uint8_t { kParameter, kConstant, kInput };
  struct Known {
    What what;
    size_t number;
  };

  Status add_name(const std::string& name, What what, size_t number) {
    if (known_.try_emplace(name, Known{what, number}).second) return {};
    return error(Code::kBadFile, "the captured forward pass: two parameters, constants or inputs "
                 "are called %s", shown(name).c_str());
  }

  Status names() {
    for (size_t i = 0; i < c_.parameters.size(); ++i) {
      HR_TRY(add_name(c_.parameters[i].name, What::kParameter, i));
      for (const std::string& alias : c_.parameters[i].aliases) {
        HR_TRY(add_name(alias, What::kParameter, i));
      }
    }
    for (size_t i = 0; i < c_.constants.size(); ++i) {
      HR_TRY(add_name(c_.constants[i].name, What::kConstant, i));
    }
    for (size_t i = 0; i < c_.inputs.size(); ++i) {
      HR_TRY(add_name(c_.inputs[i].value.name, What::kInput, i));
    }
    return {};
  }

  Status micro_batch(CapturedMicroBatch* batch) {
    std::set<std::string> written, ops;
    for (size_t i = 0; i < batch->ops.size(); ++i) {
      CapturedOp& op = batch->ops[i];
      const bool last = i + 1 == batch->ops.size();
      if (!ops.insert(op.name).second) {
        return error(Code::kBadFile, "two ops are called %s", shown(op.name).c_str());
      }
      HR_TRY(one_op(&op, last, batch->repeat, &written).within("op " + shown(op.name)));
    }
    return {};
  }

  Status one_op(CapturedOp* op, bool last, int64_t repeat, std::set<std::string>* written) {
    if (!is_forward(op->kernel)) {
      return error(Code::kUnsupported, "%s is not an op of a forward pass",
                   shown(op->kernel).c_str());
    }
    const bool loss = op->kernel == "hr.loss";
    if (loss != last) {
      return error(Code::kBadFile, loss ? "hr.loss is not the last op of its micro-batch"
                                        : "the last op of a micro-batch is not hr.loss");
    }
    if (loss && (op->attrs.contains(Attr::kGrad) || op->outputs.size() != 1)) {
      return error(Code::kBadFile, "hr.loss has attribute 'grad', or outputs beside its losses");
    }
    if (op->attrs.contains(Attr::kRecompute) && op->attrs.at(Attr::kRecompute) != 0) {
      return error(Code::kBadFile, "attribute 'recompute' is not 0 or absent");
    }
    for (size_t i = 0; i < op->inputs.size(); ++i) {
      HR_TRY(operand(op, i, repeat, *written));
    }
    for (const CapturedValue& value : op->outputs) {
      if (known_.contains(value.name) || !written->insert(value.name).second) {
        return error(Code::kBadFile, "%s is there before it is written", shown(value.name).c_str());
      }
    }
    return {};
  }

  Status operand(CapturedOp* op, size_t i, int64_t repeat, const std::set<std::string>& written) {
    std::string& name = op->inputs[i];
    if (written.contains(name)) return {};
    const auto found = known_.find(name);
    if (found == known_.end()) {
      return error(Code::kBadFile, "%s is read before it is written, and no parameter, constant or "
                   "input", shown(name).c_str());
    }
    const Known& known = found->second;
    if (known.what == What::kInput) {
      const int64_t count = c_.inputs[known.number].count;
      if (count == 1 || count == repeat) return {};
      return error(Code::kBadFile, "input %s is there %lld times, not %lld", shown(name).c_str(),
                   static_cast<long long>(count), static_cast<long long>(repeat));
    }
    if (known.what != What::kParameter) return {};
    const CapturedParameter& p = c_.parameters[known.number];
    name = p.name;  // of a tied one, the first
    const Operands weights = weights_of(*op);
    if (p.trainable && (i < weights.begin || i >= weights.end)) {
      return error(Code::kUnsupported, "operand %zu, %s, is trained: %s gives it no gradient", i,
                   shown(name).c_str(), op->kernel.c_str());
    }
    const auto on = [&](Attr attr) {
      const auto found = op->attrs.find(attr);
      return found != op->attrs.end() && found->second > 0;
    };
    const bool last = i + 1 == op->inputs.size();
    // The biases of a table would have to be cut as the table is.
    const bool table = op->kernel == "hr.embed"
                           ? !(last && on(Attr::kPositions))
                           : op->kernel == "hr.loss" && i >= weights.begin &&
                                 i < weights.end && !on(Attr::kBias);
    const bool first = used_.insert(name).second;
    if (table && first && !p.vector) tables_.insert(name);
    if (!table) tables_.erase(name);
    return {};
  }

  CapturedForward& c_;
  std::map<std::string, Known> known_;
  std::set<std::string> used_, tables_;  // parameters, by their first name
};

}  // namespace

Status check_captured_forward(CapturedForward* forward) { return Checker(forward).run(); }

}  // namespace headrace
