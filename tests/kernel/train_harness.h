// TrainHarness: one training op with operands of both activation types, and the checks that every
// training kernel must pass: the same bits on every instruction set and with every thread count,
// and not a byte written beside its operands and its workspace.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "headrace/kernel/half.h"
#include "headrace/kernel/train.h"
#include "tests/kernel/op_harness.h"

namespace headrace::test {

// A unit in the last place of what is stored, as a part of the value; f32 counts as exact.
inline double rounding_of(DType type) {
  return type == DType::kBF16 ? 0x1p-8 : type == DType::kF16 ? 0x1p-11 : 0;
}

// Operands of one op by number. Buffers have kGuard bytes of 0xA5 on both sides.
class TrainHarness {
 public:
  static constexpr Bytes kGuard = 64;

  explicit TrainHarness(std::string kernel) {
    op_.kind = OpKind::kKernel;
    op_.kernel = std::move(kernel);
  }

  size_t input(DType type, int64_t rows, int64_t cols, Bytes skew = 0) {
    op_.inputs.push_back(tensor(type, rows, cols, skew));
    return buffers_.size() - 1;
  }
  size_t output(DType type, int64_t rows, int64_t cols) {
    op_.outputs.push_back(tensor(type, rows, cols, 0));
    return buffers_.size() - 1;
  }
  size_t update(DType type, int64_t rows, int64_t cols) {
    op_.updates.push_back(tensor(type, rows, cols, 0));
    return buffers_.size() - 1;
  }
  Op& op() { return op_; }
  void set(Attr attr, double value) { op_.attrs[attr] = value; }

  // Values of an operand, as doubles of what its type holds.
  std::vector<double> values(size_t i) const {
    const Tensor& t = graph_.tensors[i];
    std::vector<double> out(static_cast<size_t>(t.rows * t.cols));
    for (size_t k = 0; k < out.size(); ++k) {
      if (t.dtype == DType::kF32) {
        float x;
        std::memcpy(&x, data(i) + 4 * k, 4);
        out[k] = static_cast<double>(x);
      } else {
        uint16_t x;
        std::memcpy(&x, data(i) + 2 * k, 2);
        out[k] = static_cast<double>(t.dtype == DType::kF16 ? f16_to_f32(x) : bf16_to_f32(x));
      }
    }
    return out;
  }
  // Puts values into an operand, rounded to its type.
  void put(size_t i, const std::vector<float>& from) {
    const DType type = graph_.tensors[i].dtype;
    for (size_t k = 0; k < from.size(); ++k) {
      const uint16_t half = type == DType::kF16 ? f32_to_f16(from[k]) : f32_to_bf16(from[k]);
      if (type == DType::kF32) {
        std::memcpy(data(i) + 4 * k, &from[k], 4);
      } else {
        std::memcpy(data(i) + 2 * k, &half, 2);
      }
    }
  }
  void normal(size_t i, uint32_t seed, float deviation = 1) {
    const Tensor& t = graph_.tensors[i];
    put(i, normal_values(t.rows * t.cols, seed, deviation));
  }
  std::string bits(size_t i) const {
    return {reinterpret_cast<const char*>(data(i)), static_cast<size_t>(graph_.tensors[i].bytes)};
  }
  std::byte* data(size_t i) const { return buffers_[i].data() + kGuard + skew_[i]; }

  // Runs it once with fresh garbage in the workspace; checks every guard.
  void run(const StepRows& rows, int threads = 1) {
    const TrainKernel* kernel = find_train_kernel(op_.kernel);
    ASSERT_NE(kernel, nullptr) << op_.kernel;
    ThreadPool pool(threads, false);
    op_.workspace = train_workspace(graph_, op_, threads);
    Buffer workspace(op_.workspace + 2 * kGuard);
    guard(workspace, op_.workspace);
    const auto at = [&](const std::vector<TensorId>& ids) {
      std::vector<std::byte*> addresses;
      for (TensorId id : ids) addresses.push_back(data(id.index()));
      return addresses;
    };
    const auto inputs = at(op_.inputs), outputs = at(op_.outputs), updates = at(op_.updates);
    const std::vector<const std::byte*> const_inputs(inputs.begin(), inputs.end());
    kernel->run(OpContext{graph_,
                          op_,
                          const_inputs,
                          outputs,
                          updates,
                          {workspace.data() + kGuard, static_cast<size_t>(op_.workspace)},
                          rows,
                          pool});
    expect_guarded(workspace, op_.workspace, "workspace");
    for (size_t i = 0; i < buffers_.size(); ++i) {
      expect_guarded(buffers_[i], buffers_[i].bytes() - 2 * kGuard, graph_.tensors[i].name);
    }
  }

