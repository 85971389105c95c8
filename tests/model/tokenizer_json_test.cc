#include "headrace/model/tokenizer_json.h"

#include <filesystem>

#include "headrace/model/tokenizer_gguf.h"
#include "tokenizer_test_util.h"

namespace headrace {
namespace {

using nlohmann::json;

class TempFolder {
 public:
  TempFolder() {
    std::string name =
        (std::filesystem::temp_directory_path() / "headrace_XXXXXX").string();
    path_ = mkdtemp(name.data());
  }
  ~TempFolder() { std::filesystem::remove_all(path_); }
  const std::string& path() const { return path_; }
  void write(const std::string& name, const std::string& text) const {
    std::ofstream(path_ + "/" + name, std::ios::binary) << text;
  }

 private:
  std::string path_;
};

// A small tokenizer.json over bytes: "a" to "c", " ", "ab" and one special token.
json small_tokenizer() {
  return json::parse(R"({
    "version": "1.0",
    "added_tokens": [
      {"id": 6, "content": "<|end|>", "special": true, "lstrip": false, "rstrip": true,
       "single_word": false, "normalized": false}],
    "normalizer": null,
    "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
      {"type": "Split", "pattern": {"Regex": " ?\\p{L}+|\\s+"}, "behavior": "Isolated",
       "invert": false},
      {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true,
       "use_regex": false}]},
    "post_processor": null,
    "decoder": {"type": "ByteLevel"},
    "model": {"type": "BPE", "dropout": null, "unk_token": null, "byte_fallback": false,
      "vocab": {"c": 2, "a": 0, "b": 1, "\u0120": 3, "ab": 4, "\u0120ab": 5},
      "merges": ["a b", "\u0120 ab"]}})");
}

Result<Vocabulary> parse(const json& j) {
  const TempFolder folder;
  folder.write("tokenizer.json", j.dump());
  return vocabulary_from_tokenizer_json(folder.path() + "/tokenizer.json");
}

TEST(TokenizerJson, ReadsVocabularyMergesAndAddedTokens) {
  for (const bool pairs : {false, true}) {
    json j = small_tokenizer();
    if (pairs) j["model"]["merges"] = json::parse(R"([["a", "b"], ["\u0120", "ab"]])");
    auto v = parse(j);
    ASSERT_TRUE(v.ok()) << v.status().message();
    const Tokenizer t = must_build(std::move(v).value());
    EXPECT_EQ(t.size(), 7);
    EncodeOptions special;
    special.parse_special = true;
    EXPECT_EQ(must_encode(t, "ab abc<|end|> ab", special), (Ids{4, 5, 2, 6, 4}));
    EXPECT_TRUE(t.is_special(6));
    EXPECT_TRUE(t.is_end_of_generation(6));
  }
}

TEST(TokenizerJson, MembersMayComeInAnyOrder) {
  const json j = small_tokenizer();
  std::string text = "{\"model\":{\"merges\":" + j["model"]["merges"].dump() +
                     ",\"vocab\":" + j["model"]["vocab"].dump() + ",\"type\":\"BPE\"}";
  for (const char* key : {"pre_tokenizer", "added_tokens", "normalizer"})
    text += std::string(",\"") + key + "\":" + j[key].dump();
  const TempFolder folder;
  folder.write("tokenizer.json", text + "}");
  auto v = vocabulary_from_tokenizer_json(folder.path() + "/tokenizer.json");
  ASSERT_TRUE(v.ok()) << v.status().message();
  EXPECT_EQ(must_encode(must_build(std::move(v).value()), "ab abc"), (Ids{4, 5, 2}));
}

TEST(TokenizerJson, WhatIsNotSupportedIsNamed) {
  const auto refused = [](auto&& change, const char* name,
                          Code code = Code::kUnsupported) {
    json j = small_tokenizer();
    change(j);
    const auto v = parse(j);
    ASSERT_FALSE(v.ok()) << name;
    EXPECT_EQ(v.status().code(), code) << v.status().message();
    EXPECT_NE(v.status().message().find(name), std::string::npos) << v.status().message();
  };
  refused([](json& j) { j["model"]["type"] = "WordPiece"; }, "WordPiece");
  refused(
      [](json& j) {
        j["model"] =
            json::parse(R"({"type": "Unigram", "vocab": [["a", -1.0], ["b", -2.0]]})");
      },
      "Unigram");
  refused([](json& j) { j["normalizer"] = {{"type", "NFKC"}}; }, "NFKC");
  refused(
      [](json& j) {
        j["pre_tokenizer"] = {{"type", "BertPreTokenizer"}};
      },
      "BertPreTokenizer");
  refused([](json& j) { j["added_tokens"][0]["single_word"] = true; }, "<|end|>");
  refused([](json& j) { j["pre_tokenizer"]["pretokenizers"][0]["behavior"] = "Removed"; },
          "Removed");
  refused([](json& j) { j["model"]["vocab"]["x"] = -5; }, "out of range", Code::kBadFile);
  refused([](json& j) { j["model"]["vocab"]["x"] = 9999999; }, "9999999", Code::kBadFile);
  refused([](json& j) { j["model"]["merges"] = json::parse(R"([["a", "b", "c"]])"); },
          "merge", Code::kBadFile);
}

