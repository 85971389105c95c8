// Steps of known architectures, built from a config: what a training or inference step of a LLaMA-,
// GPT-, BERT-, ViT- or DeepSeek-V3-like model computes, with FLOPs and bytes of each op, to be
// planned and simulated (the ops are kKernel: nothing here runs a model).
//
// What a step holds
//   kTrain    forward, backward, one optimizer op a weight at the end. Weights and optimizer
//             state are kState. Saved for the backward pass is what its formulas read: inputs of
//             products, norms and activations, q/k/v, the attention's output and its log-sums
//             (FlashAttention-2, arXiv 2307.08691); nothing is recomputed: that is the planner's
//             choice. No dropout, no clipping of the global norm (which would need all gradients
//             first).
//   kPrefill  forward of batch x sequence tokens; keys and values are written to KV segments.
//   kDecode   forward of one token a sequence against `sequence` cached positions, attended a
//             segment at a time and combined (flash decoding), so that segments need not all be
//             on the device.
// Both inference phases are cyclic; their weights are kWeight: file 0 holds them one after another.
//
// Assumed: a matrix product takes 2 rows cols depth FLOPs and its gradients twice that; attention's
// backward pass 2.5 times its forward one when the scores are not kept, else twice; experts are
// balanced; collective communication is not modelled.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "headrace/ir/rules.h"

namespace headrace {

enum class StepFamily : uint8_t { kLlama, kGpt, kBert, kVit, kMoe };
enum class StepPhase : uint8_t { kTrain, kPrefill, kDecode };
const char* name_of(StepFamily family);
const char* name_of(StepPhase phase);

// Keys of the JSON form are the member names; see docs/guide/workload.md.
struct StepConfig {
  std::string name;
  StepFamily family = StepFamily::kLlama;
  StepPhase phase = StepPhase::kTrain;
  int64_t layers = 0, hidden = 0, heads = 0, kv_heads = 0, head_dim = 0, ffn = 0;
  int64_t vocab = 0;                // kVit: classes
  int64_t positions = 0;            // rows of a learned position table; 0: none
  int64_t batch = 1, sequence = 0;  // tokens a sequence; kDecode: positions in the cache
  // kMoe: experts a layer, those a token goes to, shared ones, width of one, dense layers at the
  // start; multi-head latent attention when kv_rank > 0 (DeepSeek-V3, arXiv 2412.19437).
  int64_t experts = 0, active_experts = 0, shared_experts = 0, expert_ffn = 0, dense_layers = 0;
  int64_t q_rank = 0, kv_rank = 0, rope_dim = 0, v_head_dim = 0;
  int64_t image_tokens = 0;     // kVit: patches and the class token
  int64_t patch_dim = 0;        // kVit: values of one patch
  int64_t kv_segment = 4096;    // inference: positions of one KV tensor
  bool flash_attention = true;  // false: the scores are an activation
  bool gated_ffn = true;        // kGpt, kBert, kVit: false
  bool tied_embeddings = false;
  DType weight_dtype = DType::kBF16;
  DType activation_dtype = DType::kBF16;
  // kTrain: bytes of optimizer state a parameter (AdamW with f32 master weights: 12), and whether
  // gradients are kept in f32.
  int64_t optimizer_bytes = 12;
  bool f32_gradients = false;
  // Degree of parallelism: this many devices share weights, gradients, optimizer state and experts
  // evenly, each with `batch` sequences of its own. Bytes of those are divided by it, FLOPs are
  // not.
  int64_t shards = 1;
};

// The presets, by name: the published shapes with batch 1.
const std::vector<std::string>& step_presets();
// kUsage with the known names for any other.
Result<StepConfig> step_preset(std::string_view name);

// {"step": {"preset": "llama-8b", "batch": 2, ...}}: a preset (or none) and what differs from it.
// kBadFile with the key's name.
Result<StepConfig> parse_step_config(std::string_view json);
// kUsage with the member's name for a config that cannot be; kUnsupported for a phase that the
// family does not have. Linear in the number of ops.
Result<Workload> build_step(const StepConfig& config);

}  // namespace headrace
