// Shared by the tokenizer and template tests: files of tests/data and small vocabularies.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "headrace/model/tokenizer.h"
#include "headrace/model/tokenizer_alphabet.h"
#include "headrace/model/tokenizer_json.h"

namespace headrace {

inline std::string data_path(const std::string& name) {
  return std::string(HEADRACE_SOURCE_DIR) + "/tests/data/" + name;
}

inline nlohmann::json read_data(const std::string& name) {
  std::ifstream file(data_path(name));
  EXPECT_TRUE(file) << name;
  return nlohmann::json::parse(file);
}

// Path of a real model's file in the folder that HEADRACE_MODELS names; empty where it is
// not there.
inline std::string real_model(const std::string& file) {
  const char* folder = std::getenv("HEADRACE_MODELS");
  if (folder == nullptr) return "";
  const std::string path = std::string(folder) + "/" + file;
  return std::filesystem::exists(path) ? path : "";
}

using Ids = std::vector<int32_t>;

inline Tokenizer must_build(Vocabulary v) {
  auto t = Tokenizer::build(std::move(v));
  EXPECT_TRUE(t.ok()) << t.status().message();
  return std::move(t).value();
}

inline Vocabulary json_vocabulary(const std::string& name) {
  auto v = vocabulary_from_tokenizer_json(data_path("tokenizer/" + name));
  EXPECT_TRUE(v.ok()) << v.status().message();
  return std::move(v).value();
}

inline Ids must_encode(const Tokenizer& t, std::string_view text,
                       EncodeOptions options = {}) {
  auto ids = t.encode(text, options);
  EXPECT_TRUE(ids.ok()) << ids.status().message();
  return ids.ok() ? *ids : Ids();
}

// All 256 bytes, a few merges and three special tokens: "<|s|>", "<|e|>" and the added
// "<tool>".
inline Vocabulary byte_vocabulary() {
  Vocabulary v;
  v.pre = "gpt-2";
  for (int b = 0; b < 256; ++b) {
    std::string text;
    append_alphabet(static_cast<uint8_t>(b), &text);
    v.tokens.push_back(text);
  }
  const std::vector<std::pair<const char*, const char*>> merges = {
      {"h", "e"}, {"l", "l"}, {"he", "ll"}, {"hell", "o"}, {"\xC4\xA0", "hello"},
      {"a", "a"}};
  for (const auto& [left, right] : merges) {
    v.tokens.push_back(std::string(left) + right);
    v.merges.push_back(std::string(left) + " " + right);
  }
  v.kinds.assign(v.tokens.size(), TokenKind::kNormal);
  for (const char* name : {"<|s|>", "<|e|>"}) {
    v.tokens.push_back(name);
    v.kinds.push_back(TokenKind::kControl);
  }
  v.tokens.push_back("<tool>");
  v.kinds.push_back(TokenKind::kUserDefined);
  v.bos = 262;
  v.eos = 263;
  return v;
}

}  // namespace headrace
