// The ops of a training step: kKernel ops whose kernel's name starts with "hr.". Unlike a workload's
// kernels they are known from inside: verify() checks their operands, kernel/ computes them.
//
// Vocabulary
//   T        rows of an activation: tokens of one micro-batch, whole sequences one after another.
//   n, k     columns. Weights of a product are [n, k]: n outputs, k inputs.
//   c        the compute type: f32, bf16 or f16, one for all activations and weights of products of
//            an op. Weights of norms, biases, statistics, losses and gradients of weights are f32.
//   target   a gradient of a weight. An op lists all its targets as `outputs` (it writes them) or
//            all as `updates` (it adds to what they hold): "+=" below stands for either.
//   scalar   a run-time number of the step, see StepRows: step, seed, loss_scale, rates. When
//            StepRows::update is false, hr.dropout copies and optimizer ops change nothing.
//   clip     the result of hr.clip or hr.guard. Without it gradients are divided by loss_scale.
//   +x       an optional input, always last, present when the op has one input more.
//
// All sums are taken in an order that depends on shapes alone (docs/decisions/0007-training.md).
// Token t of an op is row row_begin + t of the StepRows; its position is t mod sequence.
//
//   hr.embed          in: table tiles [v_i, n] c, in row order; with attr positions = 1 then also a
//                     position table [P, n] c. out: x [T, n] c = table[token] (+ pos[first +
//                     position]). attrs: row_begin, sequence, positions, first
//   hr.embed_grad     in: dx [T, n] c. targets: of each table tile, then of the position table.
//                     With positions = 1 there may be no tiles: the position table alone.
//                     attrs: row_begin, sequence, positions, first
//   hr.patches        in: images f32 [S, channels height width]. out: [S P, channels patch patch]
//                     c: the P = (height / patch) (width / patch) squares of each image, by rows;
//                     columns are those of a Conv2d weight [n, channels, patch, patch] read as a
//                     matrix, so that hr.linear over them is that convolution. It has no gradient.
//                     attrs: channels, height, patch
//   hr.prefix         in: x [S p, n] c, then `weights` tensors [k_i, n] c, then with attr positions
//                     = 1 a position table [P, n] c. out: y [S sequence, n] c, sequence = p + sum
//                     k_i: for each sequence the rows of all tensors, then its rows of x;
//                     + pos[position].
//                     attrs: sequence, weights, positions
//   hr.prefix_grad    in: dy [S sequence, n] c. target: of rows first .. of a sequence, summed over
//                     sequences; dw [r, n], r <= sequence - first, or more with attr positions = 1
//                     (a table whose last rows are not used). attrs: sequence, first, positions
//   hr.select         in: x [S sequence, n] c. out: y [S m, n] c: rows first .. first + m of each
//                     sequence. attrs: sequence, first
//   hr.select_grad    in: dy [S m, n] c. out: dx [S sequence, n] c, 0 in all other rows.
//                     attrs: sequence, first
//   hr.mean_rows      in: x [S sequence, n] c. out: y [S, n] c: the mean of rows first .. sequence
//                     of each sequence. attrs: sequence, first
//   hr.mean_rows_grad in: dy [S, n] c. out: dx [S sequence, n] c. attrs: sequence, first
//   hr.columns        in: x [T, N] c, index f32 [1, m], a constant of different integers below N.
//                     out: y [T, m] c, column j is column index[j] of x: queries, keys and values
//                     that a product gives head by head are put one after another.
//   hr.columns_grad   in: dy [T, m] c, index. out: dx [T, N] c, 0 in columns that index has not.
//   hr.scale          in: x [T, n] c, +weight [1, n]. out: y = scale * x (* weight). attrs: scale
//   hr.scale_dw       in: dy, x. target: dweight [1, n] += scale * sums of dy * x. attrs: scale
//   hr.linear         in: x [T, k] c, weights [n_i, k] c (attr weights of them), then as many biases
//                     [1, n_i] if attr bias = 1, +residual [T, N] c. out: y [T, N] c; columns
//                     col_begin .. col_begin + sum n_i are scale * x . w^T + bias + residual, all
//                     other columns are those of the residual (which must be there, if there are any).
//                     attrs: weights, bias, scale, col_begin
//   hr.linear_dx      in: dy [T, N] c, weights [n_i, k] c, +add [T, k] c.
//                     out: dx [T, k] c = scale * dy[:, col_begin ..] . w + add.
//                     attrs: weights, scale, col_begin
//   hr.linear_dw      in: dy [T, N] c, x [T, k] c. targets: dw [n, k] += scale * dy[:, cols]^T . x;
//                     with bias = 1 also db [1, n] += column sums of dy[:, cols].
//                     attrs: bias, scale, col_begin
//   hr.norm           in: x [T, n] c, weight [1, n], +bias [1, n]. out: y [T, n] c, stat f32 [T, 1]
//                     (act = 0, RMS: 1 / sqrt(mean x^2 + eps)) or [T, 2] (act = 1, layer norm: mean,
//                     1 / sqrt(var + eps)). With add_one = 1 the weight is 1 + weight.
//                     attrs: act, eps, add_one
//   hr.norm_dx        in: dy [T, n] c, x [T, n] c, weight, stat, +add [T, n] c. out: dx [T, n] c =
//                     gradient + add. attrs: act, add_one
//   hr.norm_dw        in: dy, x, stat. targets: dweight [1, n]; with bias = 1 also dbias [1, n].
//                     attrs: act, bias
//   hr.qk_norm        in: qkv [T, (heads + 2 kv_heads) head_dim] c, weight of q, weight of k. out:
//                     the same with q and k normalised, v as it was; stat f32 [T, runs (1 + act)].
//                     A weight is [1, head_dim]: every head is a run of its own; or [1, heads
//                     head_dim] (k: kv_heads head_dim): all together are one. Statistics as those
//                     of hr.norm, of q's runs, then of k's.
//                     attrs: heads, kv_heads, head_dim, act, eps, add_one
//   hr.qk_norm_dx     in: dy, qkv, weight of q, weight of k, stat. out: dqkv.
//                     attrs: heads, kv_heads, head_dim, act, add_one
//   hr.qk_norm_dw     in: dy, qkv, stat. targets: of the weight of q, of that of k.
//                     attrs: heads, kv_heads, head_dim, act
//   hr.rope           in: qkv as above, inv_freq f32 [1, r / 2], r <= head_dim. out: the same with
//                     the first r elements of every head of q and k rotated by position * inv_freq
//                     (by minus that when inverse = 1: the gradient), others and v as they were.
//                     Pairs are (2i, 2i + 1), or (i, i + r / 2) when rope_half_split = 1.
//                     attrs: heads, kv_heads, head_dim, rope_half_split, sequence, inverse
//   hr.attention      in: qkv as above (rotated). out: o [T, heads head_dim] c, lse f32 [T, heads]:
//                     softmax(scale q k^T) v within each sequence; lse is the log of the sum of
//                     exponentials. A position sees those not after it (causal = 1, the default) or
//                     all (causal = 0); with window > 0 only those less than window away.
//                     attrs: heads, kv_heads, head_dim, scale, sequence, causal, window
//   hr.attention_grad in: do, qkv, o, lse. out: dqkv. attrs as hr.attention
//   hr.act            in: x. out: y [T, n] c. attr act, of x [T, 2n] = gate | up: 0 silu(gate)
//                     * up, 1 gelu_tanh(gate) * up, 6 gelu(gate) * up; of x [T, n]: 2 gelu_tanh(x),
//                     3 gelu(x) (by erf), 4 max(x, 0), 5 silu(x), 7 x / (1 + e^(-1.702 x)).
//   hr.act_grad       in: dy, x. out: dx. attrs: act
//   hr.dropout        in: x [T, n] c. out: y = x / (1 - p) or 0, by a counter-based generator over
//                     (seed, stream, row_begin + t, column): the same op on dy is its gradient, and
//                     running it again gives the same bits. attrs: probability (p), stream, row_begin
//   hr.add            in: a, b [T, n] c. out: a + b.
//   hr.loss           in: x [T, n] c, output table tiles [v_i, n] c, then as many biases [1, v_i]
//                     if attr bias = 1. out: loss f32 [T, 1], the cross entropy of each row's
//                     target (0 where that is -1: not counted); with attr grad >= 1 dx [T, n] c;
//                     with grad = 2 targets follow for each tile, then for each bias:
//                     outputs = loss, dx, tiles or outputs = loss, dx and updates = tiles.
//                     Gradients are those of loss_scale * scale * mean over the step's counted
//                     targets, or with own_mean = 1 over those of this op's rows; scale, 1 where it
//                     is not there, does not change the losses. With weights = 1 a last operand w,
//                     f32 [T, 1], takes the mean's place: gradients are those of loss_scale *
//                     scale * sum of w[t] loss[t]. With smoothing = s the target counts 1 - s and
//                     all rows of the table together s (label smoothing).
//                     attrs: row_begin, grad, bias, scale, own_mean, weights, smoothing
//   hr.mean_loss      in: loss [T, 1] of each micro-batch. out: f32 [1, 1], the mean over counted
//                     targets of the step.
//   hr.guard          in: the result of hr.mean_loss. out: f32 [1, 2] = factor, 0: what hr.clip is for
//                     steps without clipping. factor is 1 / loss_scale, or 0 when the loss is not
//                     finite, so that a broken forward pass changes no parameter.
//   hr.sum_squares    in: gradient f32. out: f32 [1, 2]: a double-precision sum, high and low part.
//   hr.clip           in: results of hr.sum_squares. out: f32 [1, 2] = factor, norm, where norm is
//                     that of all gradients together over loss_scale, and factor what gradients are
//                     multiplied by: min(1, max_norm / norm) / loss_scale (max_norm 0: no limit);
//                     0 when the norm is not finite, which makes every optimizer op do nothing.
//                     attrs: max_norm
//   hr.adamw          in: gradient f32, +clip [1, 2]. updates: param, m f32, v f32 (, copy c). param is
//                     f32, or bf16 rounded stochastically (seed, stream); copy (bf16 or f16) is
//                     param rounded to nearest. Decoupled weight decay (Loshchilov and Hutter, arXiv
//                     1711.05101):
//                     p -= rate * (m' / (1 - beta1^step) / (sqrt(v' / (1 - beta2^step)) + eps)
//                     + weight_decay * p). attrs: beta1, beta2, eps, weight_decay, group, stream
//   hr.sgd            in: gradient f32, +clip. updates: param (, momentum f32 when attr momentum > 0)
//                     (, copy c). b = momentum b + g + weight_decay p; p -= rate b.
//                     attrs: momentum, weight_decay, group, stream
//
// Every op has flops and traffic as well (set by the builder), so that its cost is predicted like
// that of any kernel; all but the last two may run again, unless they have updates.
#pragma once

#include <string_view>

#include "headrace/ir/graph.h"

namespace headrace {

constexpr std::string_view kTrainPrefix = "hr.";

inline bool is_train_op(const Op& op) {
  return op.kind == OpKind::kKernel && op.kernel.starts_with(kTrainPrefix);
}

// How many inputs of an hr.loss, from the second on, are tiles of the output table.
inline size_t loss_tiles(const Op& op) {
  const size_t all = op.inputs.size() - (op.iattr(Attr::kWeights) > 0 ? 1 : 0);
  return op.iattr(Attr::kBias) > 0 ? all / 2 : all - 1;
}

// Ok, or which operand or attribute of this op (is_train_op) is not as the table says. Ids and
// element counts of tensors have been checked before.
Status verify_train_op(const Graph& graph, const Op& op);

}  // namespace headrace
