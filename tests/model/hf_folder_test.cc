#include "headrace/model/hf_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "headrace/model/build_graph.h"
#include "tests/model/scratch.h"
#include "tests/model/tiny_models.h"

namespace headrace {
namespace {

using ::testing::HasSubstr;
using testing::SafeTensor;
using testing::Scratch;
using testing::TinyShape;

void expect_refused(const std::string& folder, Code code, const std::string& part) {
  const auto model = open_model(folder);
  ASSERT_FALSE(model.ok()) << "accepted; expected: " << part;
  EXPECT_EQ(model.status().code(), code) << model.status().message();
  EXPECT_THAT(model.status().message(), HasSubstr(part));
}

// The tiny model in two files with an index.
void write_shards(const TinyShape& shape, const Scratch& scratch) {
  testing::write_file(scratch.path("config.json"), tiny_config_json(shape));
  const auto all = tiny_safetensors(shape);
  std::vector<SafeTensor> parts[2];
  nlohmann::json map;
  const char* names[] = {"model-00001-of-00002.safetensors",
                         "model-00002-of-00002.safetensors"};
  for (size_t i = 0; i < all.size(); ++i) {
    const size_t part = i < all.size() / 2 ? 0 : 1;
    parts[part].push_back(all[i]);
    map[all[i].name] = names[part];
  }
  for (size_t i = 0; i < 2; ++i) {
    testing::write_file(scratch.path(names[i]), safetensors_bytes(parts[i]));
  }
  const nlohmann::json index = {{"metadata", {{"total_size", 1}}}, {"weight_map", map}};
  testing::write_file(scratch.path("model.safetensors.index.json"), index.dump());
}

TEST(GgufNames, FollowTheFamily) {
  EXPECT_EQ(gguf_name("llama", "model.layers.12.mlp.up_proj.weight"),
            "blk.12.ffn_up.weight");
  EXPECT_EQ(gguf_name("llama", "model.layers.0.self_attn.q_proj.bias"),
            "blk.0.attn_q.bias");
  EXPECT_EQ(gguf_name("llama", "model.layers.0.post_attention_layernorm.weight"),
            "blk.0.ffn_norm.weight");
  EXPECT_EQ(gguf_name("gemma3_text", "model.layers.0.post_attention_layernorm.weight"),
            "blk.0.post_attention_norm.weight");
  EXPECT_EQ(gguf_name("gemma3_text", "model.layers.0.pre_feedforward_layernorm.weight"),
            "blk.0.ffn_norm.weight");
  EXPECT_EQ(gguf_name("gemma3", "language_model.model.embed_tokens.weight"),
            "token_embd.weight");
  EXPECT_EQ(gguf_name("gemma3", "model.language_model.norm.weight"),
            "output_norm.weight");
  EXPECT_EQ(gguf_name("llama", "lm_head.weight"), "output.weight");
  for (const char* other :
       {"", "model.layers.", "model.layers.3", "model.layers.3.weight",
        "model.layers.3.mlp.experts.0.w1.weight", "x.y"}) {
    EXPECT_EQ(gguf_name("llama", other), other);
  }
}

TEST(HfFolder, GivesTheSameGraphAsTheGgufFileOfTheSameModel) {
  for (const char* name : {"llama", "qwen2", "qwen3", "gemma3"}) {
    TinyShape shape;
    shape.architecture = name;
    if (shape.architecture == "gemma3") shape.window = 32;
    Scratch scratch;
    write_tiny_folder(shape, scratch.folder());
    tiny_gguf(shape).write(scratch.path("m.gguf"));
    Graph graphs[2];
    for (size_t i = 0; i < 2; ++i) {
      const auto model = open_model(i == 0 ? scratch.folder() : scratch.path("m.gguf"));
      ASSERT_TRUE(model.ok()) << model.status().message();
      const auto config = read_config(*model);
      ASSERT_TRUE(config.ok()) << config.status().message();
      GraphOptions o;
      o.max_rows = 4;
      o.context = 64;
      o.segment_tokens = 64;
      o.tile_bytes = 4 * kKiB;
      auto graph = build_graph(*model, *config, o);
      ASSERT_TRUE(graph.ok()) << graph.status().message();
      const Status verified = verify(*graph);
      ASSERT_TRUE(verified.ok()) << verified.message();
      graphs[i] = std::move(graph).value();
    }
    ASSERT_EQ(graphs[0].ops.size(), graphs[1].ops.size()) << name;
    for (size_t i = 0; i < graphs[0].ops.size(); ++i) {
      EXPECT_EQ(graphs[0].ops[i].name, graphs[1].ops[i].name);
      EXPECT_EQ(graphs[0].ops[i].inputs, graphs[1].ops[i].inputs);
    }
    for (const Op& op : graphs[0].ops) {
      if (op.kind == OpKind::kRmsNorm || op.kind == OpKind::kRopeKv) {
        EXPECT_EQ(op.iattr(Attr::kAddOne), shape.architecture == "gemma3" ? 1 : 0);
      }
      if (op.kind == OpKind::kRopeKv) {
        EXPECT_EQ(op.iattr(Attr::kRopeHalfSplit), 1);
      }
    }
  }
}

TEST(HfFolder, ShardsWithAnIndexAreOneModel) {
  Scratch scratch;
  write_shards(TinyShape{}, scratch);
  const auto model = open_model(scratch.folder());
  ASSERT_TRUE(model.ok()) << model.status().message();
  EXPECT_EQ(model->paths.size(), 2u);
  EXPECT_EQ(model->weights.size(), tiny_safetensors(TinyShape{}).size());
  EXPECT_EQ(model->weight("blk.1.ffn_down.weight")->source.file, 1);
  EXPECT_EQ(model->weight("token_embd.weight")->source.file, 0);
  // Without the index the same files are found by name.
  std::filesystem::remove(scratch.path("model.safetensors.index.json"));
  const auto again = open_model(scratch.folder());
  ASSERT_TRUE(again.ok()) << again.status().message();
  EXPECT_EQ(again->weights.size(), model->weights.size());
}

TEST(HfFolder, AMissingShardIsNamed) {
  Scratch scratch;
  write_shards(TinyShape{}, scratch);
  std::filesystem::remove(scratch.path("model-00002-of-00002.safetensors"));
  expect_refused(scratch.folder(), Code::kBadFile, "model-00002-of-00002.safetensors");
  std::filesystem::remove(scratch.path("model.safetensors.index.json"));
  expect_refused(scratch.folder(), Code::kBadFile, "part 2 of 2 is missing");
  std::filesystem::remove(scratch.path("model-00001-of-00002.safetensors"));
  expect_refused(scratch.folder(), Code::kBadFile, "no .safetensors file");
}

TEST(HfFolder, AnIndexThatDisagreesWithTheFilesIsRefused) {
  Scratch scratch;
  write_shards(TinyShape{}, scratch);
  const std::string path = scratch.path("model.safetensors.index.json");
  const auto index = [&](const nlohmann::json& map) {
    testing::write_file(path, nlohmann::json{{"weight_map", map}}.dump());
  };
  index({{"model.norm.weight", "model-00001-of-00002.safetensors"}});
  expect_refused(scratch.folder(), Code::kBadFile, "does not say so");
  index({{"x", "../secret.safetensors"}});
  expect_refused(scratch.folder(), Code::kBadFile, "not a .safetensors file");
  index({{"x", std::string("\0.safetensors", 13)}});
  expect_refused(scratch.folder(), Code::kBadFile, "not a .safetensors file");
  testing::write_file(path, "{}");
  expect_refused(scratch.folder(), Code::kBadFile, "no 'weight_map'");
  testing::write_file(path, "{\"weight_map\": 5}");
  expect_refused(scratch.folder(), Code::kBadFile, "index.json");
  testing::write_file(path, "{\"weight_map\": {\"a\": [\"b\"]}}");
  expect_refused(scratch.folder(), Code::kBadFile, "index.json");
}

TEST(HfFolder, RefusesConfigsThatAreNotOneObject) {
  Scratch scratch;
  write_tiny_folder(TinyShape{}, scratch.folder());
  const auto with = [&](const std::string& text) {
    testing::write_file(scratch.path("config.json"), text);
  };
  for (const char* text : {"", "[]", "5", "{", "{\"a\": }", "{} {}", "{\"a\": 1e999}"}) {
    with(text);
    expect_refused(scratch.folder(), Code::kBadFile, "config.json");
  }
  with("{\"a\": 1, \"a\": 2}");
  expect_refused(scratch.folder(), Code::kBadFile, "'a' is there twice");
  with("{\"a\": 18446744073709551615}");
  expect_refused(scratch.folder(), Code::kBadFile, "does not fit 63 bits");
  with(std::string(100000, '['));
  expect_refused(scratch.folder(), Code::kBadFile, "config.json");
  std::string deep;
  for (int i = 0; i < 100; ++i) deep += "{\"a\":";
  with(deep);
  expect_refused(scratch.folder(), Code::kBadFile, "nested too deep");
  with("{}");
  expect_refused(scratch.folder(), Code::kBadFile, "'model_type' is missing");
}

TEST(HfFolder, ConfigMembersAreFlattened) {
  Scratch scratch;
  write_tiny_folder(TinyShape{}, scratch.folder());
  testing::write_file(scratch.path("config.json"),
                      R"({"model_type": "llama", "a": {"b": {"c": 1.5}}, "n": null,
                          "ints": [1, 2], "mixed": [1, "x"], "floats": [1, 2.5],
                          "deep": [{"x": [1]}, {}], "empty": [], "after": true})");
  const auto model = open_model(scratch.folder());
  ASSERT_TRUE(model.ok()) << model.status().message();
  EXPECT_EQ(*model->need_number("a.b.c"), 1.5);
  EXPECT_TRUE(model->is_null("n"));
  EXPECT_EQ(model->find("n"), nullptr);
  EXPECT_EQ(*model->find("ints")->as<std::vector<int64_t>>(),
            (std::vector<int64_t>{1, 2}));
  EXPECT_EQ(*model->find("floats")->as<std::vector<double>>(),
            (std::vector<double>{1, 2.5}));
  EXPECT_EQ(model->find("mixed"), nullptr);
  EXPECT_EQ(model->find("deep"), nullptr);
  EXPECT_EQ(model->find("deep.x"), nullptr);
  EXPECT_TRUE(*model->need_bool("after"));
}

TEST(HfFolder, LeavesOutWhatTheTextModelDoesNotNeed) {
  Scratch scratch;
  write_tiny_folder(TinyShape{}, scratch.folder());
  auto tensors = tiny_safetensors(TinyShape{});
  tensors.push_back({"model.layers.0.self_attn.rotary_emb.inv_freq",
                     "F32",
                     {8},
                     std::string(32, '\0')});
  testing::write_file(scratch.path("model.safetensors"), safetensors_bytes(tensors));
  const auto model = open_model(scratch.folder());
  ASSERT_TRUE(model.ok()) << model.status().message();
  EXPECT_EQ(model->weights.size(), tensors.size() - 1);
}

}  // namespace
}  // namespace headrace
