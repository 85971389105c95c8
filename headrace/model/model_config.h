// ModelConfig: what a model computes, read from its metadata; the same for both file
// formats.
//
// Vocabulary: a local layer attends to the last `window` positions and uses `rope_local`;
// every other layer is global. Norms may hold w or 1 + w (see norm_add_one), Q and K rows
// may be stored for either way of pairing dimensions (see rope_half_split): both are
// facts of the file, not of the family.
#pragma once

#include <string>
#include <vector>

#include "headrace/model/model_file.h"
#include "headrace/model/rope.h"

namespace headrace {

enum class Family : uint8_t { kLlama, kMistral, kQwen2, kQwen3, kGemma3 };
const char* name_of(Family family);

enum class Activation : uint8_t { kSilu = 0, kGeluTanh = 1 };

struct ModelConfig {
  Family family = Family::kLlama;
  std::string architecture;  // as the file says it: "llama", "gemma3_text"
  int64_t layers = 0;
  int64_t embd = 0;
  int64_t ff = 0;
  int64_t heads = 0;
  int64_t kv_heads = 0;
  int64_t head_dim = 0;
  int64_t vocab = 0;            // rows of the embedding table
  int64_t trained_context = 0;  // positions; running beyond it deserves a warning
  double rms_eps = 1e-5;

  RopeConfig rope;        // of global layers
  RopeConfig rope_local;  // of local layers; equal to `rope` where a family has one table
  bool rope_half_split = false;  // pairs (i, i + d/2); else (2i, 2i + 1)

  int64_t window = 0;       // of local layers, in positions; 0 when there are none
  std::vector<bool> local;  // by layer; empty when there are none

  bool qkv_bias = false;         // the family demands them; others may have them too
  bool qk_norm = false;          // q and k are normalised, a head at a time
  bool post_norms = false;       // attention and feed-forward outputs are normalised too
  bool norm_add_one = false;     // norms hold w of x * (1 + w)
  bool tied_embeddings = false;  // the output head is the embedding table
  double embedding_scale = 1;
  double attention_scale = 0;    // q . k is multiplied by it
  double attention_softcap = 0;  // 0: none
  double logit_softcap = 0;      // 0: none
  Activation activation = Activation::kSilu;

  bool is_local(int64_t layer) const {
    return window > 0 && !local.empty() && local[static_cast<size_t>(layer)];
  }
};

// Reads and checks every field; reads the values of rope_freqs.weight when there is one.
// kUnsupported names the architecture or the feature that is not supported; kBadFile
// names the key or tensor that is missing, of another type, or inconsistent with the
// others.
Result<ModelConfig> read_config(const ModelFile& model);

// Reads a small F32, F16 or BF16 weight (at most 16 MiB) as floats, in row order.
Result<std::vector<float>> read_small_weight(const ModelFile& model,
                                             const WeightInfo& weight);

}  // namespace headrace
