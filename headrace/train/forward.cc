#include "headrace/train/forward.h"

#include <cmath>

namespace headrace {
namespace {

// Streams of dropout: the same for every micro-batch, since the generator counts rows of the step.
constexpr int64_t kEmbedStream = 0;
constexpr int64_t kStreamsPerLayer = 8;
enum Site : int64_t { kAttentionOut, kFfnOut, kLoraQkv, kLoraOut, kLoraUp, kLoraDown };
int64_t stream_of(int64_t layer, Site site) { return kStreamsPerLayer * (layer + 1) + site; }

}  // namespace

const char* name_of(MicroOrder order) {
  return order == MicroOrder::kBatchMajor ? "batch-major" : "layer-major";
}

void add_parameters(std::vector<Parameter>* parameters, Graph* graph) {
  for (Parameter& p : *parameters) {
    Tensor t;
    t.name = p.tensor;
    t.dtype = p.dtype;
    t.role = p.frozen.valid() ? Role::kWeight : Role::kState;
    t.rows = p.row_count;
    t.cols = p.cols;
    t.bytes = t.rows * row_bytes(t.dtype, t.cols);
    t.data_class = DataClass::kWeight;
    t.source = p.frozen;
    p.param = graph->add(std::move(t));
  }
}

ForwardBuilder::ForwardBuilder(const StepModel& model, const StepShape& shape,
                               std::vector<Parameter>* parameters, Graph* graph)
    : m_(model), shape_(shape), g_(*graph) {
  add_parameters(parameters, &g_);
  for (const Parameter& p : *parameters) tiles_[p.name].push_back(p.param);
  if (!m_.gpt2()) {
    Tensor t;
    t.name = "inv_freq";
    t.role = Role::kConstant;
    t.cols = static_cast<int64_t>(m_.inv_freq.size());
    t.bytes = row_bytes(t.dtype, t.cols);
    t.constant = m_.inv_freq;
    inv_freq_ = g_.add(std::move(t));
  }
  int64_t row = 0;
  for (int64_t i = 0; i < shape_.micro_batches; ++i) {
    Micro micro;
    micro.row_begin = row;
    const int64_t more = i < shape_.sequences % shape_.micro_batches ? 1 : 0;
    micro.rows = (shape_.sequences / shape_.micro_batches + more) * shape_.sequence;
    if (shape_.micro_batches > 1) micro.prefix = text_of("mb%lld.", static_cast<long long>(i));
    row += micro.rows;
    micros_.push_back(std::move(micro));
  }
  g_.max_rows = row;
  g_.max_output_rows = 0;
}

void ForwardBuilder::add(int64_t stage, int64_t micro) {
  at_ = &micros_[static_cast<size_t>(micro)];
  if (stage == 0) {
    embed();
  } else if (stage <= m_.layers) {
    layer(stage - 1);
  } else {
    head();
  }
}

std::vector<TensorId> ForwardBuilder::losses() const {
  std::vector<TensorId> losses;
  for (const Micro& micro : micros_) losses.push_back(micro.loss);
  return losses;
}

// ---- stages -----------------------------------------------------------------------------------

void ForwardBuilder::embed() {
  std::vector<TensorId> tables =
      tiles(m_.gpt2() ? "transformer.wte.weight" : "model.embed_tokens.weight");
  if (m_.gpt2()) tables.push_back(only("transformer.wpe.weight"));
  const TensorId x = activation("embed", m_.hidden);
  Op& o = op("hr.embed", "embed", tables, {x});
  o.attrs[Attr::kRowBegin] = static_cast<double>(at_->row_begin);
  o.attrs[Attr::kSequence] = static_cast<double>(shape_.sequence);
  o.attrs[Attr::kPositions] = m_.gpt2() ? 1 : 0;
  at_->x = dropout("embed.dropout", x, m_.dropout, kEmbedStream);
}

void ForwardBuilder::layer(int64_t layer) {
  layer_ = layer;
  const bool gpt2 = m_.gpt2();
  const std::string at = text_of("layers.%lld.", static_cast<long long>(layer));
  const TensorId x = at_->x;
  const TensorId n1 =
      norm(at + "norm1", x, layer_name(m_, layer, gpt2 ? "ln_1" : "input_layernorm"));
  const Product qkv = {at + "qkv",
                       gpt2 ? std::vector<std::string>{"attn.c_attn"}
                            : std::vector<std::string>{"self_attn.q_proj", "self_attn.k_proj",
                                                       "self_attn.v_proj"},
                       stream_of(layer, kLoraQkv)};
  const TensorId o = attention(at, linear(qkv, n1, TensorId()));
  const Product out = {at + "attention.out",
                       {gpt2 ? "attn.c_proj" : "self_attn.o_proj"},
                       stream_of(layer, kLoraOut)};
  const TensorId x2 = project(out, o, x, stream_of(layer, kAttentionOut));

  const TensorId n2 =
      norm(at + "norm2", x2, layer_name(m_, layer, gpt2 ? "ln_2" : "post_attention_layernorm"));
  const Product up = {at + (gpt2 ? "up" : "gate_up"),
                      gpt2 ? std::vector<std::string>{"mlp.c_fc"}
                           : std::vector<std::string>{"mlp.gate_proj", "mlp.up_proj"},
                      stream_of(layer, kLoraUp)};
  const TensorId u = linear(up, n2, TensorId());
  const TensorId h = activation(at + "act", m_.ffn);
  op("hr.act", at + "act", {u}, {h}).attrs[Attr::kAct] = gpt2 ? 2 : 0;
  const Product down = {
      at + "ffn.out", {gpt2 ? "mlp.c_proj" : "mlp.down_proj"}, stream_of(layer, kLoraDown)};
  at_->x = project(down, h, x2, stream_of(layer, kFfnOut));
}

void ForwardBuilder::head() {
  const TensorId x = norm("norm", at_->x, m_.gpt2() ? "transformer.ln_f" : "model.norm");
  at_->loss = activation("losses", 1, DType::kF32);
  std::vector<TensorId> inputs = {x};
  const std::string table = m_.gpt2()             ? "transformer.wte.weight"
                            : m_.tied_embeddings ? "model.embed_tokens.weight"
                                                 : "lm_head.weight";
  for (const TensorId tile : tiles(table)) inputs.push_back(tile);
  op("hr.loss", "losses", inputs, {at_->loss}).attrs[Attr::kRowBegin] =
      static_cast<double>(at_->row_begin);
}

// ---- parts ------------------------------------------------------------------------------------

TensorId ForwardBuilder::norm(const std::string& name, TensorId x, const std::string& parameter) {
  const bool layer_norm = m_.gpt2();
  const TensorId y = activation(name, m_.hidden);
  const TensorId stat = activation(name + ".stat", layer_norm ? 2 : 1, DType::kF32);
  std::vector<TensorId> inputs = {x, only(parameter + ".weight")};
  if (layer_norm) inputs.push_back(only(parameter + ".bias"));
  Op& o = op("hr.norm", name, inputs, {y, stat});
  o.attrs[Attr::kAct] = layer_norm ? 1 : 0;
  o.attrs[Attr::kEps] = m_.norm_eps;
  return y;
}

TensorId ForwardBuilder::linear(const Product& product, TensorId x, TensorId residual) {
  std::vector<TensorId> inputs = {x}, biases;
  int64_t n = 0;
  for (const std::string& module : product.modules) {
    const std::string name = layer_name(m_, layer_, module);
    inputs.push_back(only(name + ".weight"));
    n += g_.at(inputs.back()).rows;
    if (has(name + ".bias")) biases.push_back(only(name + ".bias"));
  }
  inputs.insert(inputs.end(), biases.begin(), biases.end());
  if (residual.valid()) inputs.push_back(residual);
  const TensorId y = activation(product.name, n);
  Op& o = op("hr.linear", product.name, inputs, {y});
  o.attrs[Attr::kWeights] = static_cast<double>(product.modules.size());
  o.attrs[Attr::kBias] = biases.empty() ? 0 : 1;
  o.attrs[Attr::kScale] = 1;
  return lora(product, x, y);
}

// y + alpha / rank * B A dropout(x), a module after the other; y itself where there is no LoRA.
TensorId ForwardBuilder::lora(const Product& product, TensorId x, TensorId y) {
  TensorId dropped;
  int64_t col = 0;
  for (const std::string& module : product.modules) {
    const std::string name = layer_name(m_, layer_, module);
    const int64_t begin = col;
    col += g_.at(only(name + ".weight")).rows;
    if (!has(name + ".lora_A.weight")) continue;
    if (!dropped.valid()) {
      dropped = dropout(product.name + ".lora.dropout", x, m_.lora_dropout, product.stream);
    }
    const std::string at = product.name + "." + module.substr(module.find('.') + 1);
    const TensorId z = activation(at + ".lora_a", m_.lora.rank);
    Op& a = op("hr.linear", at + ".lora_a", {dropped, only(name + ".lora_A.weight")}, {z});
    a.attrs[Attr::kWeights] = 1;
    a.attrs[Attr::kScale] = 1;
    const TensorId sum = activation(at + ".lora_b", g_.at(y).cols);
    Op& b = op("hr.linear", at + ".lora_b", {z, only(name + ".lora_B.weight"), y}, {sum});
    b.attrs[Attr::kWeights] = 1;
    b.attrs[Attr::kScale] = m_.lora.alpha / static_cast<double>(m_.lora.rank);
    b.attrs[Attr::kColBegin] = static_cast<double>(begin);
    y = sum;
  }
  return y;
}

TensorId ForwardBuilder::project(const Product& product, TensorId in, TensorId x,
                                 int64_t stream) {
  if (m_.dropout == 0) return linear(product, in, x);
  const TensorId y = linear(product, in, TensorId());
  const TensorId dropped = dropout(product.name + ".dropout", y, m_.dropout, stream);
  const TensorId sum = activation(product.name + ".sum", m_.hidden);
  op("hr.add", product.name + ".sum", {x, dropped}, {sum});
  return sum;
}

TensorId ForwardBuilder::dropout(const std::string& name, TensorId x, double p, int64_t stream) {
  if (p == 0) return x;
  const TensorId y = activation(name, g_.at(x).cols);
  Op& o = op("hr.dropout", name, {x}, {y});
  o.attrs[Attr::kProbability] = p;
  o.attrs[Attr::kStream] = static_cast<double>(stream);
  o.attrs[Attr::kRowBegin] = static_cast<double>(at_->row_begin);
  return y;
}

TensorId ForwardBuilder::attention(const std::string& at, TensorId qkv) {
  std::map<Attr, double> heads = {{Attr::kHeads, static_cast<double>(m_.heads)},
                                  {Attr::kKvHeads, static_cast<double>(m_.kv_heads)},
                                  {Attr::kHeadDim, static_cast<double>(m_.head_dim)},
                                  {Attr::kSequence, static_cast<double>(shape_.sequence)}};
  if (!m_.gpt2()) {
    const TensorId rotated = activation(at + "rope", g_.at(qkv).cols);
    Op& rope = op("hr.rope", at + "rope", {qkv, inv_freq_}, {rotated});
    rope.attrs.insert(heads.begin(), heads.end());
    rope.attrs[Attr::kRopeHalfSplit] = m_.rope_half_split ? 1 : 0;
    rope.attrs[Attr::kInverse] = 0;
    qkv = rotated;
  }
  const TensorId o = activation(at + "attention", m_.heads * m_.head_dim);
  const TensorId lse = activation(at + "attention.lse", m_.heads, DType::kF32);
  Op& attention = op("hr.attention", at + "attention", {qkv}, {o, lse});
  attention.attrs.insert(heads.begin(), heads.end());
  attention.attrs[Attr::kScale] = 1 / std::sqrt(static_cast<double>(m_.head_dim));
  return o;
}

// ---- tensors and ops --------------------------------------------------------------------------

TensorId ForwardBuilder::activation(const std::string& name, int64_t cols) {
  return activation(name, cols, m_.compute_dtype());
}

TensorId ForwardBuilder::activation(const std::string& name, int64_t cols, DType dtype) {
  Tensor t;
  t.name = at_->prefix + name;
  t.dtype = dtype;
  t.rows = at_->rows;
  t.cols = cols;
  t.bytes = t.rows * row_bytes(dtype, cols);
  return g_.add(std::move(t));
}

// Valid until the next op is added.
Op& ForwardBuilder::op(const char* kernel, const std::string& name, std::vector<TensorId> inputs,
                       std::vector<TensorId> outputs) {
  Op o;
  o.kind = OpKind::kKernel;
  o.kernel = kernel;
  o.name = at_->prefix + name;
  o.inputs = std::move(inputs);
  o.outputs = std::move(outputs);
  g_.ops.push_back(std::move(o));
  return g_.ops.back();
}

const std::vector<TensorId>& ForwardBuilder::tiles(const std::string& parameter) const {
  const auto found = tiles_.find(parameter);
  HR_CHECK(found != tiles_.end(), "a model has no such parameter");
  return found->second;
}

}  // namespace headrace
