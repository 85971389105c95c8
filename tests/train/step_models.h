// Small models of every family and steps of them, for tests.
#pragma once

#include <gtest/gtest.h>

#include <cmath>

#include "headrace/train/step.h"

namespace headrace::test {

inline std::vector<float> frequencies(int64_t head_dim) {
  std::vector<float> out;
  for (int64_t i = 0; i < head_dim / 2; ++i) {
    out.push_back(static_cast<float>(
        std::pow(10000.0, -2.0 * static_cast<double>(i) / static_cast<double>(head_dim))));
  }
  return out;
}

inline StepModel small_llama() {
  StepModel m;
  m.name = "small llama";
  m.layers = 2;
  m.hidden = 32;
  m.heads = 4;
  m.kv_heads = 2;
  m.head_dim = 8;
  m.ffn = 48;
  m.vocab = 67;
  m.inv_freq = frequencies(8);
  return m;
}

inline StepModel small_qwen2() {
  StepModel m = small_llama();
  m.name = "small qwen2";
  m.family = ModelFamily::kQwen2;
  m.qkv_bias = true;
  m.tied_embeddings = true;
  m.norm_eps = 1e-6;
  return m;
}

inline StepModel small_gpt2() {
  StepModel m;
  m.name = "small gpt2";
  m.family = ModelFamily::kGpt2;
  m.layers = 2;
  m.hidden = 32;
  m.heads = m.kv_heads = 4;
  m.head_dim = 8;
  m.ffn = 128;
  m.vocab = 67;
  m.positions = 24;
  m.tied_embeddings = true;
  return m;
}

inline std::vector<StepModel> small_models() {
  StepModel tied = small_llama();
  tied.name = "small llama, tied";
  tied.tied_embeddings = true;
  return {small_llama(), tied, small_qwen2(), small_gpt2()};
}

// 4 sequences of 12 tokens.
inline StepShape small_shape(int64_t micro_batches = 1,
                             MicroOrder order = MicroOrder::kBatchMajor) {
  return {.sequences = 4, .sequence = 12, .micro_batches = micro_batches, .order = order};
}

struct StepCase {
  StepModel model;
  OptimizerConfig optimizer;
  StepShape shape;
};

// Every family and precision, clipping, dropout, LoRA (the last one) and frozen parts, a few at a
// time.
inline std::vector<StepCase> step_cases() {
  std::vector<StepCase> out;
  for (const StepModel& model : small_models()) out.push_back({model, {}, small_shape(2)});
  out[1].model.precision = Precision::kBf16;
  out[1].model.dropout = 0.1;
  out[1].shape.micro_batches = 3;
  out[2].model.precision = Precision::kBf16Stochastic;
  out[2].model.frozen = {"layers.0", "norm"};
  out[2].optimizer.kind = "sgd";
  out[3].optimizer.clip_norm = 0.5;
  out.push_back(out[0]);
  out[4].model.name += ", LoRA";
  out[4].model.lora = {.rank = 4, .alpha = 8, .targets = {"q_proj", "v_proj", "down_proj"}};
  out[4].model.lora_dropout = 0.1;
  return out;
}

}  // namespace headrace::test
