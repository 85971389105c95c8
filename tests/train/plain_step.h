// PlainTrainStep: every tensor of a training step in memory of its own, ops in the graph's order,
// nothing ever moved. What plans are compared with.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "headrace/kernel/half.h"
#include "headrace/kernel/kernel.h"
#include "headrace/train/step.h"

namespace headrace::test {

class PlainTrainStep {
 public:
  explicit PlainTrainStep(TrainStep step, int threads = 1)
      : step_(std::move(step)), pool_(std::make_unique<ThreadPool>(threads, false)) {
    const Graph& g = graph();
    for (size_t i = 0; i < g.tensors.size(); ++i) {
      const Tensor& t = g.tensors[i];
      memory_.push_back(buffer(t.bytes));
      // States start at zero, all else is not a number until it is written.
      if (t.role == Role::kState) std::memset(memory_[i].get(), 0, static_cast<size_t>(t.bytes));
      if (t.role == Role::kConstant) {
        std::memcpy(memory_[i].get(), t.constant.data(), static_cast<size_t>(t.bytes));
      }
    }
  }

  const TrainStep& step() const { return step_; }
  const Graph& graph() const { return step_.workload.graph; }

  // The values of a tile, and of its master where there is one.
  void set_parameter(const Parameter& p, const std::vector<float>& values) {
    set(p.param, values);
    if (p.master.valid()) set(p.master, values);
  }
  std::vector<float> get(TensorId id) const {
    const Tensor& t = graph().at(id);
    std::vector<float> out(static_cast<size_t>(t.rows * t.cols));
    const std::byte* from = memory_[id.index()].get();
    if (t.dtype == DType::kF32) {
      std::memcpy(out.data(), from, static_cast<size_t>(t.bytes));
      return out;
    }
    for (size_t i = 0; i < out.size(); ++i) {
      uint16_t bits;
      std::memcpy(&bits, from + 2 * i, 2);
      out[i] = t.dtype == DType::kF16 ? f16_to_f32(bits) : bf16_to_f32(bits);
    }
    return out;
  }
  std::string bits(TensorId id) const {
    return {reinterpret_cast<const char*>(memory_[id.index()].get()),
            static_cast<size_t>(graph().at(id).bytes)};
  }
  float loss() const { return get(step_.loss)[0]; }

  void run(const StepRows& rows) {
    const Graph& g = graph();
    for (const Op& op : g.ops) {
      std::vector<const std::byte*> inputs;
      std::vector<std::byte*> outputs, updates;
      for (TensorId t : op.inputs) inputs.push_back(memory_[t.index()].get());
      for (TensorId t : op.outputs) outputs.push_back(memory_[t.index()].get());
      for (TensorId t : op.updates) updates.push_back(memory_[t.index()].get());
      const KernelFn kernel = find_kernel(op, DeviceKind::kCpu);
      ASSERT_NE(kernel, nullptr) << op.kernel;
      const Buffer workspace = buffer(op.workspace);
      kernel(OpContext{g, op, inputs, outputs, updates,
                       {workspace.get(), static_cast<size_t>(op.workspace)}, rows, *pool_});
    }
  }

 private:
  struct Free {
    void operator()(std::byte* p) const { std::free(p); }
  };
  using Buffer = std::unique_ptr<std::byte, Free>;
  static Buffer buffer(Bytes bytes) {
    const auto size = static_cast<size_t>(round_up(bytes > 0 ? bytes : 1, kLine));
    Buffer out(static_cast<std::byte*>(std::aligned_alloc(static_cast<size_t>(kLine), size)));
    std::memset(out.get(), 0xFF, size);
    return out;
  }

