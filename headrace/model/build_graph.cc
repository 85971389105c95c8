#include "headrace/model/build_graph.h"

#include <algorithm>
#include <optional>

#include "headrace/kernel/kernel.h"
#include "headrace/kernel/kv_layout.h"
#include "headrace/model/graph_kv.h"
#include "headrace/model/graph_weights.h"

namespace headrace {
namespace {

// A value in the forms that its users need: f32, act_q8 or both.
struct Value {
  TensorId dense;
  TensorId quantised;
  TensorId for_weight(const WeightInfo& weight) const {
    return info(weight.dtype).quantised ? quantised : dense;
  }
};

// A weight whose product becomes the columns [column, column + rows) of an output.
struct Product {
  const WeightInfo* weight = nullptr;
  int64_t column = 0;
};

class Builder {
 public:
  Builder(const ModelFile& model, const ModelConfig& config, const GraphOptions& options)
      : model_(model),
        c_(config),
        o_(options),
        weights_(model, &g_, options.tile_bytes),
        kv_(config, options, &g_),
        rows_(options.max_rows) {}

  Result<Graph> build() {
    g_.name = c_.architecture;
    g_.max_rows = o_.max_rows;
    g_.max_output_rows = o_.max_output_rows;
    HR_ASSIGN(TensorId x, embed());
    HR_TRY(rope_tables());
    for (int64_t layer = 0; layer < c_.layers; ++layer) {
      layer_ = layer;
      HR_ASSIGN(x, attention_part(x));
      HR_ASSIGN(x, feed_forward_part(x));
    }
    HR_TRY(head(x));
    weights_.mark("rope_freqs.weight");  // its values are in the rope table's constant
    HR_TRY(weights_.all_used());
    for (Op& op : g_.ops) op.workspace = workspace_bytes(g_, op, o_.threads);
    return std::move(g_);
  }

 private:
  std::string blk(const char* name) const {
    return text_of("blk.%lld.%s", static_cast<long long>(layer_), name);
  }

  TensorId activation(const std::string& name, DType type, int64_t cols) {
    Tensor t;
    t.name = name;
    t.dtype = type;
    t.rows = rows_;
    t.cols = cols;
    t.bytes = t.rows * row_bytes(type, cols);
    return g_.add(std::move(t));
  }

  TensorId constant(const std::string& name, std::vector<float> values) {
    Tensor t;
    t.name = name;
    t.role = Role::kConstant;
    t.cols = static_cast<int64_t>(values.size());
    t.bytes = row_bytes(DType::kF32, t.cols);
    t.constant = std::move(values);
    return g_.add(std::move(t));
  }

  Op& op(OpKind kind, const std::string& name, std::vector<TensorId> inputs,
         TensorId out) {
    Op added;
    added.kind = kind;
    added.name = name;
    added.inputs = std::move(inputs);
    added.outputs = {out};
    g_.ops.push_back(std::move(added));
    return g_.ops.back();
  }

  Result<TensorId> embed();
  Status rope_tables();
  Result<TensorId> rope_table(const char* name, const RopeConfig& rope);
  Result<TensorId> attention_part(TensorId x);
  Result<TensorId> feed_forward_part(TensorId x);
  Status head(TensorId x);

  Result<TensorId> qkv(TensorId x);
  Result<TensorId> qkv_bias(const std::vector<Product>& products, int64_t cols);
  Result<TensorId> rope_kv(TensorId qkv, const GraphKv::Layer& kv);
  void attention(TensorId q, const GraphKv::Layer& kv, TensorId out);
  void attention_attrs(Op* op);
  void score_attrs(const GraphKv::Layer& kv, Op* op);
  TensorId select_kv(TensorId q, const GraphKv::Layer& kv);
  Result<TensorId> normalise(TensorId x, const std::string& weight,
                             const std::string& name, DType type, TensorId residual);
  Result<Value> normalise_for(TensorId x, const std::string& weight,
                              const std::vector<Product>& users);
  Status products(const Value& in, const std::vector<Product>& all, TensorId bias,
                  TensorId residual, TensorId out);
  Result<TensorId> project(TensorId in, const char* weight, int64_t cols,
                           TensorId residual, const char* post_norm);
  Result<TensorId> vector_bias(const std::string& name, int64_t cols);
  TensorId select(TensorId x, const std::string& name);

