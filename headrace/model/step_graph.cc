// The layers of each family, and the checks of a config.
#include "headrace/model/step_graph.h"

#include <algorithm>
#include <array>

#include "headrace/model/step_builder.h"
#include "headrace/model/workload.h"

namespace headrace {
namespace {

using step::Builder;
using step::NewOp;
using step::Weight;

class StepMaker {
 public:
  explicit StepMaker(const StepConfig& config) : c_(config), b_(config) {
    length_ = c_.family == StepFamily::kVit    ? c_.image_tokens
              : c_.phase == StepPhase::kDecode ? 1
                                               : c_.sequence;
    rows_ = c_.batch * length_;
    segments_ = inference() ? (c_.sequence + c_.kv_segment - 1) / c_.kv_segment : 0;
  }

  Result<Workload> run() {
    TensorId x = c_.family == StepFamily::kVit ? embed_image() : embed_tokens();
    for (int64_t layer = 0; layer < c_.layers && b_.status().ok(); ++layer) x = block(layer, x);
    HR_TRY(b_.status());
    head(x);
    if (b_.training()) {
      b_.run_backward();
      b_.add_optimizer();
    }
    HR_TRY(b_.status());
    b_.workload().cyclic = inference();
    return std::move(b_.workload());
  }

 private:
  bool inference() const { return c_.phase != StepPhase::kTrain; }
  bool biased() const { return c_.family != StepFamily::kLlama && c_.family != StepFamily::kMoe; }
  bool latent() const { return c_.kv_rank > 0; }
  int64_t v_dim() const { return c_.v_head_dim > 0 ? c_.v_head_dim : c_.head_dim; }
  // Values a position of the cache.
  int64_t kv_width() const {
    return latent() ? c_.kv_rank + c_.rope_dim : 2 * c_.kv_heads * c_.head_dim;
  }

  // ---- first and last

  TensorId embed_tokens() {
    const TensorId tokens = b_.input("tokens", rows_, 1, DType::kI32);
    table_ = b_.weight("embed", c_.vocab, c_.hidden);
    NewOp op{.kernel = "Embedding", .inputs = {tokens, table_.tensor}};
    Weight places;
    if (c_.positions > 0) {
      // BERT tells two sentences apart by two more rows.
      const int64_t kinds = c_.family == StepFamily::kBert ? 2 : 0;
      places = b_.weight("positions", c_.positions + kinds, c_.hidden);
      op.inputs.push_back(places.tensor);
    }
    const TensorId x = b_.activation("embed", rows_, c_.hidden);
    op.outputs = {x};
    op.traffic = 3.0 * static_cast<double>(b_.bytes(x));
    b_.add("embed", op);
    b_.on_backward([this, tokens, places, x] {
      NewOp grad{.kernel = "EmbeddingGrad", .inputs = {tokens, b_.gradient(x)}};
      b_.weight_gradient(table_, &grad);
      if (places.tensor.valid()) b_.weight_gradient(places, &grad);
      b_.add("embed.d", grad);
    });
    return c_.family == StepFamily::kBert ? b_.norm("embed.norm", x, true) : x;
  }

  TensorId embed_image() {
    const int64_t patches = c_.image_tokens - 1;
    const TensorId pixels =
        b_.input("pixels", c_.batch * patches, c_.patch_dim, c_.activation_dtype);
    const TensorId x =
        b_.matmul("patches", pixels, b_.weight("patches", c_.hidden, c_.patch_dim, true));
    const Weight places =
        b_.weight("positions", c_.positions + 1, c_.hidden);  // and the class token
    const TensorId y = b_.activation("embed", rows_, c_.hidden);
    b_.add("embed", {.kernel = "AddPositions", .inputs = {x, places.tensor}, .outputs = {y}});
    b_.on_backward([this, x, y, places] {
      const TensorId dx = b_.new_gradient(x);
      NewOp grad{.kernel = "AddPositionsGrad", .inputs = {b_.gradient(y)}, .outputs = {dx}};
      b_.weight_gradient(places, &grad);
      b_.add("embed.d", grad);
      b_.add_gradient(x, dx);
    });
    return y;
  }

