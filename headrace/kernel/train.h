// Kernels of training ops; headrace/ir/train_ops.h says what each computes. Reached through
// find_train_kernel(); named here for tests and benchmarks.
//
// Promises, beside those of kernel.h
//   1. The order of every sum depends on shapes alone: not on the number of threads, the
//      instruction set or addresses (docs/decisions/0007-training.md). A scalar reference of each
//      stays beside it.
//   2. Nothing is allocated; op.workspace holds at least the bytes that `workspace` gives for the
//      pool's threads, and results do not depend on how many there are.
//   3. Weights of role kWeight may start at any address; everything else is kLine-aligned.
#pragma once

#include <string_view>

#include "headrace/kernel/kernel.h"

namespace headrace {

struct TrainKernel {
  std::string_view name;  // "hr.linear"
  KernelFn run = nullptr;
  // Bytes of workspace for `threads` workers; null: none.
  Bytes (*workspace)(const Graph& graph, const Op& op, int threads) = nullptr;
};

// Null when there is none of this name.
const TrainKernel* find_train_kernel(std::string_view name);
// Precondition: the kernel exists.
Bytes train_workspace(const Graph& graph, const Op& op, int threads);

void train_linear(const OpContext& ctx);
void train_linear_dx(const OpContext& ctx);
void train_linear_dw(const OpContext& ctx);
void train_loss(const OpContext& ctx);
void train_mean_loss(const OpContext& ctx);
void train_attention(const OpContext& ctx);
void train_attention_grad(const OpContext& ctx);
void train_embed(const OpContext& ctx);
void train_embed_grad(const OpContext& ctx);
void train_columns(const OpContext& ctx);
void train_columns_grad(const OpContext& ctx);
void train_scale(const OpContext& ctx);
void train_scale_dw(const OpContext& ctx);
void train_patches(const OpContext& ctx);
void train_prefix(const OpContext& ctx);
void train_prefix_grad(const OpContext& ctx);
void train_select(const OpContext& ctx);
void train_select_grad(const OpContext& ctx);
void train_mean_rows(const OpContext& ctx);
void train_mean_rows_grad(const OpContext& ctx);
void train_norm(const OpContext& ctx);
void train_norm_dx(const OpContext& ctx);
void train_norm_dw(const OpContext& ctx);
void train_qk_norm(const OpContext& ctx);
void train_qk_norm_dx(const OpContext& ctx);
void train_qk_norm_dw(const OpContext& ctx);
void train_rope(const OpContext& ctx);
void train_act(const OpContext& ctx);
void train_act_grad(const OpContext& ctx);
void train_dropout(const OpContext& ctx);
void train_add(const OpContext& ctx);
void train_sum_squares(const OpContext& ctx);
void train_guard(const OpContext& ctx);
void train_clip(const OpContext& ctx);
void train_adamw(const OpContext& ctx);
void train_sgd(const OpContext& ctx);

}  // namespace headrace
