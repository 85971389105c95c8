// Steps built from configs: parameter counts as published, FLOPs, what is kept for backward.
#include "headrace/model/step_graph.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "headrace/model/workload.h"

namespace headrace {
namespace {

using ::testing::HasSubstr;

Workload built(const StepConfig& config) {
  auto w = build_step(config);
  EXPECT_TRUE(w.ok()) << config.name << ": " << w.status().message();
  return w.ok() ? std::move(w).value() : Workload{};
}

StepConfig preset(const std::string& name) {
  auto c = step_preset(name);
  EXPECT_TRUE(c.ok());
  return c.ok() ? std::move(c).value() : StepConfig{};
}

double flops(const Graph& g) {
  double sum = 0;
  for (const Op& op : g.ops) sum += op.attr(Attr::kFlops);
  return sum;
}

Bytes bytes_of(const Graph& g, DataClass data_class) {
  Bytes sum = 0;
  for (const Tensor& t : g.tensors) sum += t.data_class == data_class ? t.bytes : 0;
  return sum;
}

// Elements of all tensors of class weight: this device's share.
int64_t parameter_count(const Workload& workload) {
  int64_t count = 0;
  for (const Tensor& t : workload.graph.tensors) {
    if (t.data_class == DataClass::kWeight) count += t.rows * t.cols;
  }
  return count;
}

TEST(StepGraph, ParameterCountsAreThosePublished) {
  const auto near = [](const char* name, double published, double share) {
    const auto count = static_cast<double>(parameter_count(built(preset(name))));
    EXPECT_NEAR(count / published, 1, share) << name << " " << count;
  };
  near("llama-8b", 8.03e9, 0.001);
  near("deepseek-v3", 671e9, 0.001);
  near("gpt2", 124.44e6, 0.001);
  near("vit-b16", 86.57e6, 0.001);
  near("bert-base", 110e6, 0.005);
}

TEST(StepGraph, EveryPresetInEveryPhaseItHasIsAValidGraphAndRoundTrips) {
  for (const std::string& name : step_presets()) {
    for (const StepPhase phase : {StepPhase::kTrain, StepPhase::kPrefill, StepPhase::kDecode}) {
      StepConfig c = preset(name);
      c.phase = phase;
      const auto w = build_step(c);
      const bool encoder = c.family == StepFamily::kBert || c.family == StepFamily::kVit;
      if (encoder && phase != StepPhase::kTrain) {
        ASSERT_FALSE(w.ok());
        EXPECT_EQ(w.status().code(), Code::kUnsupported);
        continue;
      }
      ASSERT_TRUE(w.ok()) << name << ": " << w.status().message();
      const Status valid = verify(w->graph);
      EXPECT_TRUE(valid.ok()) << name << ": " << valid.message();
      EXPECT_EQ(w->cyclic, phase != StepPhase::kTrain);
      const auto back = parse_workload(to_workload_json(*w));
      ASSERT_TRUE(back.ok()) << name << ": " << back.status().message();
      EXPECT_EQ(back->graph, w->graph);
    }
  }
}

TEST(StepGraph, TrainingTakesAboutSixFlopsAParameterAndToken) {
  StepConfig c = preset("llama-8b");
  c.sequence = 2048;
  c.batch = 2;
  const Workload w = built(c);
  // Without the embedding table, which is only looked up; plus attention: per token and layer
  // 2 (qk + av) x length / 2 x heads x head_dim x 2 FLOPs, and 2.5 times that backward.
  const double n = static_cast<double>(parameter_count(w)) - 128256.0 * 4096;
  const double tokens = 2 * 2048;
  const double attention = 3.5 * 32 * (2.0 * 2048 / 2 * 2 * 32 * 128);
  EXPECT_NEAR(flops(w.graph) / (tokens * (6 * n + attention)), 1, 0.01);
}

TEST(StepGraph, DeepSeekTakesThirtySevenBillionActiveParametersAToken) {
  StepConfig c = preset("deepseek-v3");
  c.phase = StepPhase::kDecode;
  c.sequence = 1;  // next to no attention
  const double per_token = flops(built(c).graph);
  // 37e9 active of which the embedding table (0.93e9) is looked up.
  EXPECT_NEAR(per_token / (2 * (37e9 - 0.93e9)), 1, 0.03);
}

TEST(StepGraph, ATrainingStepHoldsGradientsOptimizerStateAndSavedActivations) {
  StepConfig c = preset("gpt2");
  c.batch = 4;
  const Workload w = built(c);
  const int64_t n = parameter_count(w);
  EXPECT_EQ(bytes_of(w.graph, DataClass::kWeight), 2 * n);
  EXPECT_EQ(bytes_of(w.graph, DataClass::kOptimizer), 12 * n);
  for (const Op& op : w.graph.ops) {
    if (op.kernel != "AdamW") continue;
    EXPECT_EQ(op.inputs.size(), 1u);
    EXPECT_EQ(op.updates.size(), 2u);
    EXPECT_EQ(w.graph.at(op.inputs[0]).data_class, DataClass::kGradient);
    EXPECT_EQ(w.graph.at(op.inputs[0]).bytes, w.graph.at(op.updates[0]).bytes);
  }
  // Every weight has a gradient and an optimizer op.
  std::set<int32_t> stepped;
  for (const Op& op : w.graph.ops) {
    if (op.kernel == "AdamW") stepped.insert(op.updates[0].value);
  }
  for (size_t t = 0; t < w.graph.tensors.size(); ++t) {
    if (w.graph.tensors[t].data_class != DataClass::kWeight) continue;
    EXPECT_TRUE(stepped.contains(static_cast<int32_t>(t))) << w.graph.tensors[t].name;
  }
}

TEST(StepGraph, GradientsHaveTheShapesOfWhatTheyBelongTo) {
  StepConfig c = preset("deepseek-v3");
  c.layers = 4;
  const Workload w = built(c);
  std::map<std::string, const Tensor*> by_name;
  for (const Tensor& t : w.graph.tensors) by_name[t.name] = &t;
  int gradients = 0;
  for (const Tensor& t : w.graph.tensors) {
    const size_t at = t.name.rfind(".grad");
    if (at == std::string::npos) continue;
    const Tensor* of = by_name[t.name.substr(0, at)];
    ASSERT_NE(of, nullptr) << t.name;
    EXPECT_EQ(t.rows, of->rows) << t.name;
    EXPECT_EQ(t.cols, of->cols) << t.name;
    EXPECT_EQ(t.data_class, DataClass::kGradient);
    ++gradients;
  }
  EXPECT_GT(gradients, 100);
}

TEST(StepGraph, TheScoresAreKeptOnlyWithoutFlashAttention) {
  StepConfig c = preset("bert-base");
  c.batch = 2;
  const Bytes flash = bytes_of(built(c).graph, DataClass::kActivation);
  c.flash_attention = false;
  const Workload w = built(c);
  // Scores and softmax of 12 layers, [2 x 12 x 512, 512] in bf16.
  const Bytes scores = 12 * 2 * (2 * 12 * 512 * 512 * 2);
  const Bytes sums = 12 * 2 * 512 * 12 * 4;
  EXPECT_EQ(bytes_of(w.graph, DataClass::kActivation), flash + scores - sums);
  EXPECT_TRUE(verify(w.graph).ok());
}

TEST(StepGraph, TheCacheOfADecodeStepHasItsBytesInSegments) {
  StepConfig c = preset("llama-8b");
  c.phase = StepPhase::kDecode;
  c.sequence = 10'000;
  c.batch = 3;
  const Workload w = built(c);
  // 32 layers, 3 sequences, 10,000 positions, K and V of 8 heads of 128 in bf16.
  EXPECT_EQ(bytes_of(w.graph, DataClass::kKv), Bytes{32} * 3 * 10'000 * 2 * 8 * 128 * 2);
  int segments = 0;
  for (const Tensor& t : w.graph.tensors) segments += t.slot.layer == 5 ? 1 : 0;
  EXPECT_EQ(segments, 3);
  c = preset("deepseek-v3");
  c.phase = StepPhase::kDecode;
  c.sequence = 4096;
  EXPECT_EQ(bytes_of(built(c).graph, DataClass::kKv), Bytes{61} * 4096 * 576 * 2);
}

TEST(StepGraph, DevicesShareWeightsAndOptimizerState) {
  StepConfig c = preset("deepseek-v3");
  const Workload whole = built(c);
  c.shards = 64;
  const Workload share = built(c);
  EXPECT_NEAR(static_cast<double>(parameter_count(share)),
              static_cast<double>(parameter_count(whole)) / 64, 1e7);
  EXPECT_NEAR(flops(share.graph) / flops(whole.graph), 1, 0.01);
}

TEST(StepGraph, AConfigThatCannotBeIsRefusedByTheNameOfTheMember) {
  const auto refused = [](StepConfig c, const char* member) {
    const auto w = build_step(c);
    ASSERT_FALSE(w.ok()) << member;
    EXPECT_THAT(w.status().message(), HasSubstr(member));
  };
  const StepConfig good = preset("llama-8b");
  StepConfig c = good;
  refused((c.layers = 0, c), "layers");
  refused((c = good, c.hidden = -1, c), "hidden");
  refused((c = good, c.kv_heads = 5, c), "kv_heads");
  refused((c = good, c.sequence = 0, c), "sequence");
  refused((c = good, c.experts = 8, c), "experts is 8");
  refused((c = good, c.kv_rank = 8, c), "kv_rank");
  refused((c = good, c.weight_dtype = DType::kQ4_K, c), "q4_k");
  refused((c = good, c.batch = 1 << 24, c.sequence = int64_t{1} << 32, c), "tokens");
  refused((c = good, c.phase = StepPhase::kDecode, c.layers = 100'000, c.kv_segment = 1, c), "ops");
  refused((c = preset("gpt2"), c.sequence = 2000, c), "sequence");
  refused((c = preset("deepseek-v3"), c.active_experts = 300, c), "active_experts");
}

TEST(StepConfig, AJsonConfigIsAPresetAndWhatDiffers) {
  const auto c = parse_step_config(R"({"step": {"preset": "llama-8b", "phase": "decode", "batch": 4,
      "name": "four", "activation_dtype": "f16", "flash_attention": false}})");
  ASSERT_TRUE(c.ok()) << c.status().message();
  EXPECT_EQ(c->name, "four");
  EXPECT_EQ(c->phase, StepPhase::kDecode);
  EXPECT_EQ(c->batch, 4);
  EXPECT_EQ(c->layers, 32);
  EXPECT_EQ(c->activation_dtype, DType::kF16);
  EXPECT_FALSE(c->flash_attention);
  const auto w = parse_workload(R"({"step": {"preset": "gpt2"}})");
  ASSERT_TRUE(w.ok()) << w.status().message();
  EXPECT_EQ(w->graph.name, "gpt2");
}

TEST(StepConfig, AJsonConfigThatCannotBeIsRefusedByName) {
  const auto refused = [](const char* json, const char* part) {
    const auto c = parse_step_config(json);
    ASSERT_FALSE(c.ok()) << json;
    EXPECT_EQ(c.status().code(), Code::kBadFile);
    EXPECT_THAT(c.status().message(), HasSubstr(part)) << json;
  };
  refused("", "JSON");
  refused("{}", "'step' is missing");
  refused(R"({"step": 3})", "not a JSON object");
  refused(R"({"step": {}})", "family");
  refused(R"({"step": {"preset": "gpt5"}})", "gpt5");
  refused(R"({"step": {"family": "rnn"}})", "rnn");
  refused(R"({"step": {"preset": "gpt2", "phase": "dream"}})", "dream");
  refused(R"({"step": {"preset": "gpt2", "layer": 3}})", "'layer'");
  refused(R"({"step": {"preset": "gpt2", "layers": -3}})", "'layers' is -3");
  refused(R"({"step": {"preset": "gpt2", "layers": 1.5}})", "'layers' is 1.5");
  refused(R"({"step": {"preset": "gpt2", "weight_dtype": "f8"}})", "f8");
}

}  // namespace
}  // namespace headrace
