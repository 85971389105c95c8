#include "headrace/train/step_model.h"

#include <algorithm>
#include <cmath>

namespace headrace {
namespace {

class Lister {
 public:
  explicit Lister(const StepModel& model) : m_(model) {}

  std::vector<Parameter> run() {
    if (m_.gpt2()) {
      add("transformer.wte.weight", ParameterKind::kTable, m_.vocab, m_.hidden);
      add("transformer.wpe.weight", ParameterKind::kMatrix, m_.positions, m_.hidden);
    } else {
      add("model.embed_tokens.weight", ParameterKind::kTable, m_.vocab, m_.hidden);
    }
    for (int64_t layer = 0; layer < m_.layers; ++layer) {
      layer_ = layer;
      m_.gpt2() ? gpt2_layer() : llama_layer();
    }
    if (m_.gpt2()) {
      norm("transformer.ln_f");
    } else {
      norm("model.norm");
      if (!m_.tied_embeddings) add("lm_head.weight", ParameterKind::kTable, m_.vocab, m_.hidden);
    }
    place_frozen();
    return std::move(out_);
  }

 private:
  void llama_layer() {
    const int64_t q = m_.heads * m_.head_dim, kv = m_.kv_heads * m_.head_dim;
    norm(layer_name(m_, layer_, "input_layernorm"));
    product("self_attn.q_proj", q, m_.hidden, m_.qkv_bias);
    product("self_attn.k_proj", kv, m_.hidden, m_.qkv_bias);
    product("self_attn.v_proj", kv, m_.hidden, m_.qkv_bias);
    product("self_attn.o_proj", m_.hidden, q, false);
    norm(layer_name(m_, layer_, "post_attention_layernorm"));
    product("mlp.gate_proj", m_.ffn, m_.hidden, false);
    product("mlp.up_proj", m_.ffn, m_.hidden, false);
    product("mlp.down_proj", m_.hidden, m_.ffn, false);
  }

  void gpt2_layer() {
    norm(layer_name(m_, layer_, "ln_1"));
    product("attn.c_attn", 3 * m_.hidden, m_.hidden, true);
    product("attn.c_proj", m_.hidden, m_.hidden, true);
    norm(layer_name(m_, layer_, "ln_2"));
    product("mlp.c_fc", m_.ffn, m_.hidden, true);
    product("mlp.c_proj", m_.hidden, m_.ffn, true);
  }

  void norm(const std::string& name) {
    add(name + ".weight", ParameterKind::kVector, 1, m_.hidden);
    if (m_.gpt2()) add(name + ".bias", ParameterKind::kVector, 1, m_.hidden);
  }

  void product(const std::string& module, int64_t out, int64_t in, bool bias) {
    const std::string name = layer_name(m_, layer_, module);
    add(name + ".weight", ParameterKind::kMatrix, out, in);
    if (m_.gpt2()) out_.back().transposed = true;
    if (bias) add(name + ".bias", ParameterKind::kVector, 1, out);
    const auto& targets = m_.lora.targets;
    const std::string last = module.substr(module.find('.') + 1);
    if (m_.lora.rank == 0) return;
    if (std::find(targets.begin(), targets.end(), last) == targets.end()) return;
    add(name + ".lora_A.weight", ParameterKind::kLoraA, m_.lora.rank, in);
    add(name + ".lora_B.weight", ParameterKind::kLoraB, out, m_.lora.rank);
  }

  bool trainable(const std::string& name, ParameterKind kind) const {
    const bool lora = kind == ParameterKind::kLoraA || kind == ParameterKind::kLoraB;
    if (m_.lora.rank > 0 && !lora) return false;
    return std::none_of(m_.frozen.begin(), m_.frozen.end(), [&](const std::string& part) {
      return name.find(part) != std::string::npos;
    });
  }

  void add(const std::string& name, ParameterKind kind, int64_t rows, int64_t cols) {
    Parameter p;
    p.name = name;
    p.kind = kind;
    p.rows = rows;
    p.cols = cols;
    p.dtype = kind == ParameterKind::kVector ? DType::kF32 : m_.compute_dtype();
    p.trainable = trainable(name, kind);
    const bool table = kind == ParameterKind::kTable;
    add_tiles(p, table ? m_.table_tile : rows * row_bytes(DType::kF32, cols), &out_);
  }

  void place_frozen() {
    Bytes at = 0;
    for (Parameter& p : out_) {
      if (p.trainable) continue;
      p.frozen = {0, at, p.row_count * row_bytes(p.dtype, p.cols)};
      at = round_up(at + p.frozen.bytes, kPage);
    }
  }