  // Runs it on every instruction set with 1, 2 and 3 threads from the same state and expects the
  // same bits in outputs and updates; leaves the last result.
  void run_everywhere(const StepRows& rows) {
    std::vector<std::string> before, want;
    for (TensorId id : op_.updates) before.push_back(bits(id.index()));
    for (Isa isa : all_isas()) {
      IsaScope scope(isa);
      for (int threads : {1, 2, 3}) {
        for (size_t i = 0; i < before.size(); ++i) {
          std::memcpy(data(op_.updates[i].index()), before[i].data(), before[i].size());
        }
        for (TensorId id : op_.outputs) {
          std::memset(data(id.index()), 0xFF, static_cast<size_t>(graph_.at(id).bytes));
        }
        run(rows, threads);
        std::vector<std::string> got;
        for (TensorId id : op_.outputs) got.push_back(bits(id.index()));
        for (TensorId id : op_.updates) got.push_back(bits(id.index()));
        if (want.empty()) want = got;
        for (size_t i = 0; i < got.size(); ++i) {
          ASSERT_TRUE(got[i] == want[i])
              << op_.kernel << " result " << i << " on " << name_of(isa) << ", " << threads
              << " threads";
        }
      }
    }
  }

  // Expects |operand - want| <= tolerance * (1 + |want|); bf16 and f16 also half a unit of their own.
  void expect_near(size_t i, const std::vector<double>& want, double tolerance) const {
    const std::vector<double> got = values(i);
    ASSERT_EQ(got.size(), want.size());
    const double rounding = rounding_of(graph_.tensors[i].dtype);
    for (size_t k = 0; k < got.size(); ++k) {
      ASSERT_LE(std::fabs(got[k] - want[k]),
                tolerance * (1 + std::fabs(want[k])) + rounding * std::fabs(want[k]))
          << op_.kernel << " element " << k << ": " << got[k] << ", not " << want[k];
    }
  }

 private:
  static void guard(Buffer& buffer, Bytes bytes) {
    std::memset(buffer.data(), 0xA5, kGuard);
    std::memset(buffer.data() + kGuard + bytes, 0xA5, kGuard);
  }
  static void expect_guarded(const Buffer& buffer, Bytes bytes, const std::string& what) {
    for (Bytes i = 0; i < kGuard; ++i) {
      ASSERT_EQ(buffer.data()[i], std::byte{0xA5}) << what << " is written before its start";
      ASSERT_EQ(buffer.data()[kGuard + bytes + i], std::byte{0xA5})
          << what << " is written after its end";
    }
  }

  TensorId tensor(DType type, int64_t rows, int64_t cols, Bytes skew) {
    Tensor t;
    t.name = "t" + std::to_string(graph_.tensors.size());
    t.dtype = type;
    t.role = skew == 0 ? Role::kActivation : Role::kWeight;
    t.rows = rows;
    t.cols = cols;
    t.bytes = rows * row_bytes(type, cols);
    buffers_.emplace_back(t.bytes + skew + 2 * kGuard);
    skew_.push_back(skew);
    guard(buffers_.back(), t.bytes + skew);
    return graph_.add(t);
  }

  Graph graph_;
  Op op_;
  std::vector<Buffer> buffers_;
  std::vector<Bytes> skew_;
};

// A step of `rows` tokens, all different, without targets.
inline StepRows train_rows_of(int64_t rows) {
  StepRows step;
  for (int64_t i = 0; i < rows; ++i) step.tokens.push_back(static_cast<int32_t>(i));
  step.step = 1;
  step.seed = 0x0123456789abcdefull;
  step.rates = {0.01};
  return step;
}

// An op y = f(x) and its gradient dx of dy, named after it, of normal x and dy.
struct OpAndGradient {
  struct Shape {
    int64_t rows, cols;
  };
  OpAndGradient(const std::string& kernel, DType type, Shape of_x, Shape of_y)
      : op(kernel),
        grad(kernel + "_grad"),
        x(op.input(type, of_x.rows, of_x.cols)),
        y(op.output(type, of_y.rows, of_y.cols)),
        dy(grad.input(type, of_y.rows, of_y.cols)),
        dx(grad.output(type, of_x.rows, of_x.cols)) {
    op.normal(x, 1);
    grad.normal(dy, 2);
  }
  // Of both.
  void set(Attr attr, int64_t value) {
    for (TrainHarness* h : {&op, &grad}) h->set(attr, static_cast<double>(value));
  }
  // An input f32 [1, n] more, of both.
  void input(const std::vector<float>& values) {
    for (TrainHarness* h : {&op, &grad}) {
      h->put(h->input(DType::kF32, 1, static_cast<int64_t>(values.size())), values);
    }
  }
  void run_everywhere(const StepRows& rows) {
    op.run_everywhere(rows);
    grad.run_everywhere(rows);
  }

  TrainHarness op, grad;
  size_t x, y, dy, dx;
};

constexpr DType kTrainTypes[] = {DType::kF32, DType::kBF16, DType::kF16};

}  // namespace headrace::test
