// RowOps: the loops over one row that the small ops are made of, one table an instruction
// set.
//
// Promises
//   1. Every table gives bit for bit what reference_row_ops() gives
//      (tests/kernel/row_ops_test.cc).
//   2. Elementwise functions may be given the same address for `out` and for an input.
// No function allocates or keeps a pointer. Addresses need the alignment of their type
// only.
#pragma once

#include <cstdint>

#include "headrace/kernel/kernel.h"

namespace headrace {

enum class Act : uint8_t { kSilu = 0, kGeluTanh = 1 };  // values of Attr::kAct

struct RowOps {
  // Sum of x[i]^2, i < n, in 16 lanes of double: lane l takes elements l mod 16 in
  // ascending order by fma; then lanes l and l+8 are added, then l and l+4, +2, +1.
  double (*sum_squares)(const float* x, int64_t n);
  // out[i] = x[i] * scale * weight[i], left to right; then + residual[i] unless residual
  // is null.
  void (*scale_weight)(const float* x, float scale, const float* weight,
                       const float* residual, float* out, int64_t n);
  // out[i] = x[i] * cosines[i] + x[partner of i] * sines[i]; partner: i ^ 1 when pairs
  // are adjacent, else i +- n/2. sines carry the sign. `out` must not be x. n is even.
  void (*rotate)(const float* x, const float* cosines, const float* sines, float* out,
                 int64_t n, bool half_split);
  void (*to_half)(const float* x, uint16_t* out, int64_t n);
  // out[i] = act(gate[i]) * up[i].
  void (*gated)(const float* gate, const float* up, float* out, int64_t n, Act act);
  void (*add)(const float* a, const float* b, float* out, int64_t n);
  // out[i] = x[i] * scale.
  void (*scale)(const float* x, float scale, float* out, int64_t n);
  // out[i] = cap * tanh(x[i] / cap).
  void (*softcap)(const float* x, float cap, float* out, int64_t n);
  // Sum of exp_f32(x[i]), i < n, in 16 lanes of double as in sum_squares.
  double (*sum_exp)(const float* x, int64_t n);
};

const RowOps& reference_row_ops();
// Only to be called where supported() says so.
const RowOps& avx2_row_ops();
const RowOps& avx512_row_ops();
// The table of current_isa().
const RowOps& row_ops();

}  // namespace headrace
