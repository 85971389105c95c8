// GEMM of training: C [m, n] = f(op(A) op(B)) in f32, bf16 or f16, sums in f32.
//
// Ours and not a library's because a library allocates packing buffers behind the budget's back,
// and because its sums depend on the instruction set, the shape and the number of threads
// (docs/decisions/0001-arithmetic.md says the same of inference).
//
// The value of C[i, j], the same bits for every instruction set, pool and tiling:
//   1. k is cut into blocks of kGemmBlock. The sum of a block is a chain of fused multiply-adds in
//      ascending order from +0. bf16 goes by pairs p, p + 1 of a block (a missing last element is
//      0): first the product of p + 1, then that of p, each one fused multiply-add which takes
//      subnormal operands as 0 and makes a subnormal result (tiny after rounding) 0 of its sign.
//      This is what VDPBF16PS does (AMD and Intel manuals; compared with it in gemm_test.cc).
//      f16 goes as the f32 that each element is exactly.
//   2. total = first block; total = total + block for the others, ascending.
//   3. v = total * scale; v = v + bias[j]; v = v + residual[i, j]: the last two where present.
//   4. C = v, rounded to nearest even where C is bf16 or f16; with `add` C = C + v.
// NaN is NaN everywhere; its payload is not promised.
//
// Method: cache blocking and packing after Goto and van de Geijn, "Anatomy of High-Performance
// Matrix Multiplication" (ACM TOMS 34(3), 2008). Measured by bench/gemm.cc on one core of an AMD
// EPYC of family 26 (Zen 5), products of a 34M and a 124M model: f32 205 to 245 GF/s, 0.95 to 1.1
// of oneDNN 2.6.3, f16 the same; bf16 410 to 475 GF/s, 0.92 to 1.15 of it; f32 by AVX2 126 GF/s.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "headrace/kernel/kernel.h"

namespace headrace {

constexpr int64_t kGemmBlock = 512;  // elements of k whose products are one chain of sums

// What is stored how, all row-major:   A           B
enum class GemmLayout : uint8_t {
  kLinear,  // y = x w^T                [m, k]      [n, k]
  kDx,      // dx = dy w                [m, k]      [k, n]
  kDw,      // dw = dy^T x              [k, m]      [k, n]
};

// Some rows of B as stored, one after another without padding.
struct GemmRows {
  const std::byte* data = nullptr;  // any alignment
  int64_t rows = 0;
  const std::byte* bias = nullptr;  // kLinear: f32 [rows], any alignment; null: none
};

struct GemmArgs {
  GemmLayout layout = GemmLayout::kLinear;
  DType type = DType::kF32;  // of A and B: f32, bf16 or f16
  int64_t m = 0, n = 0, k = 0;
  const std::byte* a = nullptr;  // aligned to its type
  int64_t a_stride = 0;          // elements from row to row
  std::span<const GemmRows> b;   // all rows of B: n (kLinear) or k
  DType out_type = DType::kF32;  // of C and the residual: f32, bf16 or f16
  std::byte* c = nullptr;        // aligned to its type
  int64_t c_stride = 0;          // elements from row to row, of the residual too
  bool add = false;              // C += instead of C =; f32 only
  float scale = 1;
  const std::byte* residual = nullptr;  // null: none; may be c
};

// Computes C on the instruction set in force, split over the pool. `workspace`: kLine-aligned,
// at least gemm_workspace(args, pool.size()) bytes. Nothing is allocated.
void gemm(const GemmArgs& args, std::span<std::byte> workspace, ThreadPool& pool);
// Depends on layout, types, sizes, add and on whether residual is c (any other address will do).
Bytes gemm_workspace(const GemmArgs& args, int threads);

// One worker's part: rows [row_begin, row_end) of C and columns [col_begin, col_end).
struct GemmPart {
  int64_t row_begin = 0, row_end = 0, col_begin = 0, col_end = 0;
};
using GemmPartFn = void (*)(const GemmArgs& args, const GemmPart& part, std::byte* scratch);
void gemm_part_scalar(const GemmArgs& args, const GemmPart& part, std::byte* scratch);
void gemm_part_avx2(const GemmArgs& args, const GemmPart& part, std::byte* scratch);
void gemm_part_avx512(const GemmArgs& args, const GemmPart& part, std::byte* scratch);
// Whether gemm_part_avx512 multiplies bf16 by VDPBF16PS. A test may turn that off (never on where
// the processor has none): the bits are the same.
bool gemm_uses_bf16_dot();
void gemm_set_bf16_dot(bool on);

}  // namespace headrace
