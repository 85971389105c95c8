// Deterministic mutation fuzzing of the model file readers: whatever the bytes, they
// answer with a model or an error, and never crash, loop or allocate without bound. Run
// it with -DHEADRACE_SANITIZE=address to see silent damage too.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "headrace/model/build_graph.h"
#include "tests/model/scratch.h"
#include "tests/model/tiny_models.h"

namespace headrace {
namespace {

using testing::Scratch;
using testing::TinyShape;

constexpr int kMutations = 20000;

// One to four changes: bytes, numbers at the edges of their range, cuts, repeats, swaps.
// Most fall into the first `header` bytes, where the structure is.
std::string mutate(const std::string& from, size_t header, std::mt19937_64* random) {
  std::string out = from;
  const int changes = 1 + static_cast<int>((*random)() % 4);
  for (int i = 0; i < changes && !out.empty(); ++i) {
    const size_t reach =
        (*random)() % 16 == 0 ? out.size() : std::min(header, out.size());
    const size_t at = (*random)() % reach;
    const uint64_t edges[] = {0,
                              1,
                              2,
                              3,
                              4,
                              12,
                              13,
                              31,
                              32,
                              255,
                              65535,
                              1ull << 31,
                              (1ull << 32) - 1,
                              1ull << 32,
                              1ull << 48,
                              1ull << 61,
                              1ull << 63,
                              ~0ull,
                              out.size(),
                              out.size() - at};
    const uint64_t edge = edges[(*random)() % std::size(edges)];
    switch ((*random)() % 7) {
      case 0: out[at] = static_cast<char>((*random)()); break;
      case 1: out[at] = static_cast<char>(out[at] ^ (1 << (*random)() % 8)); break;
      case 2:
        std::memcpy(out.data() + at, &edge, std::min<size_t>(4, out.size() - at));
        break;
      case 3:
        std::memcpy(out.data() + at, &edge, std::min<size_t>(8, out.size() - at));
        break;
      case 4: out.resize(at); break;
      case 5: out.insert(at, out.substr(at, 1 + (*random)() % 64)); break;
      case 6: out.erase(at, 1 + (*random)() % 16); break;
    }
  }
  return out;
}

// The same for text, where digits and brackets carry the structure.
std::string mutate_text(const std::string& from, std::mt19937_64* random) {
  static constexpr const char* kTokens[] = {"\"",
                                            "{",
                                            "}",
                                            "[",
                                            "]",
                                            ",",
                                            ":",
                                            "null",
                                            "true",
                                            "-1",
                                            "0",
                                            "1e308",
                                            "1e999",
                                            "9223372036854775807",
                                            "18446744073709551615",
                                            "99999999999",
                                            "\"x\"",
                                            "\\u0000",
                                            "\\ud800",
                                            "\xff",
                                            "[[[[",
                                            "{\"a\":",
                                            "0.5",
                                            "-"};
  std::string out = from;
  const int changes = 1 + static_cast<int>((*random)() % 3);
  for (int i = 0; i < changes && !out.empty(); ++i) {
    const size_t at = (*random)() % out.size();
    const size_t length = (*random)() % 12;
    switch ((*random)() % 4) {
      case 0: out.insert(at, kTokens[(*random)() % std::size(kTokens)]); break;
      case 1: out.replace(at, length, kTokens[(*random)() % std::size(kTokens)]); break;
      case 2: out.erase(at, length); break;
      case 3: out.insert(at, out.substr((*random)() % out.size(), 40)); break;
    }
  }
  return out;
}

// Opens, and when that works reads the config and builds the graph. Every answer is right
// but a crash, an empty message, or an error that is not about the file.
bool answer(const std::string& path) {
  const auto model = open_model(path);
  const auto check = [](const Status& status) {
    EXPECT_FALSE(status.message().empty());
    EXPECT_TRUE(status.code() == Code::kBadFile || status.code() == Code::kUnsupported)
        << status.message();
    return false;
  };
  if (!model.ok()) return check(model.status());
  for (const WeightInfo& weight : model->weights) {
    const Bytes size = model->file_bytes[static_cast<size_t>(weight.source.file)];
    EXPECT_TRUE(weight.source.offset >= 0 && weight.source.bytes > 0 &&
                weight.source.bytes <= size - weight.source.offset);
  }
  const auto config = read_config(*model);
  if (!config.ok()) return check(config.status());
  GraphOptions options;
  options.max_rows = 2;
  options.context = 64;
  options.segment_tokens = 64;
  const auto graph = build_graph(*model, *config, options);
  if (!graph.ok()) return check(graph.status());
  const Status verified = verify(*graph);
  EXPECT_TRUE(verified.ok()) << verified.message();
  return true;
}

TinyShape small(const std::string& architecture) {
  TinyShape shape;
  shape.architecture = architecture;
  shape.layers = 1;
  shape.embd = 32;
  shape.ff = 32;
  shape.heads = 2;
  shape.kv_heads = 1;
  shape.vocab = 16;
  return shape;
}

TEST(FuzzModelFiles, MutatedGgufFilesAreOpenedOrRefused) {
  Scratch scratch(true);
  const std::string path = scratch.path("m.gguf");
  std::mt19937_64 random(1);
  int opened = 0;
  for (const char* architecture : {"llama", "qwen2", "qwen3", "gemma3"}) {
    auto writer = tiny_gguf(small(architecture));
    writer.strings("tokenizer.ggml.tokens", {"a", "b", "cc", ""});
    writer.array<float>("tokenizer.ggml.scores", testing::kGgufF32, {0, 1, 2, 3});
    writer.array<uint8_t>("bools", testing::kGgufBool, {1, 0, 1});
    const std::string bytes = writer.bytes();
    const size_t header = 2600;
    for (int i = 0; i < kMutations / 4; ++i) {
      testing::write_file(path, mutate(bytes, header, &random));
      opened += answer(path) ? 1 : 0;
      if (HasFailure()) FAIL() << architecture << ", mutation " << i;
    }
  }
  // Some mutations do not matter; if none or all passed, the fuzzer tested nothing.
  EXPECT_GT(opened, kMutations / 1000);
  EXPECT_LT(opened, kMutations / 2);
}

TEST(FuzzModelFiles, MutatedSafetensorsAreOpenedOrRefused) {
  Scratch scratch(true);
  std::mt19937_64 random(2);
  write_tiny_folder(small("qwen3"), scratch.folder());
  const std::string bytes = safetensors_bytes(tiny_safetensors(small("qwen3")));
  uint64_t length;
  std::memcpy(&length, bytes.data(), 8);
  const std::string header = bytes.substr(8, length), data = bytes.substr(8 + length);
  int opened = 0;
  for (int i = 0; i < kMutations; ++i) {
    std::string mutated = mutate(bytes, 8 + length, &random);
    if (i % 2 == 0) {  // text that changed, with a length that is right
      const std::string text = mutate_text(header, &random);
      mutated.clear();
      testing::put<uint64_t>(&mutated, text.size());
      mutated += text + data;
    }
    testing::write_file(scratch.path("model.safetensors"), mutated);
    opened += answer(scratch.folder()) ? 1 : 0;
    if (HasFailure()) FAIL() << "mutation " << i;
  }
  EXPECT_LT(opened, kMutations / 2);
}

TEST(FuzzModelFiles, MutatedConfigsAreOpenedOrRefused) {
  Scratch scratch(true);
  std::mt19937_64 random(3);
  int opened = 0;
  for (const char* architecture : {"llama", "gemma3"}) {
    TinyShape shape = small(architecture);
    shape.window = 16;
    write_tiny_folder(shape, scratch.folder());
    const std::string config = tiny_config_json(shape);
    for (int i = 0; i < kMutations / 2; ++i) {
      testing::write_file(scratch.path("config.json"), mutate_text(config, &random));
      opened += answer(scratch.folder()) ? 1 : 0;
      if (HasFailure()) FAIL() << architecture << ", mutation " << i;
    }
  }
  EXPECT_GT(opened, kMutations / 1000);
}

TEST(FuzzModelFiles, MutatedIndexesAreOpenedOrRefused) {
  Scratch scratch(true);
  std::mt19937_64 random(4);
  const TinyShape shape = small("llama");
  write_tiny_folder(shape, scratch.folder());
  std::string index = "{\"metadata\":{\"total_size\":1},\"weight_map\":{";
  for (const auto& tensor : tiny_safetensors(shape)) {
    index += "\"" + tensor.name + "\":\"model.safetensors\",";
  }
  index.back() = '}';
  index += "}";
  testing::write_file(scratch.path("model.safetensors.index.json"), index);
  ASSERT_TRUE(answer(scratch.folder()));
  for (int i = 0; i < kMutations / 4; ++i) {
    testing::write_file(scratch.path("model.safetensors.index.json"),
                        mutate_text(index, &random));
    answer(scratch.folder());
    if (HasFailure()) FAIL() << "mutation " << i;
  }
}

}  // namespace
}  // namespace headrace
