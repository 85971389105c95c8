#include "headrace/train/train_config.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <random>

#include "tests/model/gguf_writer.h"
#include "tests/model/scratch.h"

namespace headrace {
namespace {

using Json = nlohmann::json;

Json small() {
  return Json::parse(R"({
    "name": "small",
    "model": {"family": "llama", "layers": 2, "hidden": 64, "heads": 4, "kv_heads": 2, "ffn": 96,
              "vocab": 256},
    "data": {"files": ["text.txt"], "tokenizer": "bytes"},
    "sequence": 32, "steps": 10, "out": "run"
  })");
}

Result<TrainConfig> parse(const Json& json) { return parse_train_config(json.dump(), "folder"); }

// Sets the value at a JSON pointer.
Json with(const char* pointer, const Json& value) {
  Json out = small();
  out[Json::json_pointer(pointer)] = value;
  return out;
}

Json without(const char* object, const char* key) {
  Json out = small();
  (object[0] == '\0' ? out : out[object]).erase(key);
  return out;
}

TEST(TrainConfig, WhatIsLeftOutHasItsDefault) {
  const auto c = parse(small());
  ASSERT_TRUE(c.ok()) << c.status().message();
  EXPECT_EQ(c->model.head_dim, 16);
  EXPECT_EQ(c->model.positions, 32);
  EXPECT_FALSE(c->model.tied_embeddings);
  EXPECT_EQ(c->batch, 1);
  EXPECT_EQ(c->accumulation, 1);
  EXPECT_EQ(c->precision, Precision::kF32);
  EXPECT_EQ(c->optimizer.kind, "adamw");
  EXPECT_EQ(c->lora.rank, 0);
  EXPECT_EQ(c->folder, "folder");
  EXPECT_EQ(path_of(*c, c->out), "folder/run");
  EXPECT_EQ(path_of(*c, "/else"), "/else");
}

TEST(TrainConfig, GptIsTiedAndFourTimesAsWideByDefault) {
  Json json = small();
  json["model"] = {
      {"family", "gpt2"}, {"layers", 2}, {"hidden", 64}, {"heads", 4}, {"positions", 64}};
  const auto c = parse(json);
  ASSERT_TRUE(c.ok()) << c.status().message();
  EXPECT_EQ(c->model.ffn, 256);
  EXPECT_EQ(c->model.vocab, 256);
  EXPECT_TRUE(c->model.tied_embeddings);
}

TEST(TrainConfig, EveryMistakeIsRefusedWithItsKey) {
  struct Case {
    Json json;
    const char* says;
  };
  const Case cases[] = {
      {with("/stepz", 3), "stepz"},
      {with("/model/layer", 3), "layer"},
      {with("/data/file", "x"), "file"},
      {with("/optimizer/lr", 1e-3), "lr"},
      {with("/lora/r", 8), "'r'"},
      {with("/steps", 0), "steps"},
      {with("/steps", 1.5), "steps"},
      {with("/steps", "ten"), "steps"},
      {with("/accumulation", 0), "accumulation"},
      {with("/batch", 0), "batch"},
      {with("/sequence", 0), "sequence"},
      {with("/precision", "fp8"), "fp8"},
      {with("/on_nan", "ignore"), "ignore"},
      {with("/keep_checkpoints", 0), "keep_checkpoints"},
      {with("/eval_every", 5), "eval_files"},
      {with("/optimizer/rate", -1e-3), "rate"},
      {with("/optimizer/rate", nullptr), "rate"},
      {with("/optimizer/beta1", 1), "beta1"},
      {with("/optimizer/beta2", -0.1), "beta2"},
      {with("/optimizer/eps", 0), "eps"},
      {with("/optimizer/clip_norm", -1), "clip_norm"},
      {with("/optimizer/kind", "adam"), "adamw"},
      {with("/optimizer/schedule", "cosin"), "cosine"},
      {with("/optimizer/warmup_steps", 11), "warmup_steps"},
      {with("/optimizer/final_scale", 2), "final_scale"},
      {with("/optimizer/groups", Json::parse(R"([{"rate_scale": 2}])")), "match"},
      {with("/optimizer/groups", Json::parse(R"([{"match": "x", "scale": 2}])")), "scale"},
      {with("/optimizer/groups", Json::parse(R"({"match": "x"})")), "groups"},
      {with("/model/family", "bert"), "bert"},
      {with("/model/heads", 5), "heads"},
      {with("/model/kv_heads", 3), "kv_heads"},
      {with("/model/head_dim", 15), "head_dim"},
      {with("/model/vocab", 0), "vocab"},
      {with("/model/vocab", 255), "256 tokens"},
      {with("/model/layers", 0), "layers"},
      {with("/model/positions", 31), "positions"},
      {with("/model/dropout", 1), "dropout"},
      {with("/model/init_std", -1), "init_std"},
      {with("/model/from", "model.gguf"), "read from the file"},
      {with("/data/files", Json::array()), "files"},
      {with("/data/files", "text.txt"), "files"},
      {with("/data/files", Json::parse(R"([""])")), "files"},
      {with("/data/format", "u8"), "u8"},
      {with("/data/tokenizer", ""), "tokenizer"},
      {with("/lora", Json::parse(R"({"rank": 4, "targets": []})")), "targets"},
      {with("/lora", Json::parse(R"({"rank": 4, "targets": ["head"]})")), "head"},
      {with("/lora", Json::parse(R"({"rank": 4, "targets": ["q_proj", "q_proj"]})")), "twice"},
      {with("/lora/rank", -1), "rank"},
      {without("", "out"), "out"},
      {without("", "sequence"), "sequence"},
      {without("", "steps"), "steps"},
      {without("", "model"), "model"},
      {without("", "data"), "data"},
      {without("data", "files"), "files"},
      {without("model", "ffn"), "ffn"},
      {without("model", "hidden"), "hidden"},
      {Json(3), "object"},
  };
  for (const Case& bad : cases) {
    const auto c = parse(bad.json);
    ASSERT_FALSE(c.ok()) << bad.json.dump();
    EXPECT_EQ(c.status().code(), Code::kBadFile) << c.status().message();
    EXPECT_NE(c.status().message().find(bad.says), std::string::npos)
        << c.status().message() << " does not name " << bad.says;
  }
}

TEST(TrainConfig, ALearningRateThatIsNoNumberIsRefusedWithItsPlace) {
  for (const char* rate : {"NaN", "nan", "Infinity", "1e999", "-1e999"}) {
    const auto c = parse_train_config(std::string("{\"optimizer\": {\"rate\": ") + rate + "}}", "");
    ASSERT_FALSE(c.ok()) << rate;
    EXPECT_EQ(c.status().code(), Code::kBadFile);
    EXPECT_NE(c.status().message().find("line 1"), std::string::npos) << c.status().message();
  }
}

TEST(TrainConfig, AKeyThatIsThereTwiceIsRefused) {
  const auto c = parse_train_config(R"({"steps": 1, "model": {}, "steps": 2})", "");
  ASSERT_FALSE(c.ok());
  EXPECT_NE(c.status().message().find("steps"), std::string::npos) << c.status().message();
  EXPECT_NE(c.status().message().find("twice"), std::string::npos) << c.status().message();
}

TEST(TrainConfig, ErrorsOfAFileBeginWithItsName) {
  const testing::Scratch scratch;
  const std::string path = scratch.path("train.json");
  EXPECT_EQ(read_train_config(path).status().code(), Code::kIo);
  testing::write_file(path, "{\n \"steps\": }");
  const auto broken = read_train_config(path);
  EXPECT_EQ(broken.status().code(), Code::kBadFile);
  EXPECT_EQ(broken.status().message().find(path), 0u) << broken.status().message();
  testing::write_file(path, small().dump());
  const auto good = read_train_config(path);
  ASSERT_TRUE(good.ok()) << good.status().message();
  EXPECT_EQ(path_of(*good, "text.txt"), scratch.path("text.txt"));
  EXPECT_EQ(with_absolute_paths(*good).out, scratch.path("run"));
  EXPECT_EQ(with_absolute_paths(*good).data.tokenizer, "bytes");
}

TEST(TrainConfig, TextOfAConfigIsReadBackToTheSameConfig) {
  Json json = small();
  json["optimizer"] = Json::parse(R"({"kind": "sgd", "rate": 0.1234567890123, "schedule": "cosine",
      "warmup_steps": 3, "clip_norm": 1, "groups": [
        {"match": "embed", "rate_scale": 0.5, "weight_decay": 0},
        {"match": "lm", "frozen": true}]})");
  json["lora"] = Json::parse(R"({"rank": 4, "alpha": 8, "targets": ["o_proj", "up_proj"]})");
  json["precision"] = "bf16_stochastic";
  json["seed"] = 9223372036854775807;
  json["recompute"] = false;
  const auto c = parse(json);
  ASSERT_TRUE(c.ok()) << c.status().message();
  const auto again = parse_train_config(to_json(*c), "folder");
  ASSERT_TRUE(again.ok()) << again.status().message();
  EXPECT_EQ(to_json(*again), to_json(*c));
  EXPECT_EQ(again->optimizer.rate, 0.1234567890123);
  EXPECT_EQ(again->seed, 9223372036854775807u);
  ASSERT_EQ(again->optimizer.groups.size(), 2u);
  EXPECT_EQ(again->optimizer.groups[0].weight_decay, 0);
  EXPECT_LT(again->optimizer.groups[1].weight_decay, 0);

