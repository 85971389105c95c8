#include "headrace/train/dataset.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstring>
#include <filesystem>

#include "headrace/train/dataset_text.h"
#include "tests/model/gguf_writer.h"
#include "tests/model/scratch.h"
#include "tests/model/tokenizer_test_util.h"
#include "tests/train/file_faults.h"

namespace headrace {
namespace {

using testing::FaultyCalls;
using testing::Scratch;
using testing::write_file;

class DatasetTest : public ::testing::Test {
 protected:
  DatasetTest() {
    config_.folder = scratch_.folder();
    config_.out = "run";
    config_.data.tokenizer = "bytes";
    config_.sequence = 8;
    config_.seed = 3;
    config_.model.vocab = 256;
  }
  // A file of the config's folder, which becomes one of its files.
  void add(const std::string& name, std::string_view bytes) {
    write_file(scratch_.path(name), bytes);
    config_.data.files.push_back(name);
  }
  Result<std::unique_ptr<Dataset>> open(const Tokenizer* tokenizer = nullptr,
                                        int64_t vocab = 256) const {
    return Dataset::open(config_, config_.data.files, "train", tokenizer, vocab);
  }
  Ids sample(const Dataset& data, int64_t index) const {
    Ids inputs(static_cast<size_t>(config_.sequence)), targets(inputs.size());
    EXPECT_TRUE(data.read(index, inputs, targets).ok());
    EXPECT_TRUE(std::equal(inputs.begin() + 1, inputs.end(), targets.begin()));
    inputs.push_back(targets.back());
    return inputs;
  }
  void expect_error(Code code, const std::string& part, int64_t vocab = 256,
                    const Tokenizer* tokenizer = nullptr) const {
    const auto data = open(tokenizer, vocab);
    ASSERT_FALSE(data.ok());
    EXPECT_EQ(data.status().code(), code) << data.status().message();
    EXPECT_NE(data.status().message().find(part), std::string::npos) << data.status().message();
  }

