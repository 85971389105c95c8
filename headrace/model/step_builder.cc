#include "headrace/model/step_builder.h"

#include <algorithm>

#include "headrace/model/workload.h"

namespace headrace::step {

// ---- tensors ----------------------------------------------------------------------------------

TensorId Builder::add_tensor(Tensor t, int64_t rows, int64_t cols) {
  // Sizes come from a config: the product is looked at before it is taken.
  const double wanted = static_cast<double>(rows) * static_cast<double>(cols) * 4;
  if (rows < 1 || cols < 1 || wanted > static_cast<double>(kMostTensorBytes)) {
    if (status_.ok()) {
      status_ = error(Code::kUsage, "step: tensor '%s' would be %lld x %lld", t.name.c_str(),
                      static_cast<long long>(rows), static_cast<long long>(cols));
    }
    rows = cols = 1;
  }
  t.rows = rows;
  t.cols = cols;
  t.bytes = rows * row_bytes(t.dtype, cols);
  return w_.graph.add(std::move(t));
}

TensorId Builder::activation(const std::string& name, int64_t rows, int64_t cols, DType dtype,
                             DataClass data_class) {
  Tensor t;
  t.name = name;
  t.dtype = dtype;
  t.data_class = data_class;
  return add_tensor(std::move(t), rows, cols);
}

TensorId Builder::activation(const std::string& name, int64_t rows, int64_t cols) {
  return activation(name, rows, cols, c_.activation_dtype);
}

// Small ones (norms) are not divided among devices.
Weight Builder::weight(const std::string& name, int64_t out, int64_t in, bool bias) {
  Tensor t;
  t.name = name + ".weight";
  t.dtype = c_.weight_dtype;
  t.role = training() ? Role::kState : Role::kWeight;
  t.data_class = DataClass::kWeight;
  const int64_t share = out <= 2 ? out : (out + c_.shards - 1) / c_.shards;
  Weight w{add_tensor(std::move(t), share, in + (bias ? 1 : 0)), out, in};
  Tensor& made = w_.graph.tensors[w.tensor.index()];
  if (made.role == Role::kWeight) {
    made.source = {0, file_end_, made.bytes};
    file_end_ = round_up(file_end_ + made.bytes, kPage);
  }
  weights_.push_back(w);
  return w;
}

TensorId Builder::state(const std::string& name, int64_t rows, int64_t cols, KvSlot slot) {
  Tensor t;
  t.name = name;
  t.dtype = c_.activation_dtype;
  t.role = Role::kState;
  t.data_class = DataClass::kKv;
  t.slot = slot;
  return add_tensor(std::move(t), rows, cols);
}

// ---- forward ----------------------------------------------------------------------------------

void Builder::add(const std::string& name, const NewOp& from) {
  Op op;
  op.kind = OpKind::kKernel;
  op.name = name;
  op.kernel = from.kernel;
  const auto once = [](const std::vector<TensorId>& ids, std::vector<TensorId>* out) {
    for (const TensorId id : ids) {
      const bool there = std::find(out->begin(), out->end(), id) != out->end();
      if (id.valid() && !there) out->push_back(id);
    }
  };
  once(from.inputs, &op.inputs);
  once(from.outputs, &op.outputs);
  once(from.updates, &op.updates);
  op.attrs[Attr::kFlops] = from.flops;
  if (from.traffic >= 0) op.attrs[Attr::kTraffic] = from.traffic;
  if (!from.recompute) op.attrs[Attr::kRecompute] = 0;
  op.workspace = from.workspace;
  w_.graph.ops.push_back(std::move(op));
}

TensorId Builder::input(const std::string& name, int64_t rows, int64_t cols, DType dtype) {
  const TensorId t = activation(name, rows, cols, dtype, DataClass::kInput);
  NewOp op{.kernel = "Input", .outputs = {t}, .recompute = false};
  add(name, op);
  return t;
}

TensorId Builder::matmul(const std::string& name, TensorId x, const Weight& w, int64_t groups,
                         double read_share) {
  const TensorId y = activation(name, rows(x), w.out / groups);
  const double flops = 2.0 * static_cast<double>(rows(x)) * static_cast<double>(w.out / groups) *
                       static_cast<double>(w.in);
  NewOp op{.kernel = "MatMul", .inputs = {x, w.tensor}, .outputs = {y}, .flops = flops};
  if (read_share < 1) {
    op.traffic = static_cast<double>(bytes(x) + bytes(y)) +
                 read_share * static_cast<double>(bytes(w.tensor));
  }
  add(name, op);
  on_backward([this, name, x, y, w, flops] { matmul_backward(name, x, y, w, flops); });
  return y;
}

void Builder::matmul_backward(const std::string& name, TensorId x, TensorId y, const Weight& w,
                              double flops) {
  const TensorId dy = gradient(y);
  if (!dy.valid()) return;
  if (w_.graph.at(x).data_class != DataClass::kInput) {
    const TensorId dx = new_gradient(x);
    add(name + ".dx",
        {.kernel = "MatMulGradInput", .inputs = {dy, w.tensor}, .outputs = {dx}, .flops = flops});
    add_gradient(x, dx);
  }
  NewOp op{.kernel = "MatMulGradWeight", .inputs = {x, dy}, .flops = flops};
  weight_gradient(w, &op);
  add(name + ".dw", op);
}

TensorId Builder::norm(const std::string& name, TensorId x, bool bias, int64_t width) {
  const Weight w = weight(name, bias ? 2 : 1, width > 0 ? width : cols(x));
  const TensorId y = activation(name, rows(x), cols(x));
  // Mean and reciprocal deviation of each row, kept for the backward pass.
  const TensorId stats =
      training() ? activation(name + ".stats", rows(x), bias ? 2 : 1, DType::kF32) : TensorId();
  const double elements = static_cast<double>(rows(x)) * static_cast<double>(cols(x));
  add(name,
      {.kernel = "Norm", .inputs = {x, w.tensor}, .outputs = {y, stats}, .flops = 5 * elements});
  on_backward([this, name, x, y, w, stats, elements] {
    const TensorId dy = gradient(y);
    if (!dy.valid()) return;
    const TensorId dx = new_gradient(x);
    NewOp op{.kernel = "NormGrad",
             .inputs = {x, w.tensor, stats, dy},
             .outputs = {dx},
             .flops = 10 * elements};
    weight_gradient(w, &op);
    add(name + ".d", op);
    add_gradient(x, dx);
  });
  return y;
}

TensorId Builder::map(const std::string& name, const Map& m) {
  const TensorId y = activation(name, m.rows, m.cols);
  const double flops =
      m.flops_per_output * static_cast<double>(m.rows) * static_cast<double>(m.cols);
  add(name, {.kernel = m.kernel, .inputs = m.inputs, .outputs = {y}, .flops = flops});
  on_backward([this, name, m, y, flops] {
    const TensorId dy = gradient(y);
    if (!dy.valid() || m.needs.empty()) return;
    NewOp op{.kernel = m.kernel + "Grad", .inputs = m.saved, .flops = 2 * flops};
    op.inputs.push_back(dy);
    for (const TensorId x : m.needs) op.outputs.push_back(new_gradient(x));
    add(name + ".d", op);
    for (size_t i = 0; i < m.needs.size(); ++i) add_gradient(m.needs[i], op.outputs[i]);
  });
  return y;
}

// The gradient passes through to both: no backward op.
TensorId Builder::add_residual(const std::string& name, TensorId a, TensorId b) {
  const TensorId y = activation(name, rows(a), cols(a));
  const double elements = static_cast<double>(rows(a)) * static_cast<double>(cols(a));
  add(name, {.kernel = "Add", .inputs = {a, b}, .outputs = {y}, .flops = elements});
  on_backward([this, a, b, y] {
    const TensorId dy = gradient(y);
    if (!dy.valid()) return;
    add_gradient(a, dy);
    add_gradient(b, dy);
  });
  return y;
}

TensorId Builder::attention(const std::string& name, const std::vector<TensorId>& qkv,
                            const AttentionShape& a) {
  const double n = static_cast<double>(rows(qkv[0]));
  const double length = n / static_cast<double>(c_.batch);
  const double flops =
      2 * n * length * static_cast<double>(a.heads * (a.qk_dim + a.v_dim)) * (a.causal ? 0.5 : 1);
  if (!c_.flash_attention) return plain_attention(name, qkv, a, flops);
  const TensorId y = activation(name, rows(qkv[0]), a.heads * a.v_dim);
  const TensorId sums =
      training() ? activation(name + ".logsum", rows(qkv[0]), a.heads, DType::kF32) : TensorId();
  add(name, {.kernel = "FlashAttention", .inputs = qkv, .outputs = {y, sums}, .flops = flops});
  on_backward([this, name, qkv, a, y, sums, flops] {
    const TensorId dy = gradient(y);
    if (!dy.valid()) return;
    NewOp op{.kernel = "FlashAttentionGrad",
             .inputs = qkv,
             .flops = 2.5 * flops,
             .workspace = rows(y) * a.heads * a.qk_dim * 4};  // dq is summed in f32
    op.inputs.insert(op.inputs.end(), {y, sums, dy});
    for (const TensorId x : qkv) op.outputs.push_back(new_gradient(x));
    add(name + ".d", op);
    for (size_t i = 0; i < qkv.size(); ++i) add_gradient(qkv[i], op.outputs[i]);
  });
  return y;
}

// With the scores [batch heads length, length] as an activation.
TensorId Builder::plain_attention(const std::string& name, const std::vector<TensorId>& qkv,
                                  const AttentionShape& a, double flops) {
  const int64_t n = rows(qkv[0]), length = n / c_.batch;
  const TensorId scores = activation(name + ".scores", n * a.heads, length);
  const TensorId weights = activation(name + ".softmax", n * a.heads, length);
  const TensorId y = activation(name, n, a.heads * a.v_dim);
  const double elements = static_cast<double>(n * a.heads) * static_cast<double>(length);
  add(name + ".scores",
      {.kernel = "AttentionScores", .inputs = qkv, .outputs = {scores}, .flops = flops / 2});
  add(name + ".softmax",
      {.kernel = "Softmax", .inputs = {scores}, .outputs = {weights}, .flops = 5 * elements});
  NewOp values{.kernel = "AttentionValues", .inputs = qkv, .outputs = {y}, .flops = flops / 2};
  values.inputs.push_back(weights);
  add(name, values);
  on_backward([this, name, qkv, scores, weights, y, flops, elements] {
    const TensorId dy = gradient(y);
    if (!dy.valid()) return;
    const TensorId dweights = new_gradient(weights), dscores = new_gradient(scores);
    const TensorId dv = new_gradient(y);  // of the values: as many bytes as the output's
    NewOp values_grad{
        .kernel = "AttentionValuesGrad", .inputs = qkv, .outputs = {dweights, dv}, .flops = flops};
    values_grad.inputs.insert(values_grad.inputs.end(), {weights, dy});
    add(name + ".d", values_grad);
    add(name + ".softmax.d", {.kernel = "SoftmaxGrad",
                              .inputs = {weights, dweights},
                              .outputs = {dscores},
                              .flops = 5 * elements});
    NewOp scores_grad{.kernel = "AttentionScoresGrad", .inputs = qkv, .flops = flops};
    scores_grad.inputs.insert(scores_grad.inputs.end(), {dscores, dv});
    for (const TensorId x : qkv) scores_grad.outputs.push_back(new_gradient(x));
    add(name + ".scores.d", scores_grad);
    for (size_t i = 0; i < qkv.size(); ++i) add_gradient(qkv[i], scores_grad.outputs[i]);
  });
  return y;
}

// ---- backward ---------------------------------------------------------------------------------

TensorId Builder::gradient(TensorId x) const {
  return x.index() < gradients_.size() ? gradients_[x.index()] : TensorId();
}

TensorId Builder::new_gradient(TensorId x) {
  if (gradient_parts_.size() < w_.graph.tensors.size()) {
    gradient_parts_.resize(w_.graph.tensors.size(), 0);
  }
  const Tensor& t = w_.graph.at(x);
  const int32_t part = gradient_parts_[x.index()]++;
  const std::string name = t.name + (part == 0 ? ".grad" : text_of(".grad%d", part + 1));
  const DType dtype =
      t.data_class == DataClass::kWeight && c_.f32_gradients ? DType::kF32 : t.dtype;
  return activation(name, t.rows, t.cols, dtype, DataClass::kGradient);
}

void Builder::add_gradient(TensorId x, TensorId dx) {
  if (gradients_.size() < w_.graph.tensors.size()) gradients_.resize(w_.graph.tensors.size());
  const TensorId before = gradients_[x.index()];
  if (!before.valid()) {
    gradients_[x.index()] = dx;
    return;
  }
  const TensorId sum = new_gradient(x);
  const double elements = static_cast<double>(rows(x)) * static_cast<double>(cols(x));
  add(w_.graph.at(sum).name,
      {.kernel = "Add", .inputs = {before, dx}, .outputs = {sum}, .flops = elements});
  gradients_[x.index()] = sum;
}

void Builder::weight_gradient(const Weight& w, NewOp* op) {
  const TensorId before = gradient(w.tensor);
  if (before.valid()) {
    op->updates.push_back(before);
    return;
  }
  const TensorId grad = new_gradient(w.tensor);
  op->outputs.push_back(grad);
  add_gradient(w.tensor, grad);
}

void Builder::run_backward() {
  while (!tape_.empty()) {
    const std::function<void()> fn = std::move(tape_.back());
    tape_.pop_back();
    fn();
  }
}

// AdamW reads the gradient, and reads and writes the weight and its state.
void Builder::add_optimizer() {
  for (const Weight& w : weights_) {
    const TensorId grad = gradient(w.tensor);
    if (!grad.valid()) continue;
    const std::string name = w_.graph.at(w.tensor).name;
    const double elements =
        static_cast<double>(rows(w.tensor)) * static_cast<double>(cols(w.tensor));
    NewOp op{.kernel = "AdamW",
             .inputs = {grad},
             .updates = {w.tensor},
             .flops = 12 * elements,
             .recompute = false};
    if (c_.optimizer_bytes > 0) {
      Tensor t;
      t.name = name + ".optimizer";
      t.role = Role::kState;
      t.data_class = DataClass::kOptimizer;
      const bool floats = c_.optimizer_bytes % 4 == 0;
      t.dtype = floats ? DType::kF32 : DType::kI8;
      op.updates.push_back(add_tensor(std::move(t), rows(w.tensor),
                                      cols(w.tensor) * c_.optimizer_bytes / (floats ? 4 : 1)));
    }
    add(name + ".step", op);
  }
}

}  // namespace headrace::step