  void head(TensorId x) {
    const bool bert = c_.family == StepFamily::kBert;
    if (!bert) x = b_.norm("final.norm", x, biased());
    if (c_.family == StepFamily::kVit || c_.phase == StepPhase::kPrefill) {
      // The class token, or the last token of each sequence.
      x = b_.map("select", {.kernel = "SelectRows",
                            .inputs = {x},
                            .needs = {x},
                            .rows = c_.batch,
                            .cols = c_.hidden,
                            .flops_per_output = 0});
    }
    if (bert) {
      x = b_.matmul("transform", x, b_.weight("transform", c_.hidden, c_.hidden, true));
      x = b_.map("transform.gelu", {.kernel = "Gelu",
                                    .inputs = {x},
                                    .saved = {x},
                                    .needs = {x},
                                    .rows = b_.rows(x),
                                    .cols = c_.hidden,
                                    .flops_per_output = 8});
      x = b_.norm("transform.norm", x, true);
    }
    const bool tied = c_.tied_embeddings && table_.tensor.valid();
    const Weight last = tied ? table_ : b_.weight("logits", c_.vocab, c_.hidden, biased());
    const TensorId logits = b_.matmul("logits", x, last);
    if (inference()) {
      b_.workload().graph.tensors[logits.index()].role = Role::kOutput;
    } else {
      loss(logits);
    }
  }

  void loss(TensorId logits) {
    const int64_t n = b_.rows(logits);
    const TensorId loss = b_.activation("loss", 1, 1, DType::kF32);
    b_.workload().graph.tensors[loss.index()].role = Role::kOutput;
    const TensorId sums = b_.activation("loss.logsum", n, 1, DType::kF32);
    const double elements = static_cast<double>(n) * static_cast<double>(c_.vocab);
    b_.add("loss", {.kernel = "CrossEntropy",
                    .inputs = {logits},
                    .outputs = {loss, sums},
                    .flops = 4 * elements});
    b_.on_backward([this, logits, sums, elements] {
      const TensorId grad = b_.new_gradient(logits);
      b_.add("loss.d", {.kernel = "CrossEntropyGrad",
                        .inputs = {logits, sums},
                        .outputs = {grad},
                        .flops = 4 * elements});
      b_.add_gradient(logits, grad);
    });
  }

  // ---- a layer

  TensorId block(int64_t layer, TensorId x) {
    const std::string at = text_of("layer%lld.", static_cast<long long>(layer));
    if (c_.family == StepFamily::kBert) {  // norms after the residual sums
      const TensorId a = attention(layer, at, x);
      x = b_.norm(at + "norm1", b_.add_residual(at + "sum1", x, a), true);
      const TensorId f = ffn(at + "ffn.", x, c_.ffn);
      return b_.norm(at + "norm2", b_.add_residual(at + "sum2", x, f), true);
    }
    const TensorId a = attention(layer, at, b_.norm(at + "norm1", x, biased()));
    x = b_.add_residual(at + "sum1", x, a);
    const TensorId y = b_.norm(at + "norm2", x, biased());
    const bool routed = c_.experts > 0 && layer >= c_.dense_layers;
    const TensorId f = routed ? experts(at, y) : ffn(at + "ffn.", y, c_.ffn);
    return b_.add_residual(at + "sum2", x, f);
  }

  TensorId ffn(const std::string& at, TensorId x, int64_t width) {
    const int64_t first = c_.gated_ffn ? 2 * width : width;
    const TensorId u = b_.matmul(at + "up", x, b_.weight(at + "up", first, c_.hidden, biased()));
    const TensorId h = activate(at + "act", u, width);
    return b_.matmul(at + "down", h, b_.weight(at + "down", c_.hidden, width, biased()));
  }

  TensorId activate(const std::string& name, TensorId u, int64_t width) {
    return b_.map(name, {.kernel = c_.gated_ffn ? "GatedAct" : "Gelu",
                         .inputs = {u},
                         .saved = {u},
                         .needs = {u},
                         .rows = b_.rows(u),
                         .cols = width,
                         .flops_per_output = 8});
  }