  json["model"] = {{"from", "model.gguf"}, {"dropout", 0.1}};
  const auto from = parse(json);
  ASSERT_TRUE(from.ok()) << from.status().message();
  const auto from_again = parse_train_config(to_json(*from), "folder");
  ASSERT_TRUE(from_again.ok()) << from_again.status().message();
  EXPECT_EQ(to_json(*from_again), to_json(*from));
}

TEST(TrainConfig, TheLossScaleIsAPowerOfTwoAndOfF16Alone) {
  Json json = small();
  json["precision"] = "f16";
  EXPECT_EQ(parse(json)->optimizer.loss_scale, 65536);
  json["optimizer"]["loss_scale"] = 1024;
  const auto c = parse(json);
  ASSERT_TRUE(c.ok()) << c.status().message();
  EXPECT_EQ(c->precision, Precision::kF16);
  EXPECT_EQ(parse_train_config(to_json(*c), "folder")->optimizer.loss_scale, 1024);
  for (const double bad : {0.0, 0.5, 1000.0, 0x1p25, -2.0}) {
    json["optimizer"]["loss_scale"] = bad;
    const auto refused = parse(json);
    ASSERT_FALSE(refused.ok()) << bad;
    EXPECT_EQ(refused.status().code(), Code::kBadFile);
    EXPECT_NE(refused.status().message().find("loss_scale"), std::string::npos);
  }
  json["optimizer"]["loss_scale"] = 1024;
  json["precision"] = "bf16";
  const auto other = parse(json);
  ASSERT_FALSE(other.ok());
  EXPECT_NE(other.status().message().find("is bf16, not f16"), std::string::npos);
}

