#include "headrace/model/gguf.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "tests/model/gguf_writer.h"
#include "tests/model/scratch.h"
#include "tests/model/tiny_models.h"

namespace headrace {
namespace {

using testing::GgufWriter;
using ::testing::HasSubstr;
using testing::put;
using testing::put_string;
using testing::Scratch;

constexpr uint32_t kF32 = testing::kGgmlF32;

Result<ModelFile> open_bytes(const std::string& bytes) {
  Scratch scratch;
  testing::write_file(scratch.path("m.gguf"), bytes);
  return open_model(scratch.path("m.gguf"));
}

// A file with one good key and one good tensor, to be broken.
GgufWriter small() {
  GgufWriter w;
  w.text("general.architecture", "llama");
  w.tensor("a", kF32, {8}, std::string(32, 'x'));
  return w;
}

void expect_refused(const std::string& bytes, Code code, const std::string& part) {
  const auto model = open_bytes(bytes);
  ASSERT_FALSE(model.ok()) << "accepted; expected: " << part;
  EXPECT_EQ(model.status().code(), code) << model.status().message();
  EXPECT_THAT(model.status().message(), HasSubstr(part));
}
void expect_bad(const GgufWriter& w, const std::string& part) {
  expect_refused(w.bytes(), Code::kBadFile, part);
}

template <typename T>
std::string bytes_of(T value) {
  std::string out;
  put(&out, value);
  return out;
}

TEST(Gguf, ReadsEveryTypeOfValue) {
  GgufWriter w;
  w.number<uint8_t>("u8", testing::kGgufU8, 200);
  w.number<int8_t>("i8", testing::kGgufI8, -3);
  w.number<uint16_t>("u16", testing::kGgufU16, 60000);
  w.number<int16_t>("i16", testing::kGgufI16, -300);
  w.number<uint32_t>("u32", testing::kGgufU32, 4000000000u);
  w.number<int32_t>("i32", testing::kGgufI32, -70000);
  w.number<uint64_t>("u64", testing::kGgufU64, 1ull << 40);
  w.number<int64_t>("i64", testing::kGgufI64, -(1ll << 40));
  w.f32("f32", 1.5f);
  w.number<double>("f64", testing::kGgufF64, 0.1);
  w.boolean("yes", true);
  w.text("text", "h\xc3\xa9");
  w.strings("words", {"a", "", "bc"});
  w.array<int32_t>("ints", testing::kGgufI32, {1, -2});
  w.array<uint32_t>("wide", testing::kGgufU32, {4000000000u});
  w.array<float>("floats", testing::kGgufF32, {0.5f});
  w.array<uint8_t>("bools", testing::kGgufBool, {1, 0});
  const auto model = open_bytes(w.bytes());
  ASSERT_TRUE(model.ok()) << model.status().message();
  const int64_t least = std::numeric_limits<int64_t>::min();
  const int64_t most = std::numeric_limits<int64_t>::max();
  const auto integer = [&](const char* key) {
    return *model->need_int(key, least, most);
  };
  EXPECT_EQ(integer("u8"), 200);
  EXPECT_EQ(integer("i8"), -3);
  EXPECT_EQ(integer("u16"), 60000);
  EXPECT_EQ(integer("i16"), -300);
  EXPECT_EQ(integer("u32"), 4000000000);
  EXPECT_EQ(integer("i32"), -70000);
  EXPECT_EQ(integer("u64"), 1ll << 40);
  EXPECT_EQ(integer("i64"), -(1ll << 40));
  EXPECT_EQ(*model->need_number("f32"), 1.5);
  EXPECT_EQ(*model->need_number("f64"), 0.1);
  EXPECT_EQ(*model->need_number("u8"), 200);
  EXPECT_TRUE(*model->need_bool("yes"));
  EXPECT_EQ(*model->need_string("text"), "h\xc3\xa9");
  const auto* words = model->find("words")->as<StringList>();
  ASSERT_NE(words, nullptr);
  ASSERT_EQ(words->size(), 3u);
  EXPECT_EQ((*words)[0], "a");
  EXPECT_EQ((*words)[1], "");
  EXPECT_EQ((*words)[2], "bc");
  EXPECT_EQ(*model->find("ints")->as<std::vector<int32_t>>(),
            (std::vector<int32_t>{1, -2}));
  EXPECT_EQ(*model->find("wide")->as<std::vector<int64_t>>(),
            (std::vector<int64_t>{4000000000}));
  EXPECT_EQ(*model->find("floats")->as<std::vector<float>>(), (std::vector<float>{0.5f}));
  EXPECT_EQ(*model->find("bools")->as<std::vector<bool>>(),
            (std::vector<bool>{true, false}));
}

TEST(Gguf, GivesWeightsAsRowsAndColumnsWithTheirExtents) {
  for (const uint32_t version : {2u, 3u}) {
    GgufWriter w;
    w.version = version;
    w.tensor("vector", kF32, {3}, std::string(12, 'v'));
    w.tensor("matrix", testing::kGgmlQ8_0, {64, 5}, std::string(340, 'm'));
    w.tensor("cube", testing::kGgmlF16, {4, 2, 3}, std::string(48, 'c'));
    const std::string bytes = w.bytes();
    const auto model = open_bytes(bytes);
    ASSERT_TRUE(model.ok()) << model.status().message();
    ASSERT_EQ(model->weights.size(), 3u);
    const WeightInfo* matrix = model->weight("matrix");
    ASSERT_NE(matrix, nullptr);
    EXPECT_EQ(matrix->dtype, DType::kQ8_0);
    EXPECT_EQ(matrix->rows, 5);
    EXPECT_EQ(matrix->cols, 64);
    EXPECT_EQ(matrix->source.bytes, 5 * 68);
    EXPECT_EQ(bytes[static_cast<size_t>(matrix->source.offset)], 'm');
    EXPECT_EQ(model->weight("vector")->rows, 1);
    EXPECT_EQ(model->weight("vector")->cols, 3);
    EXPECT_EQ(model->weight("cube")->rows, 6);
    EXPECT_EQ(model->weight("cube")->source.bytes, 48);
    EXPECT_EQ(model->weight("none"), nullptr);
    EXPECT_EQ(model->file_bytes[0], static_cast<Bytes>(bytes.size()));
  }
}

TEST(Gguf, HonoursTheAlignmentKey) {
  GgufWriter w;
  w.alignment = 4096;
  w.u32("general.alignment", 4096);
  w.tensor("a", kF32, {8}, std::string(32, 'a'));
  w.tensor("b", kF32, {8}, std::string(32, 'b'));
  const auto model = open_bytes(w.bytes());
  ASSERT_TRUE(model.ok()) << model.status().message();
  EXPECT_EQ(model->weight("a")->source.offset % 4096, 0);
  EXPECT_EQ(model->weight("b")->source.offset - model->weight("a")->source.offset, 4096);
}

TEST(Gguf, AVocabularyWithoutTensorsIsAModelFile) {
  GgufWriter w;
  w.strings("tokenizer.ggml.tokens", {"a", "b"});
  auto model = open_bytes(w.bytes());
  ASSERT_TRUE(model.ok()) << model.status().message();
  auto tokens = model->take<StringList>("tokenizer.ggml.tokens");
  ASSERT_TRUE(tokens.ok());
  EXPECT_EQ((*tokens)[1], "b");
  EXPECT_EQ(model->find("tokenizer.ggml.tokens"), nullptr);
  EXPECT_EQ(model->take<StringList>("tokenizer.ggml.tokens").status().code(),
            Code::kBadFile);
}

TEST(Gguf, EveryTruncationIsRefused) {
  const std::string whole = small().bytes();
  for (size_t n = 0; n < whole.size(); ++n) {
    const auto model = open_bytes(whole.substr(0, n));
    ASSERT_FALSE(model.ok()) << n << " of " << whole.size() << " bytes";
    EXPECT_EQ(model.status().code(), Code::kBadFile) << model.status().message();
  }
}

TEST(Gguf, RefusesOtherFilesAndVersions) {
  GgufWriter w = small();
  w.magic = "GGML";
  expect_bad(w, "not 'GGUF'");
  w = small();
  w.version = 1;
  expect_refused(w.bytes(), Code::kUnsupported, "version 1");
  w.version = 4;
  expect_refused(w.bytes(), Code::kUnsupported, "version 4");
  w.version = 0x03000000;
  expect_refused(w.bytes(), Code::kUnsupported, "big-endian");
}

TEST(Gguf, RefusesAbsurdCounts) {
  GgufWriter w = small();
  w.extra_tensors = 1;  // what follows the tensors is padding: a tensor with an empty name
  expect_bad(w, "tensor number 1 has no name");
  w = small();
  w.extra_tensors = int64_t{1} << 60;
  expect_bad(w, "tensors are said to follow");
  w = small();
  w.extra_keys = int64_t{1} << 40;
  expect_bad(w, "keys are said to follow");
}

TEST(Gguf, RefusesLengthsBeyondTheFile) {
  GgufWriter w = small();
  w.raw("k", testing::kGgufString, bytes_of<uint64_t>(~0ull));
  expect_bad(w, "key 'k'");
  w = small();
  w.raw("k", testing::kGgufString, bytes_of<uint64_t>(5000));
  expect_bad(w, "5000 bytes");
  const auto array = [](uint32_t type, uint64_t count) {
    return bytes_of(type) + bytes_of(count);
  };
  for (const uint64_t count : {uint64_t{5000}, ~uint64_t{0}, uint64_t{1} << 61}) {
    for (const uint32_t type :
         {testing::kGgufU8, testing::kGgufI16, testing::kGgufU32, testing::kGgufF64,
          testing::kGgufBool, testing::kGgufString}) {
      w = small();
      w.raw("k", testing::kGgufArray, array(type, count));
      expect_bad(w, "key 'k'");
    }
  }
  w = small();
  w.raw("k", testing::kGgufArray,
        array(testing::kGgufString, 1) + bytes_of(~uint64_t{0}));
  expect_bad(w, "string 0");
}

TEST(Gguf, RefusesBadKeys) {
  GgufWriter w = small();
  w.text("general.architecture", "llama");
  expect_bad(w, "key 'general.architecture' is there twice");
  w = small();
  w.raw("k", 13, "abcd");
  expect_bad(w, "value type 13");
  w = small();
  w.raw("", testing::kGgufBool, "\x01");
  expect_bad(w, "has no name");
  w = small();
  w.raw("k", testing::kGgufBool, "\x02");
  expect_bad(w, "a bool has the value 2");
  w = small();
  w.raw("k", testing::kGgufU64, bytes_of(~uint64_t{0}));
  expect_refused(w.bytes(), Code::kUnsupported, "does not fit 63 bits");
  w = small();
  w.raw("k", testing::kGgufArray,
        bytes_of<uint32_t>(testing::kGgufArray) + bytes_of<uint64_t>(0));
  expect_refused(w.bytes(), Code::kUnsupported, "array of arrays");
  w = small();
  w.raw("k", testing::kGgufArray, bytes_of<uint32_t>(99) + bytes_of<uint64_t>(0));
  expect_bad(w, "value type 99");
}

TEST(Gguf, RefusesBadAlignments) {
  for (const uint32_t alignment : {0u, 1u, 24u, 1u << 30}) {
    GgufWriter w = small();
    w.u32("general.alignment", alignment);
    expect_bad(w, "general.alignment");
  }
  GgufWriter w = small();
  w.text("general.alignment", "32");
  expect_bad(w, "is a string, not an integer");
}

TEST(Gguf, RefusesBadShapes) {
  const std::string data(64, 'x');
  const auto with = [&](const std::vector<uint64_t>& dims, uint32_t type = kF32) {
    GgufWriter w = small();
    w.tensor("t", type, dims, data);
    return w;
  };
  expect_bad(with({}), "0 dimensions");
  expect_bad(with({1, 1, 1, 1, 1}), "5 dimensions");
  expect_bad(with({0}), "dimension 0 is 0");
  expect_bad(with({4, 0}), "dimension 1 is 0");
  expect_bad(with({~0ull}), "dimension 0");
  expect_bad(with({1ull << 40, 1ull << 40}), "tensor 't'");
  expect_bad(with({2, 1ull << 40, 1ull << 40}), "overflows");
  expect_bad(with({33}, testing::kGgmlQ8_0), "not whole q8_0 blocks of 32");
  expect_bad(with({64, 2}, testing::kGgmlQ4_K), "not whole q4_k blocks of 256");
}

TEST(Gguf, NamesTypesThatAreNotSupported) {
  GgufWriter w = small();
  w.tensor("x", 17, {256}, std::string(74, 'x'));
  expect_refused(w.bytes(), Code::kUnsupported,
                 "tensor 'x' has type IQ2_XS (17), which is not supported");
  w = small();
  w.tensor("x", 4, {256}, std::string(74, 'x'));
  expect_refused(w.bytes(), Code::kUnsupported,
                 "tensor 'x' has type 4, which is not known");
}

TEST(Gguf, RefusesBadOffsets) {
  const std::string data(32, 'x');
  const auto with = [&](int64_t offset) {
    GgufWriter w = small();
    w.tensor("t", kF32, {8}, data, offset);
    return w;
  };
  expect_bad(with(33), "not a multiple of 32");
  expect_bad(with(64), "past the end of the file");
  expect_bad(with(std::numeric_limits<int64_t>::max() / 32 * 32), "past the end");
  expect_bad(with(0), "overlap");
  GgufWriter w = small();
  w.tensor("t", kF32, {1 << 20}, data);
  expect_bad(w, "past the end of the file");
}

TEST(Gguf, RefusesTensorsWithoutANameOfTheirOwn) {
  GgufWriter w = small();
  w.tensor("a", kF32, {8}, std::string(32, 'x'));
  expect_bad(w, "tensor 'a' is there twice");
  w = small();
  w.tensor("", kF32, {8}, std::string(32, 'x'));
  expect_bad(w, "has no name");
  w = small();
  w.tensor(std::string(256, 'n'), kF32, {8}, std::string(32, 'x'));
  expect_bad(w, "the name of a tensor");
}

TEST(Gguf, PrintsNamesSafely) {
  GgufWriter w = small();
  w.tensor("e\x1b[31m", kF32, {8}, std::string(32, 'x'));
  w.tensor("e\x1b[31m", kF32, {8}, std::string(32, 'x'));
  expect_bad(w, "'e\\x1b[31m'");
}

// Part `no` of `count`, with one tensor.
GgufWriter part(int no, int count, int tensors = -1) {
  GgufWriter w;
  if (no == 0) w.text("general.architecture", "llama");
  w.number<uint16_t>("split.no", testing::kGgufU16, static_cast<uint16_t>(no));
  w.number<uint16_t>("split.count", testing::kGgufU16, static_cast<uint16_t>(count));
  w.number<int32_t>("split.tensors.count", testing::kGgufI32,
                    tensors < 0 ? count : tensors);
  w.tensor("t" + std::to_string(no), kF32, {8},
           std::string(32, static_cast<char>('0' + no)));
  return w;
}

TEST(Gguf, AnyPartOfASplitModelOpensAll) {
  Scratch scratch;
  for (int no = 0; no < 3; ++no) {
    part(no, 3).write(scratch.path("m-0000" + std::to_string(no + 1) + "-of-00003.gguf"));
  }
  for (const char* name : {"/m-00001-of-00003.gguf", "/m-00003-of-00003.gguf", ""}) {
    const auto model = open_model(scratch.folder() + name);
    ASSERT_TRUE(model.ok()) << model.status().message();
    ASSERT_EQ(model->paths.size(), 3u);
    EXPECT_EQ(model->weight("t2")->source.file, 2);
    EXPECT_EQ(*model->need_string("general.architecture"), "llama");
  }
}

TEST(Gguf, RefusesSplitModelsThatAreNotWhole) {
  Scratch scratch;
  const auto name = [&](int no) {
    return scratch.path("m-0000" + std::to_string(no + 1) + "-of-00003.gguf");
  };
  const auto refused = [&](const std::string& path, const char* why) {
    const auto model = open_model(path);
    ASSERT_FALSE(model.ok());
    EXPECT_EQ(model.status().code(), Code::kBadFile);
    EXPECT_THAT(model.status().message(), HasSubstr(why));
  };
  part(0, 3).write(name(0));
  part(2, 3).write(name(2));
  refused(name(0), "part 2 of 3 is missing");
  part(0, 3).write(name(1));
  refused(name(0), "split.no is 0");
  part(1, 3).write(name(1));
  part(0, 3, 7).write(name(0));
  refused(name(0), "split.tensors.count is 7");
  part(0, 3).write(scratch.path("other.gguf"));
  refused(scratch.path("other.gguf"), "its name does not end in");
  part(0, 2).write(name(0));
  refused(name(1), "split.count is 2");
}

TEST(Gguf, AFolderWithOneGgufIsThatModel) {
  Scratch scratch;
  EXPECT_THAT(open_model(scratch.folder()).status().message(),
              HasSubstr("0 .gguf models"));
  small().write(scratch.path("one.gguf"));
  EXPECT_TRUE(open_model(scratch.folder()).ok());
  small().write(scratch.path("two.gguf"));
  EXPECT_THAT(open_model(scratch.folder()).status().message(),
              HasSubstr("2 .gguf models"));
}

TEST(Gguf, AFileThatCannotBeOpenedIsAnIoError) {
  const auto model = open_model("/nonexistent/m.gguf");
  ASSERT_FALSE(model.ok());
  EXPECT_EQ(model.status().code(), Code::kIo);
  EXPECT_THAT(model.status().message(), HasSubstr("/nonexistent/m.gguf"));
}

TEST(ModelFile, TypedReadingNamesTheKeyAndBothTypes) {
  const auto model = open_bytes(small().bytes());
  ASSERT_TRUE(model.ok());
  EXPECT_THAT(model->need_int("general.architecture", 0, 9).status().message(),
              HasSubstr("key 'general.architecture' is a string, not an integer"));
  EXPECT_THAT(model->need_int("none", 0, 9).status().message(),
              HasSubstr("key 'none' is missing"));
  EXPECT_EQ(*model->int_or("none", 0, 9, 4), 4);
  EXPECT_FALSE(model->number_or("general.architecture", 4).ok());
}

}  // namespace
}  // namespace headrace
