// TrainConfig: what `headrace train CONFIG.json` reads. Keys of the JSON are the member names,
// nested as the structs are; an unknown key is refused. docs/guide/training.md explains each.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "headrace/base/status.h"
#include "headrace/base/types.h"

namespace headrace {

enum class ModelFamily : uint8_t { kLlama, kQwen2, kGpt2 };
enum class Precision : uint8_t {
  kF32,
  kBf16,            // compute in bf16, f32 masters
  kBf16Stochastic,  // bf16 parameters without masters, rounded stochastically
  kF16,             // compute in f16, f32 masters, gradients scaled (OptimizerConfig::loss_scale)
};
constexpr double kMostLossScale = 0x1p24;
const char* name_of(ModelFamily family);
const char* name_of(Precision precision);

// A model from scratch. With `from` (a GGUF file or a Hugging Face folder) everything but `dropout`
// is read from there.
struct TrainModelConfig {
  std::string from;
  ModelFamily family = ModelFamily::kLlama;
  int64_t layers = 0, hidden = 0, heads = 0, kv_heads = 0, head_dim = 0, ffn = 0, vocab = 0;
  int64_t positions = 0;  // GPT-2: rows of the position table; else the longest sequence
  bool tied_embeddings = false;
  double norm_eps = 1e-5;
  double rope_base = 10000;
  double init_std = 0.02;  // normal, of all matrices; residual projections / sqrt(2 layers)
  double dropout = 0;
};

struct DataConfig {
  std::vector<std::string> files;       // text (UTF-8) or token shards; relative to the config
  std::vector<std::string> eval_files;  // empty: no evaluation
  // "text", or little-endian "u16" / "u32" tokens.
  std::string format = "text";
  // Of text: "bytes" (256 tokens), a GGUF file, or a folder with tokenizer.json; empty: model.from.
  std::string tokenizer;
};

struct ParameterGroup {
  std::string match;  // parameter names that contain it; the first group that matches wins
  double rate_scale = 1;
  double weight_decay = -1;  // below 0: the optimizer's
  bool frozen = false;
};

struct OptimizerConfig {
  std::string kind = "adamw";  // or "sgd"
  double rate = 3e-4;
  double beta1 = 0.9, beta2 = 0.95, eps = 1e-8;
  double weight_decay = 0.1;          // of matrices; norms and biases have none
  double momentum = 0.9;              // sgd
  double clip_norm = 0;               // of the global norm; 0: no clipping
  std::string schedule = "constant";  // "linear", "cosine": from rate to rate * final_scale
  // f16 only: what gradients are multiplied by at first. A power of two from 1 to kMostLossScale, so
  // that their bits stay; halved by a step that overflows, doubled after 2000 that do not.
  double loss_scale = 65536;
  int64_t warmup_steps = 0;
  double final_scale = 0.1;
  std::vector<ParameterGroup> groups;
};

struct LoraConfig {
  int64_t rank = 0;  // 0: all parameters are trained
  double alpha = 16;
  std::vector<std::string> targets = {"q_proj", "v_proj"};
};

struct TrainConfig {
  std::string name;    // of the config, for people
  std::string folder;  // of the config file; paths are relative to it. Not a JSON key
  TrainModelConfig model;
  DataConfig data;
  OptimizerConfig optimizer;
  LoraConfig lora;
  Precision precision = Precision::kF32;
  int64_t batch = 1;         // sequences of one micro-batch
  int64_t sequence = 0;      // tokens a sequence
  int64_t accumulation = 1;  // micro-batches a step
  int64_t steps = 0;
  uint64_t seed = 1;
  std::string out;               // RUN folder
  int64_t checkpoint_every = 0;  // steps; 0: at the end only
  int64_t keep_checkpoints = 1;
  int64_t eval_every = 0;       // steps; 0: never
  std::string on_nan = "stop";  // or "skip": a step whose gradients are not finite changes nothing
  bool recompute = true;        // false: every activation is kept or moved
};

// kIo when the file cannot be read; kBadFile with key and value for everything that cannot be,
// NaN and negative rates included.
Result<TrainConfig> read_train_config(const std::string& path);
// The same from text; `folder` is what paths are relative to.
Result<TrainConfig> parse_train_config(std::string_view json, const std::string& folder);
// A form that parse_train_config reads back to the same config.
std::string to_json(const TrainConfig& config);

// A path of the config as this process can open it: relative ones are taken from config.folder.
std::string path_of(const TrainConfig& config, const std::string& path);
// The same config, meaning the same files wherever it is read: what a checkpoint should hold.
TrainConfig with_absolute_paths(const TrainConfig& config);

// Learning rate at optimizer step `step`, from 1, before a group's scale.
double rate_at(const TrainConfig& config, int64_t step);

}  // namespace headrace