  void set(TensorId id, const std::vector<float>& values) {
    const Tensor& t = graph().at(id);
    ASSERT_EQ(static_cast<int64_t>(values.size()), t.rows * t.cols) << t.name;
    std::byte* to = memory_[id.index()].get();
    for (size_t i = 0; i < values.size(); ++i) {
      if (t.dtype == DType::kF32) {
        std::memcpy(to + 4 * i, &values[i], 4);
      } else {
        const bool f16 = t.dtype == DType::kF16;
        const uint16_t bits = f16 ? f32_to_f16(values[i]) : f32_to_bf16(values[i]);
        std::memcpy(to + 2 * i, &bits, 2);
      }
    }
  }

  TrainStep step_;
  std::unique_ptr<ThreadPool> pool_;
  std::vector<Buffer> memory_;  // by tensor
};

// n numbers in [-1, 1): splitmix64 of seed * 2^32 + i (tests/oracle/train_golden.py has the same).
inline std::vector<double> hashed(uint64_t seed, int64_t n) {
  std::vector<double> out(static_cast<size_t>(n));
  for (size_t i = 0; i < out.size(); ++i) {
    uint64_t z = (seed << 32) + i + 0x9E3779B97F4A7C15ull;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    z ^= z >> 31;
    out[i] = static_cast<double>(z >> 40) * 0x1p-23 - 1.0;
  }
  return out;
}

// Values of whole parameters by name, as train_golden.py gives them.
inline std::map<std::string, std::vector<float>> hashed_parameters(
    const std::vector<Parameter>& parameters) {
  std::map<std::string, std::vector<float>> out;
  uint64_t number = 0;
  for (const Parameter& p : parameters) {
    if (p.row_begin > 0) continue;
    std::vector<float>& values = out[p.name];
    const bool vector = p.kind == ParameterKind::kVector;
    const bool scaled = vector && p.name.ends_with(".weight");
    for (const double u : hashed(++number, p.rows * p.cols)) {
      const double value = scaled ? 1 + 0.2 * u : (vector ? 0.2 : 0.3) * u;
      values.push_back(static_cast<float>(value));
    }
  }
  return out;
}

inline void set_hashed_parameters(PlainTrainStep& plain) {
  const auto values = hashed_parameters(plain.step().parameters);
  for (const Parameter& p : plain.step().parameters) {
    const auto from = values.at(p.name).begin() + p.row_begin * p.cols;
    plain.set_parameter(p, {from, from + p.row_count * p.cols});
  }
}

// Tokens and targets of step `step`, from 0, as train_golden.py gives them; every 7th has none.
inline StepRows hashed_rows(int64_t rows, int64_t vocab, int64_t step) {
  const auto integers = [&](uint64_t seed) {
    std::vector<int32_t> out;
    for (const double u : hashed(seed, rows)) {
      out.push_back(static_cast<int32_t>((u + 1) / 2 * static_cast<double>(vocab)));
    }
    return out;
  };
  StepRows out;
  out.tokens = integers(static_cast<uint64_t>(1000 + 2 * step));
  out.targets = integers(static_cast<uint64_t>(1001 + 2 * step));
  for (size_t i = 0; i < out.targets.size(); i += 7) out.targets[i] = -1;
  out.step = step + 1;
  out.seed = static_cast<uint64_t>(77 + step);
  out.rates = {0.01};
  return out;
}

// |a - b| / |b|, as vectors.
inline double distance(const std::vector<float>& a, const std::vector<float>& b) {
  EXPECT_EQ(a.size(), b.size());
  double difference = 0, norm = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double x = static_cast<double>(a[i]), y = static_cast<double>(b[i]);
    difference += (x - y) * (x - y);
    norm += y * y;
  }
  return std::sqrt(difference) / (norm > 0 ? std::sqrt(norm) : 1);
}

// Gradients of whole parameters by name, tiles joined.
inline std::map<std::string, std::vector<float>> gradients_of(const PlainTrainStep& plain) {
  std::map<std::string, std::vector<float>> out;
  for (const Parameter& p : plain.step().parameters) {
    if (!p.gradient.valid()) continue;
    const std::vector<float> tile = plain.get(p.gradient);
    out[p.name].insert(out[p.name].end(), tile.begin(), tile.end());
  }
  return out;
}

}  // namespace headrace::test
