// Matrix times weights: the span functions behind matmul_cpu, for tests and benchmarks.
//
// Vocabulary: m rows of activations (tokens), n outputs (rows of the weight), k elements
// a row. A span is a range of outputs; spans of different ranges may run at once.
//
// Promises: docs/decisions/0001-arithmetic.md. y[r, j] is the same bits for every
// instruction set, every m, every span that holds j and every address of the weight.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "headrace/kernel/kernel.h"

namespace headrace {

struct MatmulArgs {
  DType type = DType::kF32;           // of the weight
  const std::byte* weight = nullptr;  // [n, k], any alignment, rows packed
  int64_t k = 0;
  const std::byte* a = nullptr;     // [m, k], act_q8 when info(type).quantised, else f32
  int64_t a_stride = 0;             // bytes from row to row
  int64_t m = 0;
  float* y = nullptr;               // [m, >= n], the column of output 0
  int64_t y_stride = 0;             // floats from row to row
  const float* bias = nullptr;      // [n] or null
  const float* residual = nullptr;  // [m, >= n], rows y_stride apart; null; may equal y
};

// Computes outputs [begin, end) of all m rows: y = (dot + bias) + residual. `scratch` is
// one worker's, matmul_scratch_bytes(type, k, m) bytes, kLine-aligned.
using MatmulSpanFn = void (*)(const MatmulArgs& args, int64_t begin, int64_t end,
                              std::byte* scratch);
MatmulSpanFn matmul_span(Isa isa);
Bytes matmul_scratch_bytes(DType type, int64_t k, int64_t m);

// The whole product on the instruction set in force, split over the pool. `workspace`
// holds pool.size() * matmul_scratch_bytes(type, k, m) bytes, kLine-aligned.
void matmul(const MatmulArgs& args, int64_t n, std::span<std::byte> workspace,
            ThreadPool& pool);

void matmul_span_scalar(const MatmulArgs& args, int64_t begin, int64_t end,
                        std::byte* scratch);
void matmul_span_avx2(const MatmulArgs& args, int64_t begin, int64_t end,
                      std::byte* scratch);
void matmul_span_avx512(const MatmulArgs& args, int64_t begin, int64_t end,
                        std::byte* scratch);

}  // namespace headrace