  const StepModel& m_;
  int64_t layer_ = 0;
  std::vector<Parameter> out_;
};

constexpr int64_t kMost = 1 << 24;  // of every size: products of three stay inside 64 bits

Status positive(int64_t value, const char* member) {
  if (value > 0 && value <= kMost) return {};
  return error(Code::kUsage, "model: %s is %lld, not from 1 to %lld", member,
               static_cast<long long>(value), static_cast<long long>(kMost));
}

Status probability(double value, const char* member) {
  if (value >= 0 && value < 1) return {};
  return error(Code::kUsage, "model: %s is %g, not from 0 to below 1", member, value);
}

Status check_lora(const StepModel& m) {
  if (m.lora.rank == 0) return {};
  HR_TRY(positive(m.lora.rank, "lora.rank"));
  if (!(m.lora.alpha > 0 && m.lora.alpha < 1e9)) {
    return error(Code::kUsage, "model: lora.alpha is %g, not above 0", m.lora.alpha);
  }
  const std::vector<std::string> known =
      m.gpt2() ? std::vector<std::string>{"c_attn", "c_proj", "c_fc"}
               : std::vector<std::string>{"q_proj", "k_proj",    "v_proj",   "o_proj",
                                          "gate_proj", "up_proj", "down_proj"};
  for (const std::string& target : m.lora.targets) {
    if (std::find(known.begin(), known.end(), target) != known.end()) continue;
    std::string names;
    for (const std::string& k : known) names += (names.empty() ? "" : ", ") + k;
    return error(Code::kUsage, "model: lora.targets has '%s'; this family has %s", target.c_str(),
                 names.c_str());
  }
  if (m.lora.targets.empty()) return error(Code::kUsage, "model: lora.targets is empty");
  return {};
}

Status check_gpt2(const StepModel& m) {
  HR_TRY(positive(m.positions, "positions"));
  if (m.kv_heads != m.heads) {
    return error(Code::kUsage, "model: GPT-2 has as many kv_heads as heads, not %lld and %lld",
                 static_cast<long long>(m.kv_heads), static_cast<long long>(m.heads));
  }
  if (m.heads * m.head_dim != m.hidden) {
    return error(Code::kUsage, "model: GPT-2's heads x head_dim is hidden, not %lld",
                 static_cast<long long>(m.heads * m.head_dim));
  }
  if (!m.tied_embeddings) {
    return error(Code::kUnsupported, "model: GPT-2 without tied embeddings is not supported");
  }
  return {};
}

Status check_llama(const StepModel& m) {
  if (m.heads % m.kv_heads != 0) {
    return error(Code::kUsage, "model: kv_heads %lld does not divide heads %lld",
                 static_cast<long long>(m.kv_heads), static_cast<long long>(m.heads));
  }
  if (m.head_dim % 2 != 0 || m.inv_freq.size() != static_cast<size_t>(m.head_dim / 2)) {
    return error(Code::kUsage, "model: %zu frequencies for a head_dim of %lld", m.inv_freq.size(),
                 static_cast<long long>(m.head_dim));
  }
  for (const float f : m.inv_freq) {
    if (!std::isfinite(f)) return error(Code::kUsage, "model: a frequency is not finite");
  }
  return {};
}

}  // namespace

Status check(const StepModel& m) {
  HR_TRY(positive(m.layers, "layers"));
  HR_TRY(positive(m.hidden, "hidden"));
  HR_TRY(positive(m.heads, "heads"));
  HR_TRY(positive(m.kv_heads, "kv_heads"));
  HR_TRY(positive(m.head_dim, "head_dim"));
  HR_TRY(positive(m.ffn, "ffn"));
  HR_TRY(positive(m.vocab, "vocab"));
  HR_TRY(positive(m.heads * m.head_dim, "heads x head_dim"));
  HR_TRY(probability(m.dropout, "dropout"));
  HR_TRY(probability(m.lora_dropout, "lora_dropout"));
  if (!(m.norm_eps > 0 && m.norm_eps < 1)) {
    return error(Code::kUsage, "model: norm_eps is %g, not between 0 and 1", m.norm_eps);
  }
  if (m.table_tile < 1) {
    return error(Code::kUsage, "model: table_tile is %lld, not above 0",
                 static_cast<long long>(m.table_tile));
  }
  HR_TRY(m.gpt2() ? check_gpt2(m) : check_llama(m));
  return check_lora(m);
}

void add_tiles(Parameter p, Bytes most_bytes, std::vector<Parameter>* out) {
  const int64_t most = std::max<int64_t>(1, most_bytes / row_bytes(DType::kF32, p.cols));
  const int64_t tiles = ceil_div(p.rows, most);
  for (int64_t i = 0; i < tiles; ++i) {
    p.tensor = tiles > 1 ? p.name + text_of(":%lld", static_cast<long long>(i)) : p.name;
    p.row_begin = i * most;
    p.row_count = std::min(most, p.rows - p.row_begin);
    out->push_back(p);
  }
}

std::vector<Parameter> parameters_of(const StepModel& model) { return Lister(model).run(); }

Bytes frozen_bytes(const std::vector<Parameter>& parameters) {
  Bytes end = 0;
  for (const Parameter& p : parameters) {
    if (!p.trainable) end = std::max(end, round_up(p.frozen.offset + p.frozen.bytes, kPage));
  }
  return end;
}

int64_t element_count(const std::vector<Parameter>& parameters) {
  int64_t n = 0;
  for (const Parameter& p : parameters) n += p.row_count * p.cols;
  return n;
}

int64_t trainable_count(const std::vector<Parameter>& parameters) {
  int64_t n = 0;
  for (const Parameter& p : parameters) n += p.trainable ? p.row_count * p.cols : 0;
  return n;
}

std::string layer_name(const StepModel& model, int64_t layer, std::string_view what) {
  const char* before = model.gpt2() ? "transformer.h." : "model.layers.";
  return before + std::to_string(layer) + "." + std::string(what);
}

}  // namespace headrace
