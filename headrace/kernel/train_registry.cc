// The table of training kernels, in the order of ir/train_ops.h.
#include <array>

#include "headrace/base/status.h"
#include "headrace/kernel/train.h"
#include "headrace/kernel/train_attention.h"
#include "headrace/kernel/train_linear.h"
#include "headrace/kernel/train_reduce.h"

namespace headrace {
namespace {

constexpr std::array kTrainKernels{
    TrainKernel{"hr.embed", train_embed},
    TrainKernel{"hr.embed_grad", train_embed_grad},
    TrainKernel{"hr.patches", train_patches},
    TrainKernel{"hr.prefix", train_prefix},
    TrainKernel{"hr.prefix_grad", train_prefix_grad},
    TrainKernel{"hr.select", train_select},
    TrainKernel{"hr.select_grad", train_select_grad},
    TrainKernel{"hr.mean_rows", train_mean_rows},
    TrainKernel{"hr.mean_rows_grad", train_mean_rows_grad},
    TrainKernel{"hr.columns", train_columns},
    TrainKernel{"hr.columns_grad", train_columns_grad},
    TrainKernel{"hr.scale", train_scale},
    TrainKernel{"hr.scale_dw", train_scale_dw},
    TrainKernel{"hr.linear", train_linear, train_linear_workspace},
    TrainKernel{"hr.linear_dx", train_linear_dx, train_linear_workspace},
    TrainKernel{"hr.linear_dw", train_linear_dw, train_linear_workspace},
    TrainKernel{"hr.norm", train_norm},
    TrainKernel{"hr.norm_dx", train_norm_dx},
    TrainKernel{"hr.norm_dw", train_norm_dw},
    TrainKernel{"hr.qk_norm", train_qk_norm},
    TrainKernel{"hr.qk_norm_dx", train_qk_norm_dx},
    TrainKernel{"hr.qk_norm_dw", train_qk_norm_dw},
    TrainKernel{"hr.rope", train_rope},
    TrainKernel{"hr.attention", train_attention, train_attention_workspace},
    TrainKernel{"hr.attention_grad", train_attention_grad, train_attention_grad_workspace},
    TrainKernel{"hr.act", train_act},
    TrainKernel{"hr.act_grad", train_act_grad},
    TrainKernel{"hr.dropout", train_dropout},
    TrainKernel{"hr.add", train_add},
    TrainKernel{"hr.loss", train_loss, train_loss_workspace},
    TrainKernel{"hr.mean_loss", train_mean_loss},
    TrainKernel{"hr.guard", train_guard},
    TrainKernel{"hr.sum_squares", train_sum_squares, train_sum_squares_workspace},
    TrainKernel{"hr.clip", train_clip},
    TrainKernel{"hr.adamw", train_adamw},
    TrainKernel{"hr.sgd", train_sgd},
};

}  // namespace

const TrainKernel* find_train_kernel(std::string_view name) {
  for (const TrainKernel& kernel : kTrainKernels) {
    if (kernel.name == name) return &kernel;
  }
  return nullptr;
}

Bytes train_workspace(const Graph& graph, const Op& op, int threads) {
  const TrainKernel* kernel = find_train_kernel(op.kernel);
  HR_CHECK(kernel != nullptr, "no training kernel of this name");
  return kernel->workspace == nullptr ? 0 : kernel->workspace(graph, op, threads);
}

}  // namespace headrace