TEST(TrainConfig, RatesWarmUpAndThenFollowTheSchedule) {
  TrainConfig c;
  c.steps = 110;
  c.optimizer.rate = 2;
  c.optimizer.final_scale = 0.1;
  c.optimizer.warmup_steps = 10;
  EXPECT_DOUBLE_EQ(rate_at(c, 1), 0.2);
  EXPECT_DOUBLE_EQ(rate_at(c, 10), 2);
  EXPECT_DOUBLE_EQ(rate_at(c, 60), 2);
  c.optimizer.schedule = "linear";
  EXPECT_DOUBLE_EQ(rate_at(c, 10), 2);
  EXPECT_DOUBLE_EQ(rate_at(c, 60), 1.1);
  EXPECT_DOUBLE_EQ(rate_at(c, 110), 0.2);
  EXPECT_DOUBLE_EQ(rate_at(c, 1000), 0.2);
  c.optimizer.schedule = "cosine";
  EXPECT_DOUBLE_EQ(rate_at(c, 10), 2);
  EXPECT_DOUBLE_EQ(rate_at(c, 60), 1.1);
  EXPECT_DOUBLE_EQ(rate_at(c, 110), 0.2);
  for (int64_t step = 11; step <= 110; ++step) EXPECT_LE(rate_at(c, step), rate_at(c, step - 1));
  c.optimizer.warmup_steps = 0;
  EXPECT_LT(rate_at(c, 1), 2);
  c.optimizer.warmup_steps = c.steps;
  EXPECT_DOUBLE_EQ(rate_at(c, c.steps), 2);
}

TEST(TrainConfig, EveryExampleIsRead) {
  int found = 0;
  for (const auto& entry : std::filesystem::directory_iterator(HEADRACE_SOURCE_DIR "/examples")) {
    const std::string path = entry.path().string() + "/train.json";
    if (!std::filesystem::exists(path)) continue;
    const auto c = read_train_config(path);
    EXPECT_TRUE(c.ok()) << c.status().message();
    ++found;
  }
  EXPECT_GE(found, 3);
}

// Deterministic mutations; whatever the text, the answer is a config or an error.
TEST(TrainConfig, DamagedTextIsReadOrRefused) {
  const std::string seed = small().dump(1);
  const char* const words[] = {"0",
                               "-1",
                               "1e308",
                               "1e999",
                               "nan",
                               "null",
                               "true",
                               "\"\"",
                               "[",
                               "]",
                               "{",
                               "}",
                               ",",
                               "9223372036854775808",
                               "-9223372036854775809",
                               "\"from\"",
                               "\"groups\":[{}]",
                               "\xff",
                               "\\u0000"};
  std::mt19937_64 random(7);
  int good = 0;
  for (int i = 0; i < 20000; ++i) {
    std::string text = seed;
    for (size_t change = 1 + random() % 3; change > 0 && !text.empty(); --change) {
      const size_t at = random() % text.size();
      const std::string word = words[random() % std::size(words)];
      switch (random() % 5) {
        case 0: text[at] = static_cast<char>(random()); break;
        case 1: text.insert(at, word); break;
        case 2:
          text.replace(at, std::min(text.find_first_of(",\n", at), text.size()) - at, word);
          break;
        case 3: text.resize(at); break;
        case 4: text.erase(at, 1 + random() % 8); break;
      }
    }
    const auto c = parse_train_config(text, "");
    if (!c.ok()) {
      ASSERT_EQ(c.status().code(), Code::kBadFile);
      ASSERT_FALSE(c.status().message().empty());
      continue;
    }
    ++good;
    ASSERT_TRUE(std::isfinite(rate_at(*c, 1)));
    const auto again = parse_train_config(to_json(*c), "");
    ASSERT_TRUE(again.ok()) << again.status().message() << "\n" << text;
  }
  EXPECT_GT(good, 100);
}

}  // namespace
}  // namespace headrace
