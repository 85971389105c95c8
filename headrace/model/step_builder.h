// Builds the graph of a step layer by layer: each forward op also notes how to build its backward
// ops, which are then added in reverse (a tape, as in reverse-mode automatic differentiation).
// Internal to the step_*.cc files.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "headrace/model/step_graph.h"

namespace headrace::step {

// A weight of a product, [out, in]; one column more for a bias.
struct Weight {
  TensorId tensor;
  int64_t out = 0, in = 0;  // of the whole weight, not of this device's share
};

// One op as it is added. Operands that are invalid or named twice are left out.
struct NewOp {
  std::string kernel;
  std::vector<TensorId> inputs, outputs, updates;
  double flops = 0;
  double traffic = -1;  // below zero: that of the operands
  Bytes workspace = 0;
  bool recompute = true;
};

// An op with one output of which all bytes are computed from `inputs`. Backward: one op that reads
// `saved` and the output's gradient and writes a gradient of each of `needs`.
struct Map {
  std::string kernel;
  std::vector<TensorId> inputs, saved, needs;
  int64_t rows = 0, cols = 0;
  double flops_per_output = 1;
};

struct AttentionShape {
  int64_t heads = 0, qk_dim = 0, v_dim = 0;
  bool causal = true;
};

class Builder {
 public:
  // Borrows the config.
  explicit Builder(const StepConfig& config) : c_(config) { w_.graph.name = config.name; }

  // ---- tensors. Names must be unique.
  TensorId activation(const std::string& name, int64_t rows, int64_t cols);
  TensorId activation(const std::string& name, int64_t rows, int64_t cols, DType dtype,
                      DataClass data_class = DataClass::kActivation);
  Weight weight(const std::string& name, int64_t out, int64_t in, bool bias = false);
  TensorId state(const std::string& name, int64_t rows, int64_t cols, KvSlot slot);

  // ---- forward; each returns its output.
  void add(const std::string& name, const NewOp& op);
  // What the step is given: tokens or pixels.
  TensorId input(const std::string& name, int64_t rows, int64_t cols, DType dtype);
  // x [rows, in] -> [rows, out / groups]. With groups (experts) each row meets one group's share of
  // the weight; `read_share` of the weight is read.
  TensorId matmul(const std::string& name, TensorId x, const Weight& w, int64_t groups = 1,
                  double read_share = 1);
  // `width`: of the weight, where it is not all of x.
  TensorId norm(const std::string& name, TensorId x, bool bias, int64_t width = 0);
  TensorId map(const std::string& name, const Map& m);
  TensorId add_residual(const std::string& name, TensorId a, TensorId b);
  // qkv: the tensors that hold queries, keys and values -> [rows, heads v_dim].
  TensorId attention(const std::string& name, const std::vector<TensorId>& qkv,
                     const AttentionShape& a);

  // ---- backward and optimizer.
  bool training() const { return c_.phase == StepPhase::kTrain; }
  void on_backward(std::function<void()> fn) {
    if (training()) tape_.push_back(std::move(fn));
  }
  // Invalid: none yet.
  TensorId gradient(TensorId x) const;
  // A new tensor for (a part of) the gradient of x; count it in with add_gradient() once written.
  TensorId new_gradient(TensorId x);
  void add_gradient(TensorId x, TensorId dx);
  // The first op that asks for a weight's gradient writes it (outputs), others add to it (updates).
  void weight_gradient(const Weight& w, NewOp* op);
  void run_backward();
  void add_optimizer();

  const StepConfig& config() const { return c_; }
  int64_t rows(TensorId t) const { return w_.graph.at(t).rows; }
  int64_t cols(TensorId t) const { return w_.graph.at(t).cols; }
  Bytes bytes(TensorId t) const { return w_.graph.at(t).bytes; }
  Workload& workload() { return w_; }
  const Status& status() const { return status_; }

 private:
  TensorId add_tensor(Tensor t, int64_t rows, int64_t cols);
  void matmul_backward(const std::string& name, TensorId x, TensorId y, const Weight& w,
                       double flops);
  TensorId plain_attention(const std::string& name, const std::vector<TensorId>& qkv,
                           const AttentionShape& a, double flops);

  const StepConfig& c_;
  Workload w_;
  Status status_;  // the first tensor that cannot be
  std::vector<std::function<void()>> tape_;
  std::vector<TensorId> gradients_;      // by tensor
  std::vector<int32_t> gradient_parts_;  // by tensor: how many were made, for names
  std::vector<Weight> weights_;          // in the order made
  Bytes file_end_ = 0;                   // inference: where the next weight lies in file 0
};

}  // namespace headrace::step