  // Every token goes to active_experts of them; each of this device's experts sees its even share
  // of the tokens of all devices, which is as many rows as this device's tokens send out.
  TensorId experts(const std::string& at, TensorId x) {
    const TensorId scores =
        b_.matmul(at + "router", x, b_.weight(at + "router", c_.experts, c_.hidden));
    const TensorId route = b_.map(at + "route", {.kernel = "TopK",
                                                 .inputs = {scores},
                                                 .saved = {scores},
                                                 .needs = {scores},
                                                 .rows = rows_,
                                                 .cols = 2 * c_.active_experts,
                                                 .flops_per_output = 32});
    const int64_t sent = rows_ * c_.active_experts;
    const TensorId rows = b_.map(at + "dispatch", {.kernel = "Dispatch",
                                                   .inputs = {x, route},
                                                   .saved = {route},
                                                   .needs = {x},
                                                   .rows = sent,
                                                   .cols = c_.hidden,
                                                   .flops_per_output = 0});
    // With few tokens not every expert is met.
    const double met = std::min(1.0, static_cast<double>(sent) * static_cast<double>(c_.shards) /
                                         static_cast<double>(c_.experts));
    const int64_t width = c_.expert_ffn, n = c_.experts;
    const int64_t first = c_.gated_ffn ? 2 * width : width;
    const TensorId u = b_.matmul(at + "experts.up", rows,
                                 b_.weight(at + "experts.up", n * first, c_.hidden), n, met);
    const TensorId h = activate(at + "experts.act", u, width);
    const TensorId y = b_.matmul(at + "experts.down", h,
                                 b_.weight(at + "experts.down", n * c_.hidden, width), n, met);
    TensorId sum =
        b_.map(at + "combine", {.kernel = "Combine",
                                .inputs = {y, route},
                                .saved = {y, route},
                                .needs = {y, route},
                                .rows = rows_,
                                .cols = c_.hidden,
                                .flops_per_output = 2.0 * static_cast<double>(c_.active_experts)});
    if (c_.shared_experts > 0) {
      const TensorId shared = ffn(at + "shared.", x, width * c_.shared_experts);
      sum = b_.add_residual(at + "experts.sum", sum, shared);
    }
    return sum;
  }

  // ---- attention

  TensorId attention(int64_t layer, const std::string& at, TensorId x) {
    const TensorId y = latent() ? latent_attention(layer, at, x) : plain_heads(layer, at, x);
    return b_.matmul(at + "o", y, b_.weight(at + "o", c_.hidden, c_.heads * v_dim(), biased()));
  }

  TensorId plain_heads(int64_t layer, const std::string& at, TensorId x) {
    const int64_t width = (c_.heads + 2 * c_.kv_heads) * c_.head_dim;
    TensorId qkv = b_.matmul(at + "qkv", x, b_.weight(at + "qkv", width, c_.hidden, biased()));
    if (!biased()) qkv = rope(at + "rope", qkv);
    if (c_.phase == StepPhase::kDecode) {
      return attend_segments(layer, at, qkv, qkv, c_.heads * c_.head_dim, 2 * c_.head_dim);
    }
    if (c_.phase == StepPhase::kPrefill) write_segments(layer, at, qkv);
    return b_.attention(at + "attention", {qkv},
                        {c_.heads, c_.head_dim, v_dim(),
                         c_.family != StepFamily::kBert && c_.family != StepFamily::kVit});
  }

  TensorId rope(const std::string& name, TensorId x) {
    return b_.map(name, {.kernel = "Rope",
                         .inputs = {x},
                         .needs = {x},
                         .rows = b_.rows(x),
                         .cols = b_.cols(x),
                         .flops_per_output = 3});
  }

