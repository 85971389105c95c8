#include "headrace/train/cost.h"

#include <algorithm>

#include "headrace/ir/train_ops.h"
#include "headrace/kernel/train.h"

namespace headrace {
namespace {

double elements(const Tensor& t) {
  return static_cast<double>(t.rows) * static_cast<double>(t.cols);
}

// Of a product of [T, k] with weights that are inputs `first` .. first + attr weights - 1.
double product_flops(const Graph& g, const Op& op, double rows) {
  double sum = 0;
  for (int64_t i = 1; i <= op.iattr(Attr::kWeights); ++i) {
    sum += 2 * rows * elements(g.at(op.inputs[static_cast<size_t>(i)]));
  }
  return sum;
}

double attention_flops(const Op& op, const Tensor& qkv) {
  const double width = op.attr(Attr::kHeads) * op.attr(Attr::kHeadDim);
  const double all = op.attr(Attr::kSequence), window = op.attr(Attr::kWindow);
  const double reach = window > 0 ? std::min(window, all) : all;
  // Keys that a query sees on one side, on average: those near the end have none beyond it.
  const double side = reach - reach * reach / (2 * all);
  const double keys = op.attr(Attr::kCausal, 1) > 0 ? side : 2 * side;
  return 4 * static_cast<double>(qkv.rows) * keys * width;
}

double loss_flops(const Graph& g, const Op& op) {
  double vocab = 0;
  for (size_t i = 1; i <= loss_tiles(op); ++i) {
    vocab += static_cast<double>(g.at(op.inputs[i]).rows);
  }
  return 2 * elements(g.at(op.inputs[0])) * vocab * (1 + op.attr(Attr::kGrad));
}

double flops_of(const Graph& g, const Op& op) {
  const std::string_view k = op.kernel;
  const Tensor& first = g.at(op.inputs[0]);
  if (k == "hr.linear" || k == "hr.linear_dx") {
    return product_flops(g, op, static_cast<double>(first.rows));
  }
  if (k == "hr.linear_dw") {
    const TensorId dw = op.outputs.empty() ? op.updates[0] : op.outputs[0];
    return 2 * static_cast<double>(first.rows) * elements(g.at(dw));
  }
  if (k == "hr.attention") return attention_flops(op, first);
  if (k == "hr.attention_grad") return 2.5 * attention_flops(op, g.at(op.inputs[1]));
  if (k == "hr.loss") return loss_flops(g, op);
  if (k == "hr.adamw") return 15 * elements(first);
  return 4 * elements(first);
}

}  // namespace

void set_costs(Graph* graph, int threads) {
  for (Op& op : graph->ops) {
    if (!is_train_op(op)) continue;
    op.attrs[Attr::kFlops] = flops_of(*graph, op);
    // Of tables, only the rows of the tokens are touched.
    if (op.kernel == "hr.embed" || op.kernel == "hr.embed_grad") {
      const TensorId x = op.kernel == "hr.embed" ? op.outputs[0] : op.inputs[0];
      op.attrs[Attr::kTraffic] = 3 * static_cast<double>(graph->at(x).bytes);
      // A gradient that is written for the first time is cleared as a whole.
      for (const TensorId t : op.outputs) {
        if (t != x) op.attrs[Attr::kTraffic] += static_cast<double>(graph->at(t).bytes);
      }
    }
    if (op.kernel == "hr.select") {  // reads no more than it writes
      op.attrs[Attr::kTraffic] = 2 * static_cast<double>(graph->at(op.outputs[0]).bytes);
    }
    if (find_train_kernel(op.kernel) != nullptr) {
      op.workspace = train_workspace(*graph, op, threads);
    }
  }
}

}  // namespace headrace
