#include "headrace/train/initial_weights.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "headrace/kernel/half.h"
#include "headrace/kernel/quant.h"
#include "headrace/train/model_source.h"
#include "tests/model/scratch.h"
#include "tests/model/tokenizer_test_util.h"
#include "tests/train/gpt2_files.h"

namespace headrace {
namespace {

using testing::Scratch;
using testing::TinyGpt2;
using testing::TinyShape;

using Floats = std::vector<float>;

TrainConfig new_model() {
  TrainConfig c;
  c.sequence = 16;
  c.seed = 7;
  c.data.format = "u16";
  TrainModelConfig& m = c.model;
  m.layers = 3, m.hidden = 64, m.heads = 4, m.kv_heads = 2, m.head_dim = 16;
  m.ffn = 96, m.vocab = 256, m.positions = 16;
  m.init_std = 0.05;
  return c;
}

TrainConfig from(const std::string& path) {
  TrainConfig c;
  c.sequence = 16;
  c.data.format = "u16";
  c.model.from = path;
  return c;
}

std::unique_ptr<InitialWeights> must_open(const TrainConfig& c) {
  auto weights = InitialWeights::open(c);
  EXPECT_TRUE(weights.ok()) << weights.status().message();
  return weights.ok() ? std::move(weights).value() : nullptr;
}

Floats read_tile(InitialWeights& weights, const Parameter& p, int64_t part = INT64_MAX) {
  Floats out(static_cast<size_t>(p.row_count * p.cols));
  const auto n = static_cast<int64_t>(out.size());
  for (int64_t at = 0; at < n; at += part) {
    const int64_t count = std::min(part, n - at);
    const Status status = weights.read(
        p, at, std::span(out).subspan(static_cast<size_t>(at), static_cast<size_t>(count)));
    EXPECT_TRUE(status.ok()) << status.message();
    if (part > n) break;
  }
  return out;
}

// Of the whole parameter.
Floats read_all(InitialWeights& weights, const std::string& name) {
  Floats out;
  for (const Parameter& p : parameters_of(weights.model())) {
    if (p.name != name) continue;
    const Floats tile = read_tile(weights, p);
    out.insert(out.end(), tile.begin(), tile.end());
  }
  EXPECT_FALSE(out.empty()) << name;
  return out;
}

Floats floats_of(const std::string& bytes) {
  Floats out(bytes.size() / 4);
  std::memcpy(out.data(), bytes.data(), bytes.size());
  return out;
}

double deviation(const Floats& x) {
  double sum = 0, squares = 0;
  for (const float v : x) sum += v, squares += static_cast<double>(v) * v;
  const double mean = sum / static_cast<double>(x.size());
  return std::sqrt(squares / static_cast<double>(x.size()) - mean * mean);
}

TEST(InitialWeights, ANewModelIsNormalWithNormsOfOne) {
  const auto weights = must_open(new_model());
  const Floats embed = read_all(*weights, "model.embed_tokens.weight");
  EXPECT_NEAR(deviation(embed), 0.05, 0.001);
  double mean = 0;
  for (const float v : embed) mean += v;
  EXPECT_NEAR(mean / static_cast<double>(embed.size()), 0, 0.002);
  EXPECT_NEAR(deviation(read_all(*weights, "model.layers.1.mlp.up_proj.weight")), 0.05, 0.003);
  // Six products add to the residual stream.
  const double less = 0.05 / std::sqrt(6.0);
  EXPECT_NEAR(deviation(read_all(*weights, "model.layers.1.mlp.down_proj.weight")), less, 0.001);
  EXPECT_NEAR(deviation(read_all(*weights, "model.layers.2.self_attn.o_proj.weight")), less, 0.001);
  EXPECT_EQ(read_all(*weights, "model.norm.weight"), Floats(64, 1.0f));
}

TEST(InitialWeights, GptsNormsHaveBiasesOfZero) {
  TrainConfig c = new_model();
  c.model.family = ModelFamily::kGpt2;
  c.model.kv_heads = 4, c.model.tied_embeddings = true;
  const auto weights = must_open(c);
  EXPECT_EQ(read_all(*weights, "transformer.h.0.ln_1.weight"), Floats(64, 1.0f));
  EXPECT_EQ(read_all(*weights, "transformer.h.0.ln_1.bias"), Floats(64, 0.0f));
  EXPECT_EQ(read_all(*weights, "transformer.h.0.attn.c_attn.bias"), Floats(192, 0.0f));
  EXPECT_NEAR(deviation(read_all(*weights, "transformer.h.0.mlp.c_proj.weight")),
              0.05 / std::sqrt(6.0), 0.001);
}

TEST(InitialWeights, ANumberDependsOnSeedNameAndElementAlone) {
  TrainConfig c = new_model();
  const auto one = must_open(c);
  const std::string name = "model.layers.2.mlp.gate_proj.weight";
  const Floats whole = read_all(*one, name);
  for (const Parameter& p : parameters_of(one->model())) {
    if (p.name == name) {
      EXPECT_EQ(read_tile(*one, p, 37), whole);
    }
  }
  c.model.layers = 9;  // changes the residual products alone
  c.model.vocab = 300;
  EXPECT_EQ(read_all(*must_open(c), name), whole);
  EXPECT_NE(read_all(*must_open(c), "model.layers.1.mlp.gate_proj.weight"), whole);
  c.seed = 8;
  EXPECT_NE(read_all(*must_open(c), name), whole);
}

TEST(InitialWeights, LorasSecondProductIsZeroAtFirst) {
  TrainConfig c = new_model();
  c.lora.rank = 4;
  const auto weights = must_open(c);
  const std::string at = "model.layers.0.self_attn.q_proj.";
  EXPECT_EQ(read_all(*weights, at + "lora_B.weight"), Floats(64 * 4, 0.0f));
  const Floats a = read_all(*weights, at + "lora_A.weight");
  for (const float v : a) EXPECT_LE(std::abs(v), 1.0f / 8);
  EXPECT_NEAR(deviation(a), 1.0 / 8 / std::sqrt(3.0), 0.01);
}

TEST(InitialWeights, FrozenGroupsAreFoundByTheFirstThatMatches) {
  TrainConfig c = new_model();
  c.optimizer.groups.resize(3);
  c.optimizer.groups[0].match = "layers.1.mlp";
  c.optimizer.groups[1].match = "layers.1.";
  c.optimizer.groups[1].frozen = true;
  c.optimizer.groups[2].match = "embed";
  c.optimizer.groups[2].frozen = true;
  const auto weights = must_open(c);
  for (const Parameter& p : parameters_of(weights->model())) {
    const bool frozen =
        p.name == "model.embed_tokens.weight" ||
        (p.name.find("layers.1.") != std::string::npos && p.name.find("mlp") == std::string::npos);
    EXPECT_EQ(p.trainable, !frozen) << p.name;
  }
}

TEST(InitialWeights, AFoldersWeightsAreReadAsTheyAre) {
  for (const char* family : {"llama", "qwen2"}) {
    const Scratch scratch;
    TinyShape shape;
    shape.architecture = family;
    shape.tied = false;
    testing::write_tiny_folder(shape, scratch.folder());
    const auto weights = must_open(from(scratch.folder()));
    ASSERT_NE(weights, nullptr);
    EXPECT_EQ(weights->shape().vocab, 80);
    EXPECT_EQ(weights->shape().positions, 512);
    EXPECT_EQ(weights->model().qkv_bias, std::string(family) == "qwen2");
    size_t seen = 0;
    for (const testing::SafeTensor& t : testing::tiny_safetensors(shape)) {
      EXPECT_EQ(read_all(*weights, t.name), floats_of(t.data)) << t.name;
      ++seen;
    }
    EXPECT_EQ(parameters_of(weights->model()).size(), seen);
  }
}

// The order that a converter gives to rows of q and k: [heads, 2, half] becomes [heads, half, 2].
std::string paired(const std::string& data, int64_t heads, int64_t head_dim, int64_t cols) {
  std::string out;
  const int64_t half = head_dim / 2, bytes = cols * 4;
  for (int64_t h = 0; h < heads; ++h) {
    for (int64_t j = 0; j < half; ++j) {
      for (int64_t side = 0; side < 2; ++side) {
        out += data.substr(static_cast<size_t>((h * head_dim + side * half + j) * bytes),
                           static_cast<size_t>(bytes));
      }
    }
  }
  return out;
}

TEST(InitialWeights, RowsOfAGgufLlamaArePutBack) {
  const Scratch scratch;
  TinyShape shape;
  shape.tied = false;
  const TinyShape& s = shape;
  testing::GgufWriter gguf;
  gguf.text("general.architecture", "llama");
  gguf.u32("llama.block_count", 2);
  gguf.u32("llama.embedding_length", 64);
  gguf.u32("llama.feed_forward_length", 96);
  gguf.u32("llama.attention.head_count", 4);
  gguf.u32("llama.attention.head_count_kv", 2);
  gguf.u32("llama.context_length", 512);
  gguf.f32("llama.attention.layer_norm_rms_epsilon", 1e-5f);
  const std::vector<testing::SafeTensor> tensors = testing::tiny_safetensors(shape);
  for (const testing::SafeTensor& t : tensors) {
    std::string data = t.data;
    if (t.name.find("q_proj") != std::string::npos) data = paired(data, s.heads, 16, 64);
    if (t.name.find("k_proj") != std::string::npos) data = paired(data, s.kv_heads, 16, 64);
    std::vector<uint64_t> dims(t.shape.rbegin(), t.shape.rend());
    gguf.tensor(gguf_parameter_name(ModelFamily::kLlama, t.name), testing::kGgmlF32, dims, data);
  }
  gguf.write(scratch.path("model.gguf"));
  const auto weights = must_open(from(scratch.path("model.gguf")));
  ASSERT_NE(weights, nullptr);
  EXPECT_TRUE(weights->model().rope_half_split);
  for (const testing::SafeTensor& t : tensors) {
    EXPECT_EQ(read_all(*weights, t.name), floats_of(t.data)) << t.name;
  }
}

TEST(InitialWeights, QuantisedWeightsBecomeTheirValues) {
  const std::pair<uint32_t, DType> types[] = {
      {testing::kGgmlQ4_0, DType::kQ4_0}, {testing::kGgmlQ8_0, DType::kQ8_0},
      {testing::kGgmlQ6_K, DType::kQ6_K}, {testing::kGgmlQ4_K, DType::kQ4_K},
      {testing::kGgmlF16, DType::kF16},   {testing::kGgmlBF16, DType::kBF16}};
  for (const auto& [ggml, dtype] : types) {
    const Scratch scratch;
    TinyShape shape;
    shape.architecture = "qwen2";  // whose rows are as ours
    shape.embd = 256, shape.ff = 512, shape.head_dim = 64;
    shape.type = ggml, shape.down_type = ggml, shape.v_type = ggml;
    testing::tiny_gguf(shape).write(scratch.path("model.gguf"));
    const auto weights = must_open(from(scratch.path("model.gguf")));
    ASSERT_NE(weights, nullptr) << name_of(dtype);
    const WeightInfo* w = weights->file()->weight("blk.1.ffn_down.weight");
    ASSERT_EQ(w->dtype, dtype);
    std::ifstream in(scratch.path("model.gguf"), std::ios::binary);
    in.seekg(w->source.offset);
    std::vector<char> bytes(static_cast<size_t>(w->source.bytes));
    in.read(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    Floats wanted(static_cast<size_t>(w->rows * w->cols));
    for (int64_t r = 0; r < w->rows; ++r) {
      dequantize_row(
          dtype, reinterpret_cast<const std::byte*>(bytes.data()) + r * row_bytes(dtype, w->cols),
          w->cols, wanted.data() + r * w->cols);
    }
    EXPECT_EQ(read_all(*weights, "model.layers.1.mlp.down_proj.weight"), wanted) << name_of(dtype);
  }
}

TEST(InitialWeights, GptsProductsAreTurned) {
  for (const char* prefix : {"transformer.", ""}) {
    const Scratch scratch;
    TinyGpt2 shape;
    shape.prefix = prefix;
    testing::write_tiny_gpt2(shape, scratch.folder());
    const auto weights = must_open(from(scratch.folder()));
    ASSERT_NE(weights, nullptr);
    EXPECT_EQ(weights->shape().ffn, 128);
    for (const testing::SafeTensor& t : testing::tiny_gpt2_tensors(shape)) {
      if (t.name.ends_with(".attn.bias")) continue;
      const std::string name = *prefix != '\0' ? t.name : "transformer." + t.name;
      Floats wanted = floats_of(t.data);
      if (t.name.find(".c_") != std::string::npos && t.shape.size() == 2) {
        const auto rows = static_cast<size_t>(t.shape[0]), cols = static_cast<size_t>(t.shape[1]);
        Floats turned(wanted.size());
        for (size_t r = 0; r < rows; ++r) {
          for (size_t c = 0; c < cols; ++c) turned[c * rows + r] = wanted[r * cols + c];
        }
        wanted = turned;
      }
      EXPECT_EQ(read_all(*weights, name), wanted) << name;
      for (const Parameter& p : parameters_of(weights->model())) {
        if (p.name == name) {
          EXPECT_EQ(read_tile(*weights, p, 53), wanted) << name;
        }
      }
    }
  }
}

void expect_refused(const TrainConfig& c, Code code, const std::string& part) {
  const auto weights = InitialWeights::open(c);
  ASSERT_FALSE(weights.ok()) << part;
  EXPECT_EQ(weights.status().code(), code) << weights.status().message();
  EXPECT_NE(weights.status().message().find(part), std::string::npos) << weights.status().message();
}

TEST(InitialWeights, FamiliesThatCannotBeTrainedAreRefusedByName) {
  for (const char* family : {"qwen3", "gemma3"}) {
    const Scratch scratch;
    TinyShape shape;
    shape.architecture = family;
    testing::tiny_gguf(shape).write(scratch.path("model.gguf"));
    expect_refused(from(scratch.path("model.gguf")), Code::kUnsupported, family);
  }
  expect_refused(from("/nonexistent/model.gguf"), Code::kIo, "/nonexistent/model.gguf");
}

TEST(InitialWeights, FilesThatDoNotHoldTheModelAreRefusedWithTheTensor) {
  const Scratch scratch;
  TinyShape shape;
  const auto write = [&](auto&& change) {
    std::vector<testing::SafeTensor> tensors = testing::tiny_safetensors(shape);
    change(tensors);
    testing::write_file(scratch.path("config.json"), testing::tiny_config_json(shape));
    testing::write_file(scratch.path("model.safetensors"), testing::safetensors_bytes(tensors));
  };
  using Tensors = std::vector<testing::SafeTensor>;
  write([](Tensors& t) {
    std::erase_if(t, [](const auto& x) { return x.name.ends_with("layers.1.mlp.up_proj.weight"); });
  });
  expect_refused(from(scratch.folder()), Code::kBadFile, "up_proj");
  write([](Tensors& t) {
    for (auto& x : t) {
      if (x.name.ends_with("layers.0.mlp.gate_proj.weight")) std::swap(x.shape[0], x.shape[1]);
    }
  });
  expect_refused(from(scratch.folder()), Code::kBadFile, "64 x 96, but the model needs 96 x 64");
  write([](Tensors& t) {
    t.push_back({"model.layers.0.self_attn.o_proj.bias", "F32", {64}, std::string(256, '\0')});
  });
  expect_refused(from(scratch.folder()), Code::kUnsupported, "attn_output.bias");
}

TEST(InitialWeights, ASequenceBeyondTheModelsPositionsIsRefused) {
  const Scratch scratch;
  testing::write_tiny_gpt2({}, scratch.folder());
  TrainConfig c = from(scratch.folder());
  c.sequence = 25;
  expect_refused(c, Code::kBadFile, "24 positions");
}

TEST(InitialWeights, ATokenizerWithMoreTokensThanTheModelIsRefused) {
  const Scratch scratch;
  testing::write_tiny_folder({}, scratch.folder());
  std::filesystem::copy_file(data_path("tokenizer/byte_bpe.json"), scratch.path("tokenizer.json"));
  TrainConfig c = from(scratch.folder());
  c.data.format = "text";
  expect_refused(c, Code::kBadFile, "vocabulary 80");
  std::filesystem::remove(scratch.path("tokenizer.json"));
  expect_refused(c, Code::kBadFile, "tokenizer.json");
  c.data.tokenizer = "bytes";
  const auto weights = InitialWeights::open(c);
  ASSERT_FALSE(weights.ok());
  EXPECT_NE(weights.status().message().find("256"), std::string::npos)
      << weights.status().message();
}

}  // namespace
}  // namespace headrace