  const ModelFile& model_;
  const ModelConfig& c_;
  const GraphOptions& o_;
  Graph g_;
  GraphWeights weights_;
  GraphKv kv_;
  int64_t rows_;  // rows of new activations: max_rows, and max_output_rows after the
                  // selection
  int64_t layer_ = 0;
  TensorId rope_;
  TensorId rope_local_;
};

Result<TensorId> Builder::embed() {
  HR_ASSIGN(const WeightInfo* table,
            weights_.need("token_embd.weight", c_.vocab, c_.embd));
  std::vector<TensorId> inputs;
  if (o_.embedding_by_rows) {
    Tensor gathered;
    gathered.name = "token_embd.rows";
    gathered.dtype = table->dtype;
    gathered.role = Role::kGathered;
    gathered.rows = o_.max_rows;
    gathered.cols = c_.embd;
    gathered.bytes = gathered.rows * gathered_row_stride(gathered);
    gathered.source = table->source;
    inputs = {g_.add(std::move(gathered))};
  } else {
    HR_ASSIGN(inputs, weights_.tiles(*table));
  }
  const TensorId x = activation("x", DType::kF32, c_.embd);
  op(OpKind::kEmbed, "embed", std::move(inputs), x).attrs[Attr::kScale] =
      c_.embedding_scale;
  return x;
}

Result<TensorId> Builder::rope_table(const char* name, const RopeConfig& rope) {
  HR_ASSIGN(std::vector<float> frequencies, inverse_frequencies(rope, c_.head_dim));
  const TensorId in = constant(text_of("%s.inv_freq", name), std::move(frequencies));
  const TensorId table = activation(name, DType::kF32, c_.head_dim);
  op(OpKind::kRopeTable, name, {in}, table).attrs[Attr::kMscale] = rope_mscale(rope);
  return table;
}

// Both tables once a step, and each only when a layer uses it.
Status Builder::rope_tables() {
  bool any_global = false, any_local = false;
  for (int64_t layer = 0; layer < c_.layers; ++layer) {
    (c_.is_local(layer) ? any_local : any_global) = true;
  }
  const bool same = c_.rope == c_.rope_local;
  if (any_global || same) {
    HR_ASSIGN(rope_, rope_table("rope", c_.rope));
  }
  if (same) {
    rope_local_ = rope_;
  } else if (any_local) {
    HR_ASSIGN(rope_local_, rope_table("rope_local", c_.rope_local));
  }
  return {};
}

// out = [residual +] x / rms(x) * weight, as `type`.
Result<TensorId> Builder::normalise(TensorId x, const std::string& weight,
                                    const std::string& name, DType type,
                                    TensorId residual) {
  HR_ASSIGN(const TensorId w, weights_.vector(weight + ".weight", c_.embd));
  const TensorId out = activation(name, type, c_.embd);
  std::vector<TensorId> inputs = {x, w};
  if (residual.valid()) inputs.push_back(residual);
  Op& norm = op(OpKind::kRmsNorm, weight, std::move(inputs), out);
  norm.attrs[Attr::kEps] = c_.rms_eps;
  norm.attrs[Attr::kAddOne] = c_.norm_add_one ? 1 : 0;
  return out;
}

// The norm in the forms that the weights multiplying it take.
Result<Value> Builder::normalise_for(TensorId x, const std::string& weight,
                                     const std::vector<Product>& users) {
  bool quantised = false, dense = false;
  for (const Product& user : users) {
    (info(user.weight->dtype).quantised ? quantised : dense) = true;
  }
  Value out;
  const DType type = dense ? DType::kF32 : DType::kActQ8;
  HR_ASSIGN(const TensorId norm, normalise(x, weight, weight + ".out", type, TensorId()));
  (dense ? out.dense : out.quantised) = norm;
  if (dense && quantised) {
    out.quantised = activation(weight + ".out_q8", DType::kActQ8, c_.embd);
    op(OpKind::kQuantize, weight + ".quantize", {norm}, out.quantised);
  }
  return out;
}

// One matmul a tile, columns ascending.
Status Builder::products(const Value& in, const std::vector<Product>& all, TensorId bias,
                         TensorId residual, TensorId out) {
  for (const Product& product : all) {
    HR_ASSIGN(const auto tiles, weights_.tiles(*product.weight));
    int64_t column = product.column;
    for (const TensorId tile : tiles) {
      std::vector<TensorId> inputs = {in.for_weight(*product.weight), tile};
      if (bias.valid() || residual.valid()) inputs.push_back(bias);
      if (residual.valid()) inputs.push_back(residual);
      Op& matmul = op(OpKind::kMatMul, g_.at(tile).name, std::move(inputs), out);
      matmul.attrs[Attr::kColBegin] = static_cast<double>(column);
      column += g_.at(tile).rows;
    }
  }
  return {};
}

// The biases of q, k and v lie apart in the file, but a matmul takes one over all columns
// of its output, so their values become one constant; zeros where one is absent.
Result<TensorId> Builder::qkv_bias(const std::vector<Product>& products, int64_t cols) {
  std::vector<float> values(static_cast<size_t>(cols), 0.0f);
  bool any = false;
  for (const Product& product : products) {
    std::string name = product.weight->name;
    name.replace(name.size() - 6, 6, "bias");
    HR_ASSIGN(const WeightInfo* bias, weights_.find(name, 1, product.weight->rows));
    if (bias == nullptr && c_.qkv_bias) {
      return error(Code::kBadFile, "tensor '%s' is missing", name.c_str());
    }
    if (bias == nullptr) continue;
    HR_ASSIGN(const auto read, read_small_weight(model_, *bias));
    std::copy(read.begin(), read.end(), values.begin() + product.column);
    any = true;
  }
  if (!any) return TensorId();
  return constant(blk("attn_qkv.bias"), std::move(values));
}

Result<TensorId> Builder::qkv(TensorId x) {
  const int64_t q = c_.heads * c_.head_dim, kv = c_.kv_heads * c_.head_dim;
  std::vector<Product> all(3);
  HR_ASSIGN(all[0].weight, weights_.need(blk("attn_q.weight"), q, c_.embd));
  HR_ASSIGN(all[1].weight, weights_.need(blk("attn_k.weight"), kv, c_.embd));
  HR_ASSIGN(all[2].weight, weights_.need(blk("attn_v.weight"), kv, c_.embd));
  all[1].column = q;
  all[2].column = q + kv;
  HR_ASSIGN(const Value in, normalise_for(x, blk("attn_norm"), all));
  HR_ASSIGN(const TensorId bias, qkv_bias(all, q + 2 * kv));
  const TensorId out = activation(blk("qkv"), DType::kF32, q + 2 * kv);
  HR_TRY(products(in, all, bias, TensorId(), out));
  return out;
}

void Builder::attention_attrs(Op* op) {
  op->attrs[Attr::kHeads] = static_cast<double>(c_.heads);
  op->attrs[Attr::kKvHeads] = static_cast<double>(c_.kv_heads);
  op->attrs[Attr::kHeadDim] = static_cast<double>(c_.head_dim);
  op->attrs[Attr::kKvFormat] = static_cast<double>(o_.kv_format);
}

// q [rows, heads d]: normalised, rotated; k and v go to the layer's tails and open tiles.
Result<TensorId> Builder::rope_kv(TensorId qkv, const GraphKv::Layer& kv) {
  std::vector<TensorId> inputs = {qkv, c_.is_local(layer_) ? rope_local_ : rope_};
  if (c_.qk_norm) {
    for (const char* name : {"attn_q_norm.weight", "attn_k_norm.weight"}) {
      HR_ASSIGN(const TensorId norm, weights_.vector(blk(name), c_.head_dim));
      inputs.push_back(norm);
    }
  }
  const TensorId q = activation(blk("q"), DType::kF32, c_.heads * c_.head_dim);
  Op& rope = op(OpKind::kRopeKv, blk("rope_kv"), std::move(inputs), q);
  attention_attrs(&rope);
  rope.attrs[Attr::kEps] = c_.rms_eps;
  rope.attrs[Attr::kAddOne] = c_.norm_add_one ? 1 : 0;
  rope.attrs[Attr::kRopeHalfSplit] = c_.rope_half_split ? 1 : 0;
  if (kv.open.valid()) rope.outputs.push_back(kv.open);
  rope.updates = kv.tails;
  return q;
}

// Of what compares queries with the keys of segments.
void Builder::score_attrs(const GraphKv::Layer& kv, Op* op) {
  attention_attrs(op);
  op->attrs[Attr::kScale] = c_.attention_scale;
  op->attrs[Attr::kSoftcap] = c_.attention_softcap;
  op->attrs[Attr::kSegmentTokens] = static_cast<double>(o_.segment_tokens);
  op->attrs[Attr::kSegments] = static_cast<double>(kv.segments);
}

TensorId Builder::select_kv(TensorId q, const GraphKv::Layer& kv) {
  const TensorId mask = activation(blk("kv_mask"), DType::kF32, kv.segments);
  Op& op = this->op(OpKind::kSelectKv, blk("select_kv"), {q, kv.keys}, mask);
  score_attrs(kv, &op);
  op.attrs[Attr::kSparseTokens] = static_cast<double>(o_.sparse_tokens);
  return mask;
}

// out [rows, heads d]: one op, or one for each segment that hands on its softmax's state.
void Builder::attention(TensorId q, const GraphKv::Layer& kv, TensorId out) {
  const bool local = c_.is_local(layer_);
  const int64_t parts = o_.split_attention && !local ? kv.segments : 1;
  const int64_t count = kv.segments / parts;
  const TensorId mask = kv.keys.valid() && rows_ == 1 ? select_kv(q, kv) : TensorId();
  const TensorId state = parts > 1 ? kv_.softmax_state(layer_) : TensorId();
  for (int64_t part = 0; part < parts; ++part) {
    const bool first = part == 0, last = part == parts - 1;
    std::vector<TensorId> inputs = {q};
    if (kv.open.valid() || mask.valid()) inputs.push_back(kv.open);
    if (mask.valid()) inputs.push_back(mask);
    const std::string name =
        parts == 1 ? blk("attn") : blk("attn") + text_of(":%lld", static_cast<long long>(part));
    Op& op = this->op(OpKind::kAttention, name, std::move(inputs), last ? out : state);
    if (!first && !last) op.outputs.clear();
    op.updates = kv.tails;
    const int64_t sequences = o_.pool_blocks > 0 ? 1 : o_.sequences;
    for (int64_t s = 0; s < sequences; ++s) {
      const auto from = kv.slots.begin() + s * kv.segments + part;
      op.updates.insert(op.updates.end(), from, from + (o_.pool_blocks > 0 ? 1 : count));
    }
    if (kv.keys.valid()) op.updates.push_back(kv.keys);
    if (!first) op.updates.push_back(state);
    score_attrs(kv, &op);
    if (kv.keys.valid()) op.attrs[Attr::kSparseTokens] = static_cast<double>(o_.sparse_tokens);
    op.attrs[Attr::kSegmentBegin] = static_cast<double>(part);
    op.attrs[Attr::kSegmentCount] = static_cast<double>(count);
    op.attrs[Attr::kWindow] = local ? static_cast<double>(c_.window) : 0;
    if (o_.pool_blocks > 0) op.attrs[Attr::kPoolBlocks] = static_cast<double>(o_.pool_blocks);
  }
}

TensorId Builder::select(TensorId x, const std::string& name) {
  const TensorId out = activation(name, DType::kF32, g_.at(x).cols);
  op(OpKind::kSelectRows, name, {x}, out);
  return out;
}

// A bias over all columns of a product's output, or nothing.
Result<TensorId> Builder::vector_bias(const std::string& name, int64_t cols) {
  HR_ASSIGN(const WeightInfo* bias, weights_.find(name, 1, cols));
  if (bias == nullptr) return TensorId();
  HR_ASSIGN(auto values, read_small_weight(model_, *bias));
  return constant(name, std::move(values));
}

// in . weight^T + residual; with post norms, residual + norm(in . weight^T).
Result<TensorId> Builder::project(TensorId in, const char* weight, int64_t cols,
                                  TensorId residual, const char* post_norm) {
  const std::string name = blk(weight);
  HR_ASSIGN(const WeightInfo* w, weights_.need(name + ".weight", c_.embd, cols));
  HR_ASSIGN(const TensorId bias, vector_bias(name + ".bias", c_.embd));
  const Value value = {in, in};
  const TensorId out = activation(name + ".out", DType::kF32, c_.embd);
  if (!c_.post_norms) {
    HR_TRY(products(value, {{w, 0}}, bias, residual, out));
    return out;
  }
  HR_TRY(products(value, {{w, 0}}, bias, TensorId(), out));
  const std::string norm = blk(post_norm);
  return normalise(out, norm, norm + ".out", DType::kF32, residual);
}

Result<TensorId> Builder::attention_part(TensorId x) {
  HR_ASSIGN(const TensorId packed, qkv(x));
  const GraphKv::Layer kv = kv_.layer(layer_);
  HR_ASSIGN(const TensorId q, rope_kv(packed, kv));
  const int64_t cols = c_.heads * c_.head_dim;
  HR_ASSIGN(const WeightInfo* w, weights_.need(blk("attn_output.weight"), c_.embd, cols));
  const bool quantised = info(w->dtype).quantised;
  // After the last layer's attention only the rows whose logits are wanted go on; a row
  // is picked before it is quantised.
  const bool last = layer_ == c_.layers - 1;
  const DType type = quantised && !last ? DType::kActQ8 : DType::kF32;
  TensorId out = activation(blk("attn"), type, cols);
  attention(q, kv, out);
  if (last) {
    rows_ = o_.max_output_rows;
    out = select(out, "attn.selected");
    x = select(x, "x.selected");
    if (quantised) {
      const TensorId q8 = activation("attn.selected_q8", DType::kActQ8, cols);
      op(OpKind::kQuantize, "attn.quantize", {out}, q8);
      out = q8;
    }
  }
  return project(out, "attn_output", cols, x, "post_attention_norm");
}

Result<TensorId> Builder::feed_forward_part(TensorId x) {
  std::vector<Product> all(2);
  HR_ASSIGN(all[0].weight, weights_.need(blk("ffn_gate.weight"), c_.ff, c_.embd));
  HR_ASSIGN(all[1].weight, weights_.need(blk("ffn_up.weight"), c_.ff, c_.embd));
  HR_ASSIGN(const WeightInfo* down,
            weights_.need(blk("ffn_down.weight"), c_.embd, c_.ff));
  all[1].column = c_.ff;
  HR_ASSIGN(const Value in, normalise_for(x, blk("ffn_norm"), all));
  const TensorId gate_up = activation(blk("gate_up"), DType::kF32, 2 * c_.ff);
  HR_TRY(products(in, all, TensorId(), TensorId(), gate_up));
  const DType type = info(down->dtype).quantised ? DType::kActQ8 : DType::kF32;
  const TensorId gated = activation(blk("gated"), type, c_.ff);
  op(OpKind::kGatedAct, blk("gated_act"), {gate_up}, gated).attrs[Attr::kAct] =
      static_cast<double>(c_.activation);
  return project(gated, "ffn_down", c_.ff, x, "post_ffw_norm");
}

Status Builder::head(TensorId x) {
  const char* const name = c_.tied_embeddings ? "token_embd.weight" : "output.weight";
  std::vector<Product> all(1);
  HR_ASSIGN(all[0].weight, weights_.need(name, c_.vocab, c_.embd));
  // A file may hold a head that the config says is the embedding table again.
  if (c_.tied_embeddings) weights_.mark("output.weight");
  HR_ASSIGN(const Value in, normalise_for(x, "output_norm", all));
  const bool capped = c_.logit_softcap > 0;
  const TensorId logits =
      activation(capped ? "logits.uncapped" : "logits", DType::kF32, c_.vocab);
  HR_TRY(products(in, all, TensorId(), TensorId(), logits));
  TensorId out = logits;
  if (capped) {
    out = activation("logits", DType::kF32, c_.vocab);
    op(OpKind::kSoftcap, "logits", {logits}, out).attrs[Attr::kSoftcap] =
        c_.logit_softcap;
  }
  g_.tensors[out.index()].role = Role::kOutput;
  return {};
}

Status check(const GraphOptions& o) {
  constexpr int64_t kMost = int64_t{1}
                            << 24;  // rows, positions, threads: keeps sizes in range
  if (o.max_rows < 1 || o.max_rows > kMost || o.max_output_rows < 1 ||
      o.max_output_rows > o.max_rows) {
    return error(Code::kUsage, "a step of %lld rows with logits of %lld",
                 static_cast<long long>(o.max_rows),
                 static_cast<long long>(o.max_output_rows));
  }
  if (o.context < 1 || o.context > kMost || o.sequences < 1 || o.sequences > kMost) {
    return error(Code::kUsage, "a context of %lld positions for %lld sequences",
                 static_cast<long long>(o.context), static_cast<long long>(o.sequences));
  }
  if (o.segment_tokens < kKvTile || o.segment_tokens > kMost ||
      o.segment_tokens % kKvTile != 0) {
    return error(
        Code::kUsage, "KV segments of %lld positions; a multiple of %lld is needed",
        static_cast<long long>(o.segment_tokens), static_cast<long long>(kKvTile));
  }
  if (o.window_positions < 0 || o.pool_blocks < 0 || o.pool_blocks > kMost) {
    return error(Code::kUsage, "windows of %lld positions, a pool of %lld blocks",
                 static_cast<long long>(o.window_positions),
                 static_cast<long long>(o.pool_blocks));
  }
  if (o.pool_blocks > 0 && (o.split_attention || o.window_positions > 0)) {
    return error(Code::kUsage,
                 "a pool of KV blocks is read by one attention op a layer, and holds all positions");
  }
  if (o.sparse_tokens != 0 &&
      (o.sparse_tokens < 0 || o.sparse_tokens > kMost || !o.split_attention || o.sequences != 1)) {
    return error(Code::kUsage,
                 "%lld positions of the past to be attended: above 0, of one sequence, with attention "
                 "in parts",
                 static_cast<long long>(o.sparse_tokens));
  }
  if (o.tile_bytes < 1 || o.threads < 1 || o.threads > kMost) {
    return error(Code::kUsage, "tiles of %lld bytes, %d threads",
                 static_cast<long long>(o.tile_bytes), o.threads);
  }
  return {};
}

}  // namespace

Result<Graph> build_graph(const ModelFile& model, const ModelConfig& config,
                          const GraphOptions& options) {
  HR_TRY(check(options));
  if (config.head_dim > kMaxHeadDim) {
    return error(
        Code::kUnsupported, "heads of %lld dimensions; at most %lld are supported",
        static_cast<long long>(config.head_dim), static_cast<long long>(kMaxHeadDim));
  }
  // Tiles are sealed into a slot only when no row of the step sees what they replace: a step touches
  // whole tiles at either end.
  const int64_t least_window = config.window + options.max_rows + 2 * kKvTile;
  if (config.window > 0 && options.window_positions > 0 &&
      options.window_positions < std::min(least_window, options.context)) {
    return error(Code::kUsage, "room for %lld positions in layers with a window; %lld are needed",
                 static_cast<long long>(options.window_positions),
                 static_cast<long long>(least_window));
  }
  return Builder(model, config, options).build();
}

}  // namespace headrace
