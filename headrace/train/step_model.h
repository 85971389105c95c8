// StepModel: what a training step computes, and the parameters that it has.
//
// Vocabulary
//   parameter   a weight by its Hugging Face name, [rows, cols]; a product's is [outputs, inputs].
//               LoRA's are "model.layers.0.self_attn.q_proj.lora_A.weight" [rank, in] and
//               "... .lora_B.weight" [out, rank] (PEFT puts "base_model.model." before them).
//   tile        a run of rows of a parameter that is a tensor of its own: tables (embedding,
//               output) are cut into tiles of at most kTableTile bytes, all others are one tile.
//               Tensor names are the parameter's, with ":0", ":1" ... where tiles are several.
//   transposed  GPT-2's files hold the weights of products as [inputs, outputs] (its Conv1D); ours
//               are [outputs, inputs] like those of all others, under the same name: transpose on
//               import and on export.
//
// Of each trainable tile the graph has, beside the tensor that the products read (kState, class
// weight):  NAME.master f32 (only with kBf16 and kF16, and not of what is f32 anyway),  NAME.m
// and NAME.v f32 (AdamW) or NAME.m (SGD with momentum), all kState of class optimizer,  and
// NAME.grad f32, an activation of class gradient. Frozen tiles are kWeight: file 0 holds them one
// after another at page boundaries, see frozen_bytes().
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "headrace/ir/graph.h"
#include "headrace/train/train_config.h"

namespace headrace {

constexpr Bytes kTableTile = 16 * kMiB;

struct StepModel {
  std::string name;
  ModelFamily family = ModelFamily::kLlama;
  int64_t layers = 0, hidden = 0, heads = 0, kv_heads = 0, head_dim = 0, ffn = 0, vocab = 0;
  int64_t positions = 0;            // kGpt2: rows of the position table; others: not used
  bool tied_embeddings = false;     // kGpt2: must be
  bool qkv_bias = false;            // llama-like: q, k and v have biases (Qwen2)
  std::vector<float> inv_freq;      // llama-like: [head_dim / 2], radians a position
  bool rope_half_split = true;      // pairs (i, i + d/2), as Hugging Face's weights want
  double norm_eps = 1e-5;
  double dropout = 0;               // of embeddings, attention and feed-forward outputs
  Precision precision = Precision::kF32;
  LoraConfig lora;                  // rank > 0: everything but LoRA's parameters is frozen
  double lora_dropout = 0;          // of what LoRA's first product reads
  std::vector<std::string> frozen;  // parameters whose name contains one of these
  Bytes table_tile = kTableTile;

  bool gpt2() const { return family == ModelFamily::kGpt2; }
  DType compute_dtype() const {
    if (precision == Precision::kF16) return DType::kF16;
    return precision == Precision::kF32 ? DType::kF32 : DType::kBF16;
  }
};

// kUsage with the member's name and value for a model that cannot be; kUnsupported for one that is
// not supported (untied GPT-2).
Status check(const StepModel& model);

enum class ParameterKind : uint8_t { kTable, kMatrix, kVector, kLoraA, kLoraB };

// One tile.
struct Parameter {
  std::string name;                  // of the parameter
  std::string tensor;                // of this tile
  ParameterKind kind = ParameterKind::kMatrix;
  int64_t rows = 0, cols = 0;        // of the whole parameter, as we hold it
  int64_t row_begin = 0, row_count = 0;  // of this tile
  DType dtype = DType::kF32;         // of what the products read; vectors are f32
  bool trainable = true;
  bool transposed = false;           // a file holds [cols, rows]
  FileExtent frozen;                 // of a tile that is not trainable

  // Set by build_train_step(); invalid: there is none.
  TensorId param, master, m, v, gradient;
  int64_t group = 0;                 // whose learning rate (StepRows::rates) it has
  double weight_decay = 0;
};

// Appends the tiles of a parameter whose name, kind, sizes and dtype are set: runs of rows of at
// most `most_bytes` as f32, since a tile's gradient is f32 whatever the table is.
void add_tiles(Parameter parameter, Bytes most_bytes, std::vector<Parameter>* out);

// All tiles in the order of the model: embeddings, layers, last norm, output.
// Precondition: check(model) is ok.
std::vector<Parameter> parameters_of(const StepModel& model);
// Bytes of the file that the extents of frozen tiles lie in; 0: nothing is frozen.
Bytes frozen_bytes(const std::vector<Parameter>& parameters);
// Elements of all parameters together; of those that are trained.
int64_t element_count(const std::vector<Parameter>& parameters);
int64_t trainable_count(const std::vector<Parameter>& parameters);

// Name of parameter `what` of layer `layer`: (family, 3, "self_attn.q_proj.weight").
std::string layer_name(const StepModel& model, int64_t layer, std::string_view what);

}  // namespace headrace