  // Multi-head latent attention: queries and the cache pass through narrow projections. Decoding
  // works in the latent space: the up-projection of keys is absorbed in the query, that of values
  // in the output.
  TensorId latent_attention(int64_t layer, const std::string& at, TensorId x) {
    const int64_t query = c_.heads * (c_.head_dim + c_.rope_dim);
    TensorId q = x;
    if (c_.q_rank > 0) {
      q = b_.matmul(at + "q_down", x, b_.weight(at + "q_down", c_.q_rank, c_.hidden));
      q = b_.norm(at + "q_norm", q, false);
    }
    const int64_t q_in = c_.q_rank > 0 ? c_.q_rank : c_.hidden;
    q = rope(at + "q_rope", b_.matmul(at + "q_up", q, b_.weight(at + "q_up", query, q_in)));
    const TensorId latents =
        b_.norm(at + "kv_norm",
                b_.matmul(at + "kv_down", x, b_.weight(at + "kv_down", kv_width(), c_.hidden)),
                false, c_.kv_rank);
    const Weight up = b_.weight(at + "kv_up", c_.heads * (c_.head_dim + v_dim()), c_.kv_rank);
    if (c_.phase == StepPhase::kDecode) {
      const double half = 2.0 * static_cast<double>(rows_ * c_.heads * c_.kv_rank);
      const TensorId wide = b_.activation(at + "q_absorbed", rows_, c_.heads * kv_width());
      b_.add(at + "q_absorbed", {.kernel = "MatMul",
                                 .inputs = {q, up.tensor},
                                 .outputs = {wide},
                                 .flops = half * static_cast<double>(c_.head_dim)});
      const TensorId narrow =
          attend_segments(layer, at, wide, latents, c_.heads * c_.kv_rank, kv_width() + c_.kv_rank);
      const TensorId y = b_.activation(at + "v_up", rows_, c_.heads * v_dim());
      b_.add(at + "v_up", {.kernel = "MatMul",
                           .inputs = {narrow, up.tensor},
                           .outputs = {y},
                           .flops = half * static_cast<double>(v_dim())});
      return y;
    }
    if (c_.phase == StepPhase::kPrefill) write_segments(layer, at, latents);
    const TensorId kv = b_.matmul(at + "kv_up", latents, up);
    return b_.attention(at + "attention", {q, kv, latents},
                        {c_.heads, c_.head_dim + c_.rope_dim, v_dim(), true});
  }

  std::vector<TensorId> segments(int64_t layer) {
    std::vector<TensorId> out;
    for (int64_t s = 0; s < segments_; ++s) {
      const int64_t positions = std::min(c_.kv_segment, c_.sequence - s * c_.kv_segment);
      out.push_back(b_.state(text_of("kv.layer%lld.segment%lld", static_cast<long long>(layer),
                                     static_cast<long long>(s)),
                             c_.batch * positions, kv_width(),
                             {static_cast<int32_t>(layer), 0, static_cast<int32_t>(s)}));
    }
    return out;
  }

  void write_segments(int64_t layer, const std::string& at, TensorId from) {
    for (const TensorId segment : segments(layer)) {
      const std::string name = at + text_of("keep%d", b_.workload().graph.at(segment).slot.segment);
      b_.add(name, {.kernel = "AppendKv",
                    .inputs = {from},
                    .updates = {segment},
                    .traffic = 2.0 * static_cast<double>(b_.bytes(segment)),
                    .recompute = false});
    }
  }

  // A new position is appended to the last segment; then each segment gives a part of the output
  // [batch, width] with its maxima and sums. `depth`: multiply-adds a head and position.
  TensorId attend_segments(int64_t layer, const std::string& at, TensorId q, TensorId added,
                           int64_t width, int64_t depth) {
    const std::vector<TensorId> kv = segments(layer);
    b_.add(at + "append", {.kernel = "AppendKv",
                           .inputs = {added},
                           .updates = {kv.back()},
                           .traffic = 2.0 * static_cast<double>(b_.bytes(added)),
                           .recompute = false});
    std::vector<TensorId> parts;
    for (size_t s = 0; s < kv.size(); ++s) {
      const std::string name = at + text_of("attend%zu", s);
      parts.push_back(b_.activation(name, rows_, width + 2 * c_.heads, DType::kF32));
      const double flops =
          2.0 * static_cast<double>(b_.rows(kv[s]) * c_.heads) * static_cast<double>(depth);
      b_.add(name, {.kernel = "AttendSegment",
                    .inputs = {q, kv[s]},
                    .outputs = {parts.back()},
                    .flops = flops});
    }
    const TensorId y = b_.activation(at + "attention", rows_, width);
    b_.add(at + "attention", {.kernel = "CombineSegments", .inputs = parts, .outputs = {y}});
    return y;
  }

