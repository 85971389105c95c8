#include "headrace/train/export.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "headrace/kernel/half.h"
#include "headrace/model/safetensors.h"
#include "headrace/session/model.h"
#include "headrace/train/checkpoint.h"
#include "headrace/train/initial_weights.h"
#include "tests/model/scratch.h"
#include "tests/model/tokenizer_test_util.h"
#include "tests/train/file_faults.h"
#include "tests/train/gpt2_files.h"

namespace headrace {
namespace {

using testing::FaultyCalls;
using testing::Scratch;
using testing::TinyGpt2;
using testing::TinyShape;

using Floats = std::vector<float>;

TrainConfig new_model(ModelFamily family = ModelFamily::kLlama) {
  TrainConfig c;
  c.name = "tiny";
  c.sequence = 16;
  c.steps = 1;
  c.data.files = {"/nowhere/text.txt"};
  c.data.tokenizer = "bytes";
  TrainModelConfig& m = c.model;
  m.family = family;
  m.layers = 2, m.hidden = 64, m.heads = 4, m.kv_heads = 2, m.head_dim = 16;
  m.ffn = 96, m.vocab = 260, m.positions = 16;
  if (family == ModelFamily::kGpt2) m.kv_heads = 4, m.tied_embeddings = true;
  return c;
}

TrainConfig from(const std::string& path) {
  TrainConfig c;
  c.name = "tuned";
  c.sequence = 16;
  c.steps = 1;
  c.data.files = {"/nowhere/tokens.bin"};
  c.data.format = "u16";
  c.model.from = path;
  return c;
}

// What training is said to have made of a parameter.
float trained(const std::string& name, int64_t element) {
  uint64_t seed = std::hash<std::string>()(name) + static_cast<uint64_t>(element);
  return testing::tiny::uniform(0.5f, &seed);
}

Floats trained_tile(const Parameter& p) {
  Floats out(static_cast<size_t>(p.row_count * p.cols));
  for (size_t i = 0; i < out.size(); ++i) {
    out[i] = trained(p.name, p.row_begin * p.cols + static_cast<int64_t>(i));
  }
  return out;
}

// Writes the checkpoint that a run of this config would: tensors as the trainer names them.
void write_run(const TrainConfig& config, const std::string& run, int64_t step = 7) {
  TrainConfig c = config;
  c.out = run;
  auto initial = InitialWeights::open(c);
  ASSERT_TRUE(initial.ok()) << initial.status().message();
  CheckpointInfo info;
  info.step = step;
  info.config = to_json(c);
  std::vector<std::string> data;
  for (const Parameter& p : parameters_of((*initial)->model())) {
    if (!p.trainable) continue;
    const Floats values = trained_tile(p);
    const bool master = c.precision == Precision::kBf16 && p.dtype == DType::kBF16;
    const bool half = c.precision == Precision::kBf16Stochastic && p.dtype == DType::kBF16;
    std::string bytes(reinterpret_cast<const char*>(values.data()), values.size() * 4);
    if (half) {
      bytes.clear();
      for (const float v : values) testing::put(&bytes, f32_to_bf16(v));
    }
    info.tensors.push_back({p.tensor + (master ? ".master" : ""), half ? "bf16" : "f32",
                            p.row_count, p.cols, static_cast<Bytes>(bytes.size())});
    data.push_back(bytes);
    info.tensors.push_back({p.tensor + ".m", "f32", 1, 1, 4});
    data.push_back(std::string(4, '\1'));
  }
  std::vector<std::byte> block(kCheckpointBlock);
  ASSERT_TRUE(write_checkpoint(run, info, 1, block,
                               [&](size_t index, Bytes begin, std::span<std::byte> out) {
                                 std::memcpy(out.data(), data[index].data() + begin, out.size());
                                 return Status();
                               })
                  .ok());
}

Result<ExportResult> export_to(const std::string& run, const std::string& out,
                               DType dtype = DType::kF32, bool adapter = false) {
  ExportOptions options;
  options.run = run;
  options.out = out;
  options.dtype = dtype;
  options.adapter = adapter;
  return export_run(options);
}

float rounded(float value, DType dtype) {
  if (dtype == DType::kF16) return f16_to_f32(f32_to_f16(value));
  if (dtype == DType::kBF16) return bf16_to_f32(f32_to_bf16(value));
  return value;
}

Floats read_tile(InitialWeights& weights, const Parameter& p) {
  Floats out(static_cast<size_t>(p.row_count * p.cols));
  EXPECT_TRUE(weights.read(p, 0, out).ok());
  return out;
}

// Opens what was exported with our readers: it must be the trained model.
void expect_trained(const std::string& path, DType dtype, bool gguf) {
  auto weights = InitialWeights::open(from(path));
  ASSERT_TRUE(weights.ok()) << weights.status().message();
  for (const Parameter& p : parameters_of((*weights)->model())) {
    Floats wanted = trained_tile(p);
    const bool small = p.kind == ParameterKind::kVector || p.name == "transformer.wpe.weight";
    if (!(gguf && small)) {
      for (float& v : wanted) v = rounded(v, dtype);
    }
    EXPECT_EQ(read_tile(**weights, p), wanted) << p.name;
  }
}

TEST(Export, ANewModelBecomesAFolderThatRuns) {
  for (const ModelFamily family : {ModelFamily::kLlama, ModelFamily::kQwen2}) {
    for (const bool tied : {false, true}) {
      const Scratch scratch;
      TrainConfig c = new_model(family);
      c.model.tied_embeddings = tied;
      write_run(c, scratch.path("run"));
      const auto result = export_to(scratch.path("run"), scratch.path("out/model/"));
      ASSERT_TRUE(result.ok()) << result.status().message();
      EXPECT_EQ(result->step, 7);
      expect_trained(scratch.path("out/model"), DType::kF32, false);
      std::ifstream in(scratch.path("out/model/config.json"));
      const auto config = nlohmann::json::parse(in);
      EXPECT_TRUE(config.at("eos_token_id").is_null());
      const auto model = load_model(scratch.path("out/model"));
      ASSERT_TRUE(model.ok()) << model.status().message();
      EXPECT_EQ((*model)->config.tied_embeddings, tied);
      EXPECT_EQ(must_encode((*model)->tokenizer, "Ab \n\xc3\xa9 12"),
                (Ids{'A', 'b', ' ', '\n', 0xc3, 0xa9, ' ', '1', '2'}));
      EXPECT_EQ((*model)->tokenizer.decode({'A', 'b', ' ', 0xc3, 0xa9}, false), "Ab \xc3\xa9");
    }
  }
}

TEST(Export, ANewModelBecomesAGgufFileThatRuns) {
  for (const ModelFamily family : {ModelFamily::kLlama, ModelFamily::kQwen2}) {
    for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
      const Scratch scratch;
      write_run(new_model(family), scratch.path("run"));
      const auto result = export_to(scratch.path("run"), scratch.path("model.gguf"), dtype);
      ASSERT_TRUE(result.ok()) << result.status().message();
      expect_trained(scratch.path("model.gguf"), dtype, true);
      const auto model = load_model(scratch.path("model.gguf"));
      ASSERT_TRUE(model.ok()) << model.status().message();
      EXPECT_EQ((*model)->tokenizer.size(), 260);
      EXPECT_EQ(must_encode((*model)->tokenizer, "Ab \xff"), (Ids{'A', 'b', ' ', 0xff}));
    }
  }
}

TEST(Export, GptIsTurnedForItsOwnReadersAndNotForGguf) {
  const Scratch scratch;
  write_run(new_model(ModelFamily::kGpt2), scratch.path("run"));
  ASSERT_TRUE(export_to(scratch.path("run"), scratch.path("folder"), DType::kBF16).ok());
  expect_trained(scratch.path("folder"), DType::kBF16, false);
  const auto gguf = export_to(scratch.path("run"), scratch.path("model.gguf"), DType::kF16);
  ASSERT_TRUE(gguf.ok()) << gguf.status().message();
  expect_trained(scratch.path("model.gguf"), DType::kF16, true);
}

TEST(Export, OneFileOfSafetensorsHasTheHuggingFaceNames) {
  const Scratch scratch;
  write_run(new_model(), scratch.path("run"));
  const auto result = export_to(scratch.path("run"), scratch.path("m.safetensors"), DType::kBF16);
  ASSERT_TRUE(result.ok()) << result.status().message();
  const auto file = read_safetensors(scratch.path("m.safetensors"), 0);
  ASSERT_TRUE(file.ok()) << file.status().message();
  EXPECT_EQ(file->weights.front().name, "model.embed_tokens.weight");
  EXPECT_EQ(file->weights.back().name, "lm_head.weight");
  EXPECT_EQ(file->weights.front().dtype, DType::kBF16);
  int64_t elements = 0;
  for (const WeightInfo& w : file->weights) elements += w.rows * w.cols;
  EXPECT_EQ(elements, result->parameters);
  EXPECT_EQ(file->file_bytes, result->bytes);
}

TEST(Export, MastersAreExportedWhereThereAreAnyAndHalvesAsTheyAre) {
  for (const Precision precision : {Precision::kBf16, Precision::kBf16Stochastic}) {
    const Scratch scratch;
    TrainConfig c = new_model();
    c.precision = precision;
    write_run(c, scratch.path("run"));
    ASSERT_TRUE(export_to(scratch.path("run"), scratch.path("folder")).ok());
    if (precision == Precision::kBf16) {
      expect_trained(scratch.path("folder"), DType::kF32, false);
      continue;
    }
    auto weights = InitialWeights::open(from(scratch.path("folder")));
    ASSERT_TRUE(weights.ok());
    for (const Parameter& p : parameters_of((*weights)->model())) {
      Floats wanted = trained_tile(p);
      if (p.kind != ParameterKind::kVector) {
        for (float& v : wanted) v = rounded(v, DType::kBF16);
      }
      EXPECT_EQ(read_tile(**weights, p), wanted) << p.name;
    }
  }
}

// W + alpha / rank B A of row-major [n, r] and [r, k].
Floats merged(const Floats& w, const Floats& a, const Floats& b, int64_t rank, double alpha) {
  const auto r = static_cast<size_t>(rank);
  const size_t cols = a.size() / r, rows = b.size() / r;
  const auto scale = static_cast<float>(alpha / static_cast<double>(rank));
  Floats out = w;
  for (size_t i = 0; i < rows; ++i) {
    for (size_t k = 0; k < r; ++k) {
      for (size_t j = 0; j < cols; ++j) out[i * cols + j] += scale * b[i * r + k] * a[k * cols + j];
    }
  }
  return out;
}

TEST(Export, LoraIsAddedToTheWeightsThatItAdapts) {
  for (const char* format : {"folder", "model.gguf"}) {
    const Scratch scratch;
    std::filesystem::create_directories(scratch.path("base"));
    TinyShape shape;
    shape.vocab = 256;
    testing::write_tiny_folder(shape, scratch.path("base"));
    TrainConfig c = from(scratch.path("base"));
    c.data.format = "text";
    c.data.tokenizer = "bytes";
    c.lora.rank = 3;
    c.lora.alpha = 12;
    c.lora.targets = {"q_proj", "down_proj"};
    write_run(c, scratch.path("run"));
    const auto result = export_to(scratch.path("run"), scratch.path(format));
    ASSERT_TRUE(result.ok()) << result.status().message();
    auto base = InitialWeights::open(from(scratch.path("base")));
    auto tuned = InitialWeights::open(from(scratch.path(format)));
    ASSERT_TRUE(tuned.ok()) << tuned.status().message();
    int changed = 0;
    for (const Parameter& p : parameters_of((*tuned)->model())) {
      Floats wanted = read_tile(**base, p);
      if (p.name.find("q_proj") != std::string::npos ||
          p.name.find("down_proj") != std::string::npos) {
        const std::string stem = p.name.substr(0, p.name.size() - std::string(".weight").size());
        Floats a(static_cast<size_t>(3 * p.cols)), b(static_cast<size_t>(3 * p.rows));
        for (size_t i = 0; i < a.size(); ++i) {
          a[i] = trained(stem + ".lora_A.weight", static_cast<int64_t>(i));
        }
        for (size_t i = 0; i < b.size(); ++i) {
          b[i] = trained(stem + ".lora_B.weight", static_cast<int64_t>(i));
        }
        wanted = merged(wanted, a, b, 3, 12);
        ++changed;
      }
      EXPECT_EQ(read_tile(**tuned, p), wanted) << p.name;
    }
    EXPECT_EQ(changed, 4);
  }
}

TEST(Export, AnAdapterAloneHasTheNamesThatPeftReads) {
  const Scratch scratch;
  TrainConfig c = new_model();
  c.lora.rank = 3;
  write_run(c, scratch.path("run"));
  const auto result = export_to(scratch.path("run"), scratch.path("adapter"), DType::kF32, true);
  ASSERT_TRUE(result.ok()) << result.status().message();
  const auto file = read_safetensors(scratch.path("adapter/adapter_model.safetensors"), 0);
  ASSERT_TRUE(file.ok()) << file.status().message();
  EXPECT_EQ(file->weights.size(), 8u);
  EXPECT_EQ(file->weights[0].name,
            "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight");
  EXPECT_EQ(file->weights[0].rows, 3);
  std::ifstream in(scratch.path("adapter/adapter_config.json"));
  const auto config = nlohmann::json::parse(in);
  EXPECT_EQ(config["r"], 3);
  EXPECT_EQ(config["target_modules"][1], "v_proj");
  EXPECT_EQ(
      export_to(scratch.path("run"), scratch.path("a.gguf"), DType::kF32, true).status().code(),
      Code::kUnsupported);
}

// The keys of a GGUF model with a tokenizer.
testing::GgufWriter gguf_with_tokenizer(const TinyShape& shape) {
  testing::GgufWriter out = testing::tiny_gguf(shape);
  std::vector<std::string> tokens;
  for (int b = 0; b < 256; ++b) {
    std::string text;
    append_alphabet(static_cast<uint8_t>(b), &text);
    tokens.push_back(text);
  }
  tokens.push_back("he");
  tokens.push_back("<|end|>");
  std::vector<int32_t> kinds(258, 1);
  kinds[257] = 3;
  out.text("tokenizer.ggml.model", "gpt2");
  out.text("tokenizer.ggml.pre", "qwen2");
  out.strings("tokenizer.ggml.tokens", tokens);
  out.array("tokenizer.ggml.token_type", testing::kGgufI32, kinds);
  out.strings("tokenizer.ggml.merges", {"h e"});
  out.u32("tokenizer.ggml.eos_token_id", 257);
  out.text("tokenizer.chat_template", "{{ messages }}");
  out.text("general.license", "none");
  out.u32("general.file_type", 7);
  return out;
}

TEST(Export, AGgufModelKeepsItsMetadataAndItsTokenizer) {
  const Scratch scratch;
  TinyShape shape;
  shape.vocab = 258;
  shape.type = testing::kGgmlQ8_0;
  gguf_with_tokenizer(shape).write(scratch.path("base.gguf"));
  TrainConfig c = from(scratch.path("base.gguf"));
  c.data.format = "text";
  write_run(c, scratch.path("run"));
  for (const char* out : {"tuned.gguf", "tuned"}) {
    const auto result = export_to(scratch.path("run"), scratch.path(out));
    ASSERT_TRUE(result.ok()) << result.status().message();
    expect_trained(scratch.path(out), DType::kF32, false);
    const auto model = load_model(scratch.path(out));
    ASSERT_TRUE(model.ok()) << model.status().message();
    EXPECT_EQ(must_encode((*model)->tokenizer, "the 12"), (Ids{'t', 256, ' ', '1', '2'}));
    EXPECT_EQ((*model)->tokenizer.eos(), 257);
    EXPECT_EQ((*model)->chat_template, "{{ messages }}");
  }
  const auto file = open_model(scratch.path("tuned.gguf"));
  ASSERT_TRUE(file.ok());
  EXPECT_EQ(*file->string_or("general.license", ""), "none");
  EXPECT_EQ(*file->int_or("general.file_type", 0, 100, -1), 0);
}

TEST(Export, AFoldersConfigAndTokenizerAreCopiedAndMayBecomeAGguf) {
  const Scratch scratch;
  std::filesystem::create_directories(scratch.path("base"));
  const Vocabulary v = json_vocabulary("byte_bpe.json");
  TinyShape shape;
  shape.architecture = "qwen2";
  shape.vocab = static_cast<int64_t>(v.tokens.size()) + 3;
  testing::write_tiny_folder(shape, scratch.path("base"));
  std::filesystem::copy_file(data_path("tokenizer/byte_bpe.json"),
                             scratch.path("base/tokenizer.json"));
  testing::write_file(scratch.path("base/tokenizer_config.json"),
                      R"({"chat_template": "{{ messages }}"})");
  TrainConfig c = from(scratch.path("base"));
  c.data.format = "text";
  write_run(c, scratch.path("run"));
  const Tokenizer wanted = must_build(json_vocabulary("byte_bpe.json"));
  const std::string text = "Some text, it's 1234 words\n\n long: \xe4\xb8\x96\xe7\x95\x8c!";
  for (const char* out : {"tuned", "tuned.gguf"}) {
    const auto result = export_to(scratch.path("run"), scratch.path(out), DType::kBF16);
    if (!result.ok()) {
      // Words divided by rules without a name in GGUF.
      EXPECT_EQ(result.status().code(), Code::kUnsupported) << result.status().message();
      EXPECT_NE(result.status().message().find("export a folder"), std::string::npos);
      EXPECT_FALSE(std::filesystem::exists(scratch.path(out)));
      EXPECT_NE(std::string(out), "tuned");
      continue;
    }
    const auto model = load_model(scratch.path(out));
    ASSERT_TRUE(model.ok()) << model.status().message();
    EXPECT_EQ(must_encode((*model)->tokenizer, text), must_encode(wanted, text)) << out;
    EXPECT_EQ((*model)->chat_template, "{{ messages }}");
  }
}

TEST(Export, WhatCannotBeExportedIsSaid) {
  const Scratch scratch;
  EXPECT_EQ(export_to(scratch.path("run"), scratch.path("m.gguf")).status().code(), Code::kUsage);
  write_run(new_model(), scratch.path("run"));
  EXPECT_EQ(export_to(scratch.path("run"), scratch.path("m"), DType::kQ8_0).status().code(),
            Code::kUsage);
  EXPECT_EQ(export_to(scratch.path("run"), scratch.path("m"), DType::kF32, true).status().code(),
            Code::kUsage);
  testing::write_file(scratch.path("file"), "x");
  EXPECT_EQ(export_to(scratch.path("run"), scratch.path("file")).status().code(), Code::kUsage);
  std::filesystem::create_directories(scratch.path("other"));
  testing::write_file(scratch.path("other/model-00001-of-00002.safetensors"), "x");
  EXPECT_EQ(export_to(scratch.path("run"), scratch.path("other")).status().code(), Code::kUsage);
}

TEST(Export, AStoppedExportLeavesNothing) {
  const Scratch scratch;
  write_run(new_model(), scratch.path("run"));
  ExportOptions options;
  options.run = scratch.path("run");
  options.out = scratch.path("m.safetensors");
  int calls = 0;
  options.progress = [&](Bytes, Bytes) { return ++calls < 3; };
  EXPECT_EQ(export_run(options).status().code(), Code::kCancelled);
  EXPECT_FALSE(std::filesystem::exists(options.out));
  EXPECT_FALSE(std::filesystem::exists(options.out + ".partial"));
}

TEST(Export, AFullDiskLeavesTheOldFileAndNothingElse) {
  const Scratch scratch(true);
  write_run(new_model(), scratch.path("run"));
  testing::write_file(scratch.path("m.gguf"), "old");
  int failed = 0;
  for (int at = 0; at < 200; ++at) {
    Status status;
    {
      FaultyCalls calls;
      calls.fault = FaultyCalls::Fault::kDiskFull;
      calls.at = at;
      status = export_to(scratch.path("run"), scratch.path("m.gguf")).status();
    }
    if (status.ok()) break;
    ++failed;
    EXPECT_EQ(status.code(), Code::kIo) << status.message();
    EXPECT_EQ(std::filesystem::file_size(scratch.path("m.gguf")), 3u);
    EXPECT_FALSE(std::filesystem::exists(scratch.path("m.gguf.partial")));
  }
  EXPECT_GT(failed, 3);
  EXPECT_GT(std::filesystem::file_size(scratch.path("m.gguf")), 3u);
}

}  // namespace
}  // namespace headrace
