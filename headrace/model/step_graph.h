// Steps of known architectures, built from a config: what a training or inference step of a LLaMA-,
// GPT-, BERT-, ViT- or DeepSeek-V3-like model computes, with FLOPs and bytes of each op, to be
// planned and simulated (the ops are kKernel: nothing here runs a model).
#pragma once

#include <string>
#include <string_view>

#include "headrace/ir/rules.h"

namespace headrace {

enum class StepFamily : uint8_t { kLlama, kGpt, kBert, kVit, kMoe };
enum class StepPhase : uint8_t { kTrain, kPrefill, kDecode };

// Keys of the JSON form are the member names; see docs/guide/workload.md.
struct StepConfig {
  std::string name;
  StepFamily family = StepFamily::kLlama;
  StepPhase phase = StepPhase::kTrain;
  int64_t layers = 0, hidden = 0, heads = 0, kv_heads = 0, head_dim = 0, ffn = 0, vocab = 0;
  int64_t batch = 1, sequence = 0;   // tokens a sequence; kDecode: positions in the cache
  // kMoe: experts a layer, those a token goes to, shared ones, width of one, dense layers at the
  // start; multi-head latent attention when kv_rank > 0 (DeepSeek-V3, arXiv 2412.19437).
  int64_t experts = 0, active_experts = 0, shared_experts = 0, expert_ffn = 0, dense_layers = 0;
  int64_t q_rank = 0, kv_rank = 0, rope_dim = 0, v_head_dim = 0;
  int64_t image_tokens = 0;          // kVit: patches and the class token
  bool flash_attention = true;       // false: the scores are an activation
  bool gated_ffn = true;             // kGpt, kBert, kVit: false
  bool tied_embeddings = false;
  DType weight_dtype = DType::kBF16;
  DType activation_dtype = DType::kBF16;
  // kTrain: bytes of optimizer state a parameter (AdamW with f32 master weights: 12), and whether
  // gradients are kept in f32.
  int64_t optimizer_bytes = 12;
  bool f32_gradients = false;
  // Degree of parallelism: this many devices share weights, optimizer state and experts evenly.
  int64_t shards = 1;
};

Result<StepConfig> parse_step_config(std::string_view json);  // {"step": {...}}
Result<Workload> build_step(const StepConfig& config);

}  // namespace headrace