  const StepConfig& c_;
  Builder b_;
  int64_t length_ = 0, rows_ = 0, segments_ = 0;
  Weight table_;
};

// ---- checks -----------------------------------------------------------------------------------

Status bad(const char* member, int64_t value, const char* why) {
  return error(Code::kUsage, "step: %s is %lld; %s", member, static_cast<long long>(value), why);
}

Status check_ranges(const StepConfig& c) {
  constexpr int64_t kMany = int64_t{1} << 24;
  struct Range {
    const char* member;
    int64_t value, least, most;
  };
  const bool vit = c.family == StepFamily::kVit, moe = c.family == StepFamily::kMoe;
  const std::array<Range, 24> ranges = {{
      {"layers", c.layers, 1, 100'000},
      {"hidden", c.hidden, 1, kMany},
      {"heads", c.heads, 1, 1 << 16},
      {"kv_heads", c.kv_heads, 1, 1 << 16},
      {"head_dim", c.head_dim, 1, 1 << 16},
      {"ffn", c.ffn, moe && c.dense_layers == 0 ? 0 : 1, kMany},
      {"vocab", c.vocab, 1, kMany},
      {"positions", c.positions, vit ? 1 : 0, kMany},
      {"batch", c.batch, 1, kMany},
      {"sequence", c.sequence, vit ? 0 : 1, int64_t{1} << 32},
      {"experts", c.experts, moe ? 1 : 0, moe ? 1 << 16 : 0},
      {"active_experts", c.active_experts, moe ? 1 : 0, moe ? c.experts : 0},
      {"shared_experts", c.shared_experts, 0, moe ? 1 << 10 : 0},
      {"expert_ffn", c.expert_ffn, moe ? 1 : 0, kMany},
      {"dense_layers", c.dense_layers, 0, moe ? c.layers : 0},
      {"q_rank", c.q_rank, 0, kMany},
      {"kv_rank", c.kv_rank, 0, kMany},
      {"rope_dim", c.rope_dim, 0, 1 << 16},
      {"v_head_dim", c.v_head_dim, 0, 1 << 16},
      {"image_tokens", c.image_tokens, vit ? 2 : 0, kMany},
      {"patch_dim", c.patch_dim, vit ? 1 : 0, kMany},
      {"kv_segment", c.kv_segment, 1, kMany},
      {"optimizer_bytes", c.optimizer_bytes, 0, 64},
      {"shards", c.shards, 1, kMany},
  }};
  for (const Range& r : ranges) {
    if (r.value >= r.least && r.value <= r.most) continue;
    return bad(
        r.member, r.value,
        text_of("it must be between %lld and %lld for a %s step", static_cast<long long>(r.least),
                static_cast<long long>(r.most), name_of(c.family))
            .c_str());
  }
  return {};
}

Status check_config(const StepConfig& c) {
  HR_TRY(check_ranges(c));
  if (c.heads % c.kv_heads != 0) return bad("kv_heads", c.kv_heads, "it does not divide heads");
  if (c.kv_rank > 0 && c.family != StepFamily::kMoe) {
    return bad("kv_rank", c.kv_rank, "latent attention is for the family moe");
  }
  if (c.family != StepFamily::kVit && c.positions > 0 && c.positions < c.sequence) {
    return bad("sequence", c.sequence, "it is longer than the position table");
  }
  const bool encoder = c.family == StepFamily::kBert || c.family == StepFamily::kVit;
  if (encoder && c.phase != StepPhase::kTrain) {
    return error(Code::kUnsupported, "step: a %s model has no %s phase that is planned here",
                 name_of(c.family), name_of(c.phase));
  }
  for (const DType type : {c.weight_dtype, c.activation_dtype}) {
    if (type != DType::kF32 && type != DType::kF16 && type != DType::kBF16) {
      return error(Code::kUnsupported, "step: weights and activations of type %s", name_of(type));
    }
  }
  const double segments = c.phase == StepPhase::kTrain
                              ? 0
                              : static_cast<double>(c.sequence) / static_cast<double>(c.kv_segment);
  if ((segments + 100) * static_cast<double>(c.layers) > static_cast<double>(kMostWorkloadOps)) {
    return error(Code::kUsage, "step: %lld layers would be more than %lld ops",
                 static_cast<long long>(c.layers), static_cast<long long>(kMostWorkloadOps));
  }
  return {};
}

}  // namespace

Result<Workload> build_step(const StepConfig& config) {
  HR_TRY(check_config(config));
  return StepMaker(config).run();
}

}  // namespace headrace