TEST(TokenizerJson, CutFilesAreRefusedAtEveryByte) {
  const std::string whole = small_tokenizer().dump();
  const TempFolder folder;
  for (size_t n = 0; n < whole.size(); n += 3) {
    folder.write("tokenizer.json", whole.substr(0, n));
    const auto v = vocabulary_from_tokenizer_json(folder.path() + "/tokenizer.json");
    ASSERT_FALSE(v.ok()) << n;
    EXPECT_EQ(v.status().code(), Code::kBadFile);
  }
  EXPECT_EQ(vocabulary_from_tokenizer_json(folder.path() + "/none.json").status().code(),
            Code::kIo);
}

TEST(TokenizerJson, AFolderGivesTemplateAndSpecialTokens) {
  const TempFolder folder;
  folder.write("tokenizer.json", small_tokenizer().dump());
  folder.write(
      "tokenizer_config.json",
      R"({"eos_token": {"content": "<|end|>"}, "bos_token": null, "add_bos_token": true,
                   "chat_template": [{"name": "tool_use", "template": "no"},
                                     {"name": "default", "template": "yes"}]})");
  folder.write("generation_config.json", R"({"eos_token_id": [2, 6]})");
  auto t = hf_tokenizer(folder.path());
  ASSERT_TRUE(t.ok()) << t.status().message();
  EXPECT_EQ(t->chat_template, "yes");
  EXPECT_EQ(t->eos_token, "<|end|>");
  EXPECT_EQ(t->vocabulary.eos, 6);
  EXPECT_FALSE(t->vocabulary.add_bos);  // there is none
  const Tokenizer built = must_build(std::move(t->vocabulary));
  EXPECT_TRUE(built.is_end_of_generation(2));
  folder.write("chat_template.jinja", "file");
  EXPECT_EQ(hf_tokenizer(folder.path())->chat_template, "file");
}

// GGUF metadata as open_model() would give it.
ModelFile gguf_metadata() {
  ModelFile m;
  const auto set = [&](const char* key, auto value) {
    m.metadata[key] = MetaValue{std::move(value)};
  };
  StringList tokens, merges;
  for (const char* text : {"a", "b", "ab", "<|end|>"}) tokens.push_back(text);
  merges.push_back("a b");
  set("tokenizer.ggml.model", std::string("gpt2"));
  set("tokenizer.ggml.pre", std::string("smollm"));
  set("tokenizer.ggml.tokens", tokens);
  set("tokenizer.ggml.merges", merges);
  set("tokenizer.ggml.token_type", std::vector<int32_t>{1, 1, 1, 3});
  set("tokenizer.ggml.eos_token_id", int64_t{3});
  return m;
}

TEST(TokenizerGguf, ReadsTheMetadataAndMovesTheBigArraysOut) {
  ModelFile m = gguf_metadata();
  auto v = vocabulary_from_gguf(&m);
  ASSERT_TRUE(v.ok()) << v.status().message();
  EXPECT_EQ(m.find("tokenizer.ggml.tokens"), nullptr);
  const Tokenizer t = must_build(std::move(v).value());
  EXPECT_EQ(must_encode(t, "abb"), (Ids{2, 1}));
  EXPECT_TRUE(t.is_end_of_generation(3));
}

TEST(TokenizerGguf, BadMetadataIsRefusedByName) {
  const auto refused = [](const char* key, MetaValue value, Code code, const char* name) {
    ModelFile m = gguf_metadata();
    m.metadata[key] = std::move(value);
    const auto v = vocabulary_from_gguf(&m);
    const Status status = v.ok() ? Tokenizer::build(*v).status() : v.status();
    EXPECT_EQ(status.code(), code) << status.message();
    EXPECT_NE(status.message().find(name), std::string::npos) << status.message();
  };
  refused("tokenizer.ggml.model", {std::string("t5")}, Code::kUnsupported, "t5");
  refused("tokenizer.ggml.pre", {std::string("odd")}, Code::kUnsupported, "odd");
  refused("tokenizer.ggml.tokens", {int64_t{1}}, Code::kBadFile, "tokenizer.ggml.tokens");
  refused("tokenizer.ggml.token_type", {std::vector<int32_t>{1, 1, 1, 77}},
          Code::kBadFile, "77");
  refused("tokenizer.ggml.token_type", {std::vector<int32_t>{1, 1}}, Code::kBadFile,
          "2 token types");
  refused("tokenizer.ggml.eos_token_id", {int64_t{4}}, Code::kBadFile, "eos");
}

}  // namespace
}  // namespace headrace
