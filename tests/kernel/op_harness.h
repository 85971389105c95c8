// OpHarness: one op, its operands and an OpContext, for kernel tests.
//
// Buffers are kLine-aligned and of exactly the size the Graph states, so that the address
// sanitizer sees a step beyond. Outputs, workspace and KV start filled with 0xFF (NaN
// patterns).
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "headrace/kernel/kernel.h"

namespace headrace::test {

class Buffer {
 public:
  explicit Buffer(Bytes bytes)
      : bytes_(bytes),
        data_(static_cast<std::byte*>(std::aligned_alloc(
                  static_cast<size_t>(kLine),
                  static_cast<size_t>(round_up(bytes > 0 ? bytes : 1, kLine)))),
              &std::free) {
    fill(0xFF);
  }
  void fill(int byte) { std::memset(data_.get(), byte, static_cast<size_t>(bytes_)); }
  std::byte* data() const { return data_.get(); }
  Bytes bytes() const { return bytes_; }

 private:
  Bytes bytes_;
  std::unique_ptr<std::byte, decltype(&std::free)> data_;
};

// Runs the kernel of `op`, whose operands are `buffers`, by TensorId.
inline void run_op(const Graph& graph, const Op& op, const std::vector<Buffer>& buffers,
                   const StepRows& rows, ThreadPool& pool, Buffer& workspace) {
  const auto at = [&](const std::vector<TensorId>& ids) {
    std::vector<std::byte*> addresses;
    for (TensorId id : ids) {
      addresses.push_back(id.valid() ? buffers[id.index()].data() : nullptr);
    }
    return addresses;
  };
  const auto inputs = at(op.inputs), outputs = at(op.outputs), updates = at(op.updates);
  const std::vector<const std::byte*> const_inputs(inputs.begin(), inputs.end());
  const KernelFn kernel = find_kernel(op, DeviceKind::kCpu);
  ASSERT_NE(kernel, nullptr);
  kernel(OpContext{graph,
                   op,
                   const_inputs,
                   outputs,
                   updates,
                   {workspace.data(), static_cast<size_t>(workspace.bytes())},
                   rows,
                   pool});
}

class OpHarness {
 public:
  explicit OpHarness(OpKind kind, int64_t max_rows, int64_t max_output_rows = 1) {
    graph.max_rows = max_rows;
    graph.max_output_rows = max_output_rows;
    op.kind = kind;
  }

  // Adds an operand; returns its buffer's number.
  size_t input(DType dtype, int64_t rows, int64_t cols, Role role = Role::kActivation) {
    op.inputs.push_back(tensor(dtype, rows, cols, role));
    return buffers.size() - 1;
  }
  size_t output(DType dtype, int64_t rows, int64_t cols) {
    op.outputs.push_back(tensor(dtype, rows, cols, Role::kActivation));
    return buffers.size() - 1;
  }
  void absent_input() { op.inputs.emplace_back(); }
  // Adds state as an update; returns its buffer's number.
  size_t update(DType dtype, int64_t rows, int64_t cols) {
    op.updates.push_back(tensor(dtype, rows, cols, Role::kState));
    return buffers.size() - 1;
  }

  float* f32(size_t buffer) { return reinterpret_cast<float*>(buffers[buffer].data()); }
  std::byte* bytes(size_t buffer) { return buffers[buffer].data(); }
  // The whole buffer, for comparing bits.
  std::string bits(size_t buffer) const {
    const Buffer& b = buffers[buffer];
    return {reinterpret_cast<const char*>(b.data()), static_cast<size_t>(b.bytes())};
  }
  // The first `rows` rows of f32 [rows, cols].
  std::vector<float> floats(size_t buffer, int64_t rows, int64_t cols) {
    return {f32(buffer), f32(buffer) + rows * cols};
  }

  // Runs the kernel on `rows`. Workspace is fresh garbage.
  void run(const StepRows& rows, int threads = 1) {
    ThreadPool pool(threads, false);
    run(rows, pool);
  }
  void run(const StepRows& rows, ThreadPool& pool) {
    Buffer workspace(workspace_bytes(graph, op, pool.size()));
    run(rows, pool, workspace);
  }
  void run(const StepRows& rows, ThreadPool& pool, Buffer& workspace) {
    run_op(graph, op, buffers, rows, pool, workspace);
  }

  Graph graph;
  Op op;
  std::vector<Buffer> buffers;  // one a tensor, by TensorId

 private:
  TensorId tensor(DType dtype, int64_t rows, int64_t cols, Role role) {
    Tensor t;
    t.name = "t" + std::to_string(graph.tensors.size());
    t.dtype = dtype;
    t.role = role;
    t.rows = rows;
    t.cols = cols;
    t.bytes = rows * row_bytes(dtype, cols);
    buffers.emplace_back(t.bytes);
    return graph.add(t);
  }
};

// `rows` rows of one sequence from `position` on.
inline StepRows step_of(int64_t rows, int64_t position = 0, int32_t sequence = 0) {
  StepRows step;
  for (int64_t i = 0; i < rows; ++i) {
    step.tokens.push_back(static_cast<int32_t>(i));
    step.sequences.push_back(sequence);
    step.positions.push_back(static_cast<int32_t>(position + i));
  }
  return step;
}

// Appends the rows of `more` to `step`.
inline void append(StepRows& step, const StepRows& more) {
  step.tokens.insert(step.tokens.end(), more.tokens.begin(), more.tokens.end());
  step.sequences.insert(step.sequences.end(), more.sequences.begin(),
                        more.sequences.end());
  step.positions.insert(step.positions.end(), more.positions.begin(),
                        more.positions.end());
}

// Normally distributed values, the same for the same seed.
inline void fill_normal(float* out, int64_t n, uint32_t seed, float deviation = 1) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, deviation);
  for (int64_t i = 0; i < n; ++i) out[i] = normal(random);
}
inline std::vector<float> normal_values(int64_t n, uint32_t seed, float deviation = 1) {
  std::vector<float> values(static_cast<size_t>(n));
  fill_normal(values.data(), n, seed, deviation);
  return values;
}

// Forces an instruction set for a scope.
class IsaScope {
 public:
  explicit IsaScope(Isa isa) : before_(current_isa()) { force_isa(isa); }
  ~IsaScope() { force_isa(before_); }
  IsaScope(const IsaScope&) = delete;
  IsaScope& operator=(const IsaScope&) = delete;

 private:
  Isa before_;
};

// The instruction sets of this processor, the scalar reference first.
inline std::vector<Isa> all_isas() {
  std::vector<Isa> isas;
  for (Isa isa : {Isa::kScalar, Isa::kAvx2, Isa::kAvx512Vnni}) {
    if (supported(isa)) isas.push_back(isa);
  }
  return isas;
}

}  // namespace headrace::test