  Scratch scratch_;
  TrainConfig config_;
};

// Two-byte little-endian tokens 0, 1, 2 ...
std::string counted(int64_t tokens) {
  std::string out;
  for (int64_t i = 0; i < tokens; ++i) testing::put(&out, static_cast<uint16_t>(i));
  return out;
}

TEST_F(DatasetTest, EverySampleComesExactlyOnceAnEpochInAnotherOrderEachTime) {
  config_.data.format = "u16";
  add("tokens.bin", counted(8 * 100 + 5));
  const auto data = open(nullptr, 65536);
  ASSERT_TRUE(data.ok()) << data.status().message();
  ASSERT_EQ((*data)->samples(), 100);
  EXPECT_EQ((*data)->tokens(), 805);
  std::vector<Ids> orders;
  for (int64_t epoch = 0; epoch < 3; ++epoch) {
    Ids firsts;
    for (int64_t i = 0; i < 100; ++i) {
      const Ids s = sample(**data, epoch * 100 + i);
      for (size_t k = 0; k < s.size(); ++k) EXPECT_EQ(s[k], s[0] + static_cast<int32_t>(k));
      EXPECT_EQ(s[0] % 8, 0);
      firsts.push_back(s[0] / 8);
    }
    orders.push_back(firsts);
    std::sort(firsts.begin(), firsts.end());
    for (int32_t i = 0; i < 100; ++i) ASSERT_EQ(firsts[static_cast<size_t>(i)], i);
  }
  EXPECT_NE(orders[0], orders[1]);
  EXPECT_NE(orders[1], orders[2]);
  // Far from the order of the file.
  int in_place = 0;
  for (int32_t i = 0; i < 100; ++i) in_place += orders[0][static_cast<size_t>(i)] == i;
  EXPECT_LT(in_place, 8);
}

TEST_F(DatasetTest, TheOrderIsAPermutationForEveryNumberOfSamples) {
  config_.sequence = 1;
  config_.data.format = "u16";
  for (const int64_t n : {1, 2, 3, 4, 5, 16, 17, 63, 64, 65, 255, 257, 1000}) {
    config_.data.files.clear();
    add("tokens.bin", counted(n + 1));
    const auto data = open(nullptr, 65536);
    ASSERT_TRUE(data.ok());
    ASSERT_EQ((*data)->samples(), n);
    std::vector<bool> seen(static_cast<size_t>(n));
    for (int64_t i = 0; i < n; ++i) seen[static_cast<size_t>(sample(**data, i)[0])] = true;
    EXPECT_EQ(std::count(seen.begin(), seen.end(), true), n);
  }
}

TEST_F(DatasetTest, ToResumeIsToGoOnCounting) {
  add("text.txt", std::string(3000, 'x') + "some other text" + std::string(999, 'y'));
  const auto first = open();
  ASSERT_TRUE(first.ok());
  std::vector<Ids> all;
  for (int64_t i = 0; i < 1200; ++i) all.push_back(sample(**first, i));
  const auto second = open();
  ASSERT_TRUE(second.ok());
  for (int64_t i = 1199; i >= 0; i -= 7)
    EXPECT_EQ(sample(**second, i), all[static_cast<size_t>(i)]);
}

TEST_F(DatasetTest, AnotherSeedIsAnotherOrder) {
  config_.data.format = "u16";
  add("tokens.bin", counted(801));
  const auto one = open(nullptr, 65536);
  config_.seed = 4;
  const auto other = open(nullptr, 65536);
  int same = 0;
  for (int64_t i = 0; i < 100; ++i) same += sample(**one, i) == sample(**other, i);
  EXPECT_LT(same, 8);
}

TEST_F(DatasetTest, BytesOfAllFilesAreOneStream) {
  config_.sequence = 4;
  add("a.txt", "abcde");
  add("b.txt", "fg\xff");
  config_.data.files.push_back("a.txt");
  const auto data = open();
  ASSERT_TRUE(data.ok()) << data.status().message();
  EXPECT_EQ((*data)->tokens(), 13);
  std::string text =
      "abcdefg\xff"
      "abcde";
  std::vector<bool> found(3);
  for (int64_t i = 0; i < 3; ++i) {
    const Ids s = sample(**data, i);
    std::string part;
    for (const int32_t id : s) part.push_back(static_cast<char>(id));
    for (size_t k = 0; k < 3; ++k) {
      if (text.substr(4 * k, 5) == part) found[k] = true;
    }
  }
  EXPECT_EQ(found, (std::vector<bool>{true, true, true}));
}

TEST_F(DatasetTest, TokensOfFourBytesAndSeveralFilesAreReadInPlace) {
  config_.sequence = 2;
  config_.data.format = "u32";
  std::string a, b;
  for (uint32_t i = 0; i < 5; ++i) testing::put(&a, 70000 + i);
  for (uint32_t i = 5; i < 9; ++i) testing::put(&b, 70000 + i);
  add("a.bin", a);
  add("b.bin", b);
  const auto data = open(nullptr, 70009);
  ASSERT_TRUE(data.ok()) << data.status().message();
  EXPECT_EQ((*data)->samples(), 4);
  for (int64_t i = 0; i < 4; ++i) {
    const Ids s = sample(**data, i);
    EXPECT_EQ(s[2], s[0] + 2);
  }
  EXPECT_EQ(std::filesystem::file_size(scratch_.path("run/data/train.tokens")), 64u);
}

TEST_F(DatasetTest, WhatCannotBeTrainedOnIsRefusedByName) {
  add("empty.txt", "");
  expect_error(Code::kBadFile, "empty.txt");
  config_.data.files.clear();
  add("image.png", std::string("\x89PNG\r\n\x1a\n\0\0\0\rIHDR and then some more", 35));
  expect_error(Code::kBadFile, "byte 8 is NUL");
  config_.data.files.clear();
  add("short.txt", "12345678");
  expect_error(Code::kBadFile, "8 tokens, fewer than the 9");
  config_.data.files.clear();
  add("text.txt", "ordinary text and Z");
  expect_error(Code::kBadFile, "token number 0 is 111", 100);
  expect_error(Code::kBadFile, "the vocabulary has 100", 100);
  config_.data.files = {"missing.txt"};
  expect_error(Code::kIo, "missing.txt");
  config_.data.files = {};
  expect_error(Code::kUsage, "no data files");
  config_.data.files = {"."};
  expect_error(Code::kIo, "regular");
}

TEST_F(DatasetTest, ShardsWithTokensOutsideTheVocabularyAreRefusedWithTheirPlace) {
  config_.data.format = "u16";
  add("tokens.bin", counted(50));
  EXPECT_TRUE(open(nullptr, 50).ok());
  expect_error(Code::kBadFile, "token number 49 is 49", 49);
  add("odd.bin", "abc");
  expect_error(Code::kBadFile, "odd.bin", 65536);
  // A shard that was refused is not taken for a good one the next time.
  expect_error(Code::kBadFile, "odd.bin", 65536);
}

TEST_F(DatasetTest, TextIsTokenizedOnceAndAgainWhenItHasChanged) {
  add("text.txt", "ordinary text, long enough");
  ASSERT_TRUE(open().ok());
  const std::string shard = scratch_.path("run/data/train.tokens");
  const auto identity = [&] {
    struct stat info = {};
    EXPECT_EQ(::stat(shard.c_str(), &info), 0);
    return info.st_ino;
  };
  const auto before = identity();
  ASSERT_TRUE(open().ok());
  EXPECT_EQ(identity(), before);
  write_file(scratch_.path("text.txt"), "Ordinary text, long enough");
  const auto later = std::filesystem::last_write_time(scratch_.path("text.txt"));
  std::filesystem::last_write_time(scratch_.path("text.txt"), later + std::chrono::seconds(2));
  const auto data = open();
  ASSERT_TRUE(data.ok());
  bool found = false;
  for (int64_t i = 0; i < (*data)->samples(); ++i) found = found || sample(**data, i)[0] == 'O';
  EXPECT_TRUE(found);
  // Another tokenizer.
  const Tokenizer tokenizer = must_build(byte_vocabulary());
  config_.data.tokenizer = "tokenizer.json";
  const auto other = open(&tokenizer, 300);
  ASSERT_TRUE(other.ok()) << other.status().message();
  // A damaged shard is made again.
  std::filesystem::resize_file(shard, 70);
  EXPECT_TRUE(open(&tokenizer, 300).ok());
  EXPECT_GT(std::filesystem::file_size(shard), 70u);
}

TEST_F(DatasetTest, DocumentsAreJoinedByTheEndToken) {
  Vocabulary v = byte_vocabulary();
  const auto ends = static_cast<int32_t>(v.tokens.size()) - 1;
  v.eos = ends;
  const Tokenizer tokenizer = must_build(std::move(v));
  config_.sequence = 3;
  config_.data.tokenizer = "tokenizer.json";
  add("a.txt", "hello");
  add("b.txt", "xyz");
  const auto data = open(&tokenizer, 300);
  ASSERT_TRUE(data.ok()) << data.status().message();
  EXPECT_EQ((*data)->tokens(), 5);
  const int32_t hello = must_encode(tokenizer, "hello")[0];
  EXPECT_EQ(sample(**data, 0), (Ids{hello, ends, 'x', 'y'}));
}

TEST_F(DatasetTest, ATokenizersVocabularyThatIsTooLargeForTheModelIsRefused) {
  const Tokenizer tokenizer = must_build(byte_vocabulary());
  config_.data.tokenizer = "tokenizer.json";
  add("a.txt", "qqqqqqqqqq hello hello hello hello");
  expect_error(Code::kBadFile, "vocabulary has 256", 256, &tokenizer);
}

TEST_F(DatasetTest, WhateverCallFailsIsToldAndTheNextTryWorks) {
  add("text.txt", std::string(100000, 'a') + "b");
  int all = 0;
  {
    FaultyCalls counting;
    ASSERT_TRUE(open().ok());
    all = counting.calls;
  }
  for (const int reason : {EIO, ENOSPC}) {
    for (int at = 0; at < all; ++at) {
      std::filesystem::remove_all(scratch_.path("run"));
      {
        FaultyCalls calls;
        calls.fault = FaultyCalls::Fault::kError;
        calls.at = at;
        calls.reason = reason;
        const auto data = open();
        if (!data.ok()) {
          EXPECT_EQ(data.status().code(), Code::kIo) << at;
          EXPECT_NE(data.status().message().find(std::strerror(reason)), std::string::npos);
        }
      }
      const auto data = open();
      ASSERT_TRUE(data.ok()) << data.status().message();
      EXPECT_EQ((*data)->tokens(), 100001);
      EXPECT_FALSE(std::filesystem::exists(scratch_.path("run/data/train.tokens.partial")));
    }
  }
}

TEST_F(DatasetTest, ShortReadsAndInterruptsAreGoneOnWith) {
  add("text.txt", std::string(600000, 'a') + "b");
  FaultyCalls calls;
  calls.short_io = true;
  calls.interrupts = true;
  const auto data = open();
  ASSERT_TRUE(data.ok()) << data.status().message();
  EXPECT_EQ((*data)->tokens(), 600001);
  EXPECT_EQ(sample(**data, 5)[8], 'a');
}

// ---- cutting text -----------------------------------------------------------------------------

// Text with lines, blank lines, spaces at line ends, long lines and characters of several bytes.
std::string mixed_text() {
  const nlohmann::json texts = read_data("tokenizer/texts.json");
  std::string all, out;
  const auto collect = [&](auto&& self, const nlohmann::json& value) -> void {
    if (value.is_string()) all += value.get<std::string>() + " word\nNext line, ";
    if (value.is_structured()) {
      for (const auto& part : value) self(self, part);
    }
  };
  collect(collect, texts);
  std::erase(all, '\0');
  for (int i = 0; out.size() < 400000; ++i) {
    out += all;
    if (i % 3 == 0) out += "\n\n  indented\n";
    if (i % 5 == 0) out += " trailing \nnext 12345 67\n\tx";
  }
  return out;
}

void expect_cut_as_whole(const Tokenizer& tokenizer) {
  const std::string text = mixed_text();
  TextCutter cutter(tokenizer.strips_leading_space());
  Ids tokens;
  int parts = 0;
  for (size_t at = 0; at < text.size(); at += 7777) {
    cutter.push(std::string_view(text).substr(at, 7777));
    while (auto part = cutter.next(at + 7777 >= text.size())) {
      ++parts;
      const Ids ids = must_encode(tokenizer, *part);
      tokens.insert(tokens.end(), ids.begin(), ids.end());
    }
  }
  EXPECT_GE(parts, 4);
  const Ids whole = must_encode(tokenizer, text);
  ASSERT_EQ(tokens.size(), whole.size());
  EXPECT_EQ(tokens, whole);
}

TEST(TextCutter, TokensOfThePartsAreThoseOfTheWholeText) {
  for (const char* name : {"byte_bpe.json", "char_bpe.json", "char_bpe_prefix.json"}) {
    SCOPED_TRACE(name);
    expect_cut_as_whole(must_build(json_vocabulary(name)));
  }
  for (const char* pre : {"gpt-2", "llama-bpe", "qwen2", "smollm", "deepseek-llm"}) {
    SCOPED_TRACE(pre);
    Vocabulary v = byte_vocabulary();
    v.pre = pre;
    auto tokenizer = Tokenizer::build(std::move(v));
    if (!tokenizer.ok()) continue;  // not a name that we know
    expect_cut_as_whole(*tokenizer);
  }
}

TEST(TextCutter, TextWithoutAPlaceToCutComesInPartsOfBoundedSizeAndWholeCharacters) {
  TextCutter cutter(false);
  std::string text, back;
  for (int i = 0; i < 1000000; ++i) text += "\xe4\xb8\x96";
  for (size_t at = 0; at < text.size(); at += 100000) {
    cutter.push(std::string_view(text).substr(at, 100000));
    while (auto part = cutter.next(at + 100000 >= text.size())) {
      EXPECT_LE(part->size(), TextCutter::kMostPart + 100000);
      EXPECT_EQ(static_cast<unsigned char>((*part)[0]), 0xe4);
      back += *part;
    }
  }
  EXPECT_EQ(back, text);
  EXPECT_FALSE(cutter.next(true).has_value());
}

}  // namespace
}  // namespace headrace
