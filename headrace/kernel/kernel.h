// Kernels: one function per (op kind, device kind). A kernel computes; it never allocates, never
// moves bytes between tiers and never decides anything.
//
// Promises
//   1. A row's result never depends on the other rows of the step, on the number of threads, on
//      the tile boundaries of a weight, or on where the bytes have been.
//   2. Every instruction set gives bit for bit what the scalar reference gives
//      (docs/decisions/0001-arithmetic.md freezes the order of every sum).
//   3. Work is split over outputs only.
#pragma once

#include <cstddef>
#include <span>

#include "headrace/base/thread_pool.h"
#include "headrace/ir/graph.h"

namespace headrace {

enum class DeviceKind : uint8_t { kCpu };

struct OpContext {
  const Graph& graph;
  const Op& op;
  // Addresses in the order of op.inputs / outputs / updates; null for an absent optional input.
  // Weights start `skew` bytes into their extent, so a weight's address has no alignment at all;
  // everything else is kLine-aligned and its rows are row_bytes(dtype, cols) apart, but for
  // kGathered: row r of it starts at r * gathered_row_stride(tensor) + gathered_skew(tensor, token).
  std::span<const std::byte* const> inputs;
  std::span<std::byte* const> outputs;
  std::span<std::byte* const> updates;
  std::span<std::byte> workspace;  // op.workspace bytes, kLine-aligned
  const StepRows& rows;
  ThreadPool& pool;
};

using KernelFn = void (*)(const OpContext&);

// What computes this op; null when nothing does. The best instruction set the processor has, or the
// one forced.
KernelFn find_kernel(const Op& op, DeviceKind device);
// Device bytes that the kernel of this op needs beside its operands, for `threads` workers.
Bytes workspace_bytes(const Graph& graph, const Op& op, int threads);

// Instruction sets, for tests, benchmarks and messages.
enum class Isa : uint8_t { kScalar, kAvx2, kAvx512Vnni };
const char* name_of(Isa isa);
bool supported(Isa isa);
// The one in force; force_isa changes it for the whole process (not while a kernel runs).
Isa current_isa();
void force_isa(Isa isa);

}  // namespace headrace
