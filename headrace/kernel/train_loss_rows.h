// One row of hr.loss: softmax cross entropy and its gradient, one function an instruction set.
//
// Steps, the same bits for every instruction set; n is rounded up to 16 with -infinity:
//   m = the largest logit; e[i] = exp_f32(x[i] - m); sum: 16 lanes of f32 over kLossBlock columns
//   in ascending order, then lanes l + l+8, +4, +2, +1; these sums are added in double.
//   loss = m - x[target] + log(sum) in double. f = gradient / sum in double, rounded to f32.
//   dx[i] = e[i] * f, and for the target e * f - gradient.
// With smoothing s (Szegedy et al., arXiv 1512.00567) the loss has (1 - s) x[target] + s mean(x) in
// place of x[target], the mean from 16 lanes of double; dx of the target has - (1 - s) gradient, dx
// of all then - s gradient / n.
#pragma once

#include <cstdint>

#include "headrace/kernel/kernel.h"

namespace headrace {

constexpr int64_t kLossBlock = 4096;

struct LossRow {
  float* x = nullptr;   // logits [round_up(n, 16)], then the gradient: `type` [n] from the same
                        // address on
  int64_t n = 0;
  int64_t target = 0;   // below n
  bool grad = false;    // else only the loss
  DType type = DType::kF32;  // or kBF16, kF16
  float gradient = 1;   // of the result with respect to this loss
  double smoothing = 0;
};
// The loss.
using LossRowFn = float (*)(const LossRow& row);
float loss_row_scalar(const LossRow& row);
float loss_row_avx2(const LossRow& row);
float loss_row_avx512(const LossRow& row);
// That of current_isa().
LossRowFn loss_row();

}  // namespace headrace
