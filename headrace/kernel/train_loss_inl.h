// train_loss_rows.h over Lanes. Included by train_loss_avx2.cc and train_loss_avx512.cc, each after
// its lanes_*.h.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "headrace/kernel/lanes_math.h"
#include "headrace/kernel/train_elements_inl.h"
#include "headrace/kernel/train_loss_rows.h"

namespace headrace {
namespace {

float largest(const float* x, int64_t n) {
  Lanes most = Lanes::load(x);
  for (int64_t i = 16; i < n; i += 16) most = max(most, Lanes::load(x + i));
  float lane[16];
  most.store(lane);
  return *std::max_element(lane, lane + 16);
}

double exp_and_sum(float* x, int64_t n, float most, bool keep) {
  const Lanes m = Lanes::splat(most);
  double sum = 0;
  for (int64_t block = 0; block < n; block += kLossBlock) {
    Lanes lanes = Lanes::zero();
    for (int64_t i = block; i < std::min(n, block + kLossBlock); i += 16) {
      const Lanes e = exp_lanes(Lanes::load(x + i) - m);
      if (keep) e.store(x + i);
      lanes = lanes + e;
    }
    sum += static_cast<double>(lanes.tree_sum());
  }
  return sum;
}

void times(float* x, int64_t n, float factor) {
  const Lanes f = Lanes::splat(factor);
  for (int64_t i = 0; i < n; i += 16) (Lanes::load(x + i) * f).store(x + i);
}

// In place: element i goes where element i / 2 was, which has been read.
template <typename C>
void narrow(float* x, int64_t n) {
  auto* out = reinterpret_cast<std::byte*>(x);
  for (int64_t i = 0; i < n; i += 16) C::store(Lanes::load(x + i), out, i, Full{});
}

double mean_of(const float* x, int64_t n) {
  DoubleLanes sum;
  each_group(n, [&](int64_t i, auto size) { sum.add(Lanes::load(x + i, size)); });
  return sum.tree_sum() / static_cast<double>(n);
}

void minus(float* x, int64_t n, float by) {
  const Lanes b = Lanes::splat(by);
  each_group(n, [&](int64_t i, auto size) {
    (Lanes::load(x + i, size) - b).store(x + i, size);
  });
}

float loss_row_lanes(const LossRow& row) {
  const int64_t n = round_up(row.n, 16);
  std::fill(row.x + row.n, row.x + n, -std::numeric_limits<float>::infinity());
  const float most = largest(row.x, n);
  const double s = row.smoothing;
  double shift = static_cast<double>(most) - static_cast<double>(row.x[row.target]);
  if (s > 0) shift = (1 - s) * shift + s * (static_cast<double>(most) - mean_of(row.x, row.n));
  const double sum = exp_and_sum(row.x, n, most, row.grad);
  const float loss = static_cast<float>(shift + std::log(sum));
  if (!row.grad) return loss;
  times(row.x, n, static_cast<float>(static_cast<double>(row.gradient) / sum));
  row.x[row.target] -= static_cast<float>((1 - s) * static_cast<double>(row.gradient));
  if (s > 0) {
    minus(row.x, row.n, static_cast<float>(s * static_cast<double>(row.gradient) /
                                           static_cast<double>(row.n)));
  }
  if (row.type == DType::kBF16) narrow<Bf16>(row.x, n);
  if (row.type == DType::kF16) narrow<F16>(row.x, n);
  return loss;
}

}  // namespace
}  // namespace headrace
