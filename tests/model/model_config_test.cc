#include "headrace/model/model_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "tests/model/scratch.h"
#include "tests/model/tiny_models.h"

namespace headrace {
namespace {

using testing::GgufWriter;
using ::testing::HasSubstr;
using testing::Scratch;
using testing::TinyShape;

Result<ModelConfig> config_of(const GgufWriter& writer) {
  Scratch scratch;
  writer.write(scratch.path("m.gguf"));
  HR_ASSIGN(const ModelFile model, open_model(scratch.path("m.gguf")));
  return read_config(model);
}

TinyShape shape_of(const std::string& architecture) {
  TinyShape shape;
  shape.architecture = architecture;
  return shape;
}

// config.json of a tiny model with some members replaced, beside its weights.
Result<ModelConfig> config_of_folder(const TinyShape& shape,
                                     const nlohmann::json& changes) {
  Scratch scratch;
  write_tiny_folder(shape, scratch.folder());
  auto config = nlohmann::json::parse(tiny_config_json(shape));
  config.update(changes);
  testing::write_file(scratch.path("config.json"), config.dump());
  HR_ASSIGN(const ModelFile model, open_model(scratch.folder()));
  return read_config(model);
}

void expect_refused(const Result<ModelConfig>& config, Code code,
                    const std::string& part) {
  ASSERT_FALSE(config.ok()) << "accepted; expected: " << part;
  EXPECT_EQ(config.status().code(), code) << config.status().message();
  EXPECT_THAT(config.status().message(), HasSubstr(part));
}

TEST(ModelConfig, LlamaFilesPairNeighboursAndOthersHalves) {
  const auto llama = config_of(tiny_gguf(TinyShape{}));
  ASSERT_TRUE(llama.ok()) << llama.status().message();
  EXPECT_EQ(llama->family, Family::kLlama);
  EXPECT_EQ(llama->layers, 2);
  EXPECT_EQ(llama->embd, 64);
  EXPECT_EQ(llama->ff, 96);
  EXPECT_EQ(llama->heads, 4);
  EXPECT_EQ(llama->kv_heads, 2);
  EXPECT_EQ(llama->head_dim, 16);
  EXPECT_EQ(llama->vocab, 80);
  EXPECT_EQ(llama->trained_context, 512);
  EXPECT_TRUE(llama->tied_embeddings);
  EXPECT_FALSE(llama->rope_half_split);
  EXPECT_FALSE(llama->qkv_bias);
  EXPECT_FLOAT_EQ(static_cast<float>(llama->rms_eps), 1e-5f);
  for (const char* name : {"qwen2", "qwen3", "gemma3"}) {
    const auto other = config_of(tiny_gguf(shape_of(name)));
    ASSERT_TRUE(other.ok()) << other.status().message();
    EXPECT_TRUE(other->rope_half_split) << name;
  }
}

TEST(ModelConfig, Gemma3FilesHaveTwoRopeBasesAndWholeNorms) {
  TinyShape shape = shape_of("gemma3");
  shape.window = 32;
  shape.layers = 7;
  GgufWriter w = tiny_gguf(shape);
  w.text("gemma3.rope.scaling.type", "linear");
  w.f32("gemma3.rope.scaling.factor", 8);
  const auto c = config_of(w);
  ASSERT_TRUE(c.ok()) << c.status().message();
  EXPECT_EQ(c->rope.base, 1e6);
  EXPECT_EQ(c->rope.scaling, RopeScaling::kLinear);
  EXPECT_EQ(c->rope.factor, 8);
  EXPECT_EQ(c->rope_local.base, 1e4);
  EXPECT_EQ(c->rope_local.scaling, RopeScaling::kNone);
  EXPECT_EQ(c->window, 32);
  EXPECT_TRUE(c->is_local(0));
  EXPECT_FALSE(c->is_local(5));
  EXPECT_TRUE(c->is_local(6));
  EXPECT_FALSE(c->norm_add_one);
  EXPECT_TRUE(c->post_norms && c->qk_norm);
  EXPECT_EQ(c->embedding_scale, 8);
  EXPECT_EQ(c->activation, Activation::kGeluTanh);
}

TEST(ModelConfig, RopeFreqsOfTheFileAreRead) {
  GgufWriter w = tiny_gguf(TinyShape{});
  std::string data;
  for (int i = 0; i < 8; ++i) testing::put<float>(&data, 1.0f + static_cast<float>(i));
  w.tensor("rope_freqs.weight", testing::kGgmlF32, {8}, data);
  const auto c = config_of(w);
  ASSERT_TRUE(c.ok()) << c.status().message();
  EXPECT_EQ(c->rope.divisors, (std::vector<float>{1, 2, 3, 4, 5, 6, 7, 8}));
  GgufWriter wrong = tiny_gguf(TinyShape{});
  wrong.tensor("rope_freqs.weight", testing::kGgmlF32, {4}, data.substr(0, 16));
  expect_refused(config_of(wrong), Code::kBadFile, "4 rope divisors for 8 pairs");
}

TEST(ModelConfig, YarnKeysAreRead) {
  GgufWriter w = tiny_gguf(shape_of("qwen2"));
  w.text("qwen2.rope.scaling.type", "yarn");
  w.f32("qwen2.rope.scaling.factor", 4);
  w.u32("qwen2.rope.scaling.original_context_length", 128);
  const auto c = config_of(w);
  ASSERT_TRUE(c.ok()) << c.status().message();
  EXPECT_EQ(c->rope.scaling, RopeScaling::kYarn);
  EXPECT_EQ(c->rope.original_context, 128);
  EXPECT_NEAR(rope_mscale(c->rope), 0.1 * std::log(4.0) + 1, 1e-9);
}

TEST(ModelConfig, RefusesWhatItDoesNotSupportByName) {
  GgufWriter w;
  w.text("general.architecture", "mamba");
  expect_refused(config_of(w), Code::kUnsupported,
                 "architecture 'mamba' is not supported");
  w = tiny_gguf(TinyShape{});
  w.u32("llama.expert_count", 8);
  expect_refused(config_of(w), Code::kUnsupported, "llama.expert_count");
  w = tiny_gguf(TinyShape{});
  w.u32("llama.rope.dimension_count", 8);
  expect_refused(config_of(w), Code::kUnsupported, "partial rotation");
  w = tiny_gguf(TinyShape{});
  w.text("llama.rope.scaling.type", "longrope");
  expect_refused(config_of(w), Code::kUnsupported, "'longrope'");
  w = tiny_gguf(TinyShape{});
  w.boolean("llama.attention.causal", false);
  expect_refused(config_of(w), Code::kUnsupported, "only causal attention");
}

TEST(ModelConfig, RefusesKeysThatAreMissingWrongOrOutOfRange) {
  GgufWriter w;
  w.text("general.name", "x");
  expect_refused(config_of(w), Code::kBadFile, "'general.architecture' is missing");
  w = GgufWriter();
  w.text("general.architecture", "llama");
  expect_refused(config_of(w), Code::kBadFile, "'llama.block_count' is missing");
  w.text("llama.block_count", "2");
  expect_refused(config_of(w), Code::kBadFile, "'llama.block_count' is a string");
  w = GgufWriter();
  w.text("general.architecture", "llama");
  w.u32("llama.block_count", 4000000000u);
  expect_refused(config_of(w), Code::kBadFile, "not within 1 to 10000");
  TinyShape shape;
  shape.kv_heads = 3;
  expect_refused(config_of(tiny_gguf(shape)), Code::kBadFile, "not a multiple of 3");
  w = tiny_gguf(TinyShape{});
  w.f32("llama.rope.freq_base", -1);
  expect_refused(config_of(w), Code::kBadFile, "the rope base is -1");
  w = tiny_gguf(TinyShape{});
  w.f32("llama.rope.freq_base", NAN);
  expect_refused(config_of(w), Code::kBadFile, "not a finite number");
}

TEST(ModelConfig, HeadsThatDifferBetweenLayersAreRefused) {
  const auto with = [](std::vector<int32_t> heads) {
    TinyShape shape;
    GgufWriter w;
    w.text("general.architecture", "llama");
    w.u32("llama.block_count", 2);
    w.u32("llama.embedding_length", 64);
    w.u32("llama.feed_forward_length", 96);
    w.u32("llama.context_length", 512);
    w.f32("llama.attention.layer_norm_rms_epsilon", 1e-5f);
    w.array<int32_t>("llama.attention.head_count", testing::kGgufI32, heads);
    w.tensor("token_embd.weight", testing::kGgmlF32, {64, 80},
             std::string(80 * 256, '\0'));
    return config_of(w);
  };
  const auto same = with({4, 4});
  ASSERT_TRUE(same.ok()) << same.status().message();
  EXPECT_EQ(same->heads, 4);
  EXPECT_EQ(same->kv_heads, 4);
  expect_refused(with({4, 2}), Code::kUnsupported, "differs between layers");
}

TEST(ModelConfig, HuggingFaceFoldersGiveTheSameConfigButForConventions) {
  for (const char* name : {"llama", "qwen2", "qwen3", "gemma3"}) {
    TinyShape shape = shape_of(name);
    if (shape.architecture == "gemma3") shape.window = 32;
    const auto gguf = config_of(tiny_gguf(shape));
    const auto folder = config_of_folder(shape, nlohmann::json::object());
    ASSERT_TRUE(gguf.ok()) << gguf.status().message();
    ASSERT_TRUE(folder.ok()) << name << ": " << folder.status().message();
    EXPECT_EQ(folder->family, gguf->family);
    EXPECT_EQ(folder->head_dim, gguf->head_dim);
    EXPECT_EQ(folder->kv_heads, gguf->kv_heads);
    EXPECT_EQ(folder->vocab, gguf->vocab);
    EXPECT_EQ(folder->rope, gguf->rope) << name;
    EXPECT_EQ(folder->rope_local, gguf->rope_local) << name;
    EXPECT_EQ(folder->window, gguf->window) << name;
    EXPECT_EQ(folder->local, gguf->local) << name;
    EXPECT_DOUBLE_EQ(folder->attention_scale, gguf->attention_scale) << name;
    EXPECT_EQ(folder->embedding_scale, gguf->embedding_scale) << name;
    EXPECT_EQ(folder->activation, gguf->activation) << name;
    EXPECT_TRUE(folder->rope_half_split);
    EXPECT_EQ(folder->norm_add_one, shape.architecture == "gemma3");
  }
}

TEST(ModelConfig, RopeScalingOfConfigJsonIsReadInBothSpellings) {
  const nlohmann::json llama3 = {{"rope_type", "llama3"},
                                 {"factor", 8.0},
                                 {"low_freq_factor", 1.0},
                                 {"high_freq_factor", 4.0},
                                 {"original_max_position_embeddings", 256}};
  nlohmann::json nested = llama3;
  nested["rope_theta"] = 5e5;
  for (const nlohmann::json& changes :
       {nlohmann::json{{"rope_theta", 5e5}, {"rope_scaling", llama3}},
        nlohmann::json{{"rope_parameters", nested}}}) {
    const auto c = config_of_folder(TinyShape{}, changes);
    ASSERT_TRUE(c.ok()) << c.status().message();
    EXPECT_EQ(c->rope.scaling, RopeScaling::kLlama3);
    EXPECT_EQ(c->rope.base, 5e5);
    EXPECT_EQ(c->rope.original_context, 256);
    EXPECT_EQ(c->rope.factor, 8);
  }
  const auto old = config_of_folder(
      TinyShape{}, {{"rope_scaling", {{"type", "linear"}, {"factor", 2.0}}}});
  ASSERT_TRUE(old.ok()) << old.status().message();
  EXPECT_EQ(old->rope.scaling, RopeScaling::kLinear);
  expect_refused(
      config_of_folder(TinyShape{},
                       {{"rope_scaling", {{"type", "dynamic"}, {"factor", 2.0}}}}),
      Code::kUnsupported, "'dynamic'");
}

TEST(ModelConfig, Gemma3ConfigsSayLayersByListOrByPattern) {
  TinyShape shape = shape_of("gemma3");
  shape.layers = 3;
  shape.window = 32;
  const auto pattern = config_of_folder(shape, {{"sliding_window_pattern", 2}});
  ASSERT_TRUE(pattern.ok()) << pattern.status().message();
  EXPECT_EQ(pattern->local, (std::vector<bool>{true, false, true}));
  const auto list = config_of_folder(
      shape,
      {{"layer_types", {"full_attention", "sliding_attention", "full_attention"}},
       {"rope_parameters",
        {{"full_attention",
          {{"rope_theta", 2e6}, {"rope_type", "linear"}, {"factor", 8.0}}},
         {"sliding_attention", {{"rope_theta", 2e4}, {"rope_type", "default"}}}}}});
  ASSERT_TRUE(list.ok()) << list.status().message();
  EXPECT_EQ(list->local, (std::vector<bool>{false, true, false}));
  EXPECT_EQ(list->rope.base, 2e6);
  EXPECT_EQ(list->rope.factor, 8);
  EXPECT_EQ(list->rope_local.base, 2e4);
  expect_refused(config_of_folder(shape, {{"layer_types", {"full_attention"}}}),
                 Code::kBadFile, "1 entries for 3 layers");
}

TEST(ModelConfig, MistralsWindowIsNoneOnlyWhenTheFileSaysNull) {
  TinyShape shape = shape_of("mistral");
  const auto null = config_of_folder(shape, nlohmann::json::object());
  ASSERT_TRUE(null.ok()) << null.status().message();
  EXPECT_EQ(null->family, Family::kMistral);
  EXPECT_EQ(null->window, 0);
  const auto set = config_of_folder(shape, {{"sliding_window", 64}});
  ASSERT_TRUE(set.ok());
  EXPECT_EQ(set->window, 64);
  EXPECT_TRUE(set->is_local(0) && set->is_local(1));
}

TEST(ModelConfig, ConfigJsonRefusesWhatIsNotSupported) {
  expect_refused(config_of_folder(TinyShape{}, {{"model_type", "mixtral"}}),
                 Code::kUnsupported, "model_type 'mixtral'");
  expect_refused(config_of_folder(TinyShape{},
                                  {{"quantization_config", {{"quant_method", "gptq"}}}}),
                 Code::kUnsupported, "quantization_config");
  expect_refused(config_of_folder(TinyShape{}, {{"hidden_act", "relu"}}),
                 Code::kUnsupported, "'relu'");
  expect_refused(config_of_folder(TinyShape{}, {{"hidden_size", "64"}}), Code::kBadFile,
                 "'hidden_size' is a string");
  expect_refused(config_of_folder(TinyShape{}, {{"hidden_size", 32}}), Code::kBadFile,
                 "rows of 64, not 32");
  expect_refused(config_of_folder(TinyShape{}, {{"partial_rotary_factor", 0.5}}),
                 Code::kUnsupported, "partial_rotary_factor");
}

}  // namespace
}  // namespace headrace
