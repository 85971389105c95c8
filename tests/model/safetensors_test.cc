#include "headrace/model/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/model/gguf_writer.h"
#include "tests/model/scratch.h"
#include "tests/model/tiny_models.h"

namespace headrace {
namespace {

using ::testing::HasSubstr;
using testing::put;
using testing::Scratch;

// A file with this header and `data` bytes of data.
std::string file_with(const std::string& header, size_t data = 32) {
  std::string out;
  put<uint64_t>(&out, header.size());
  return out + header + std::string(data, 'd');
}

Result<SafetensorsFile> read_bytes(const std::string& bytes) {
  Scratch scratch;
  testing::write_file(scratch.path("m.safetensors"), bytes);
  return read_safetensors(scratch.path("m.safetensors"), 7);
}

void expect_bad(const std::string& bytes, const std::string& part,
                Code code = Code::kBadFile) {
  const auto file = read_bytes(bytes);
  ASSERT_FALSE(file.ok()) << "accepted; expected: " << part;
  EXPECT_EQ(file.status().code(), code) << file.status().message();
  EXPECT_THAT(file.status().message(), HasSubstr(part));
}

// A header with one tensor 't' of 32 bytes, one member replaced.
std::string header(const std::string& dtype, const std::string& shape,
                   const std::string& offsets) {
  return R"({"t":{"dtype":)" + dtype + R"(,"shape":)" + shape + R"(,"data_offsets":)" +
         offsets + "}}";
}

TEST(Safetensors, GivesWeightsWithTheirExtents) {
  const std::string bytes =
      testing::safetensors_bytes({{"b", "BF16", {2, 3}, std::string(12, 'b')},
                                  {"a", "F32", {4}, std::string(16, 'a')}});
  const auto file = read_bytes(bytes);
  ASSERT_TRUE(file.ok()) << file.status().message();
  ASSERT_EQ(file->weights.size(), 2u);
  const WeightInfo& b = file->weights[0];
  EXPECT_EQ(b.name, "b");
  EXPECT_EQ(b.dtype, DType::kBF16);
  EXPECT_EQ(b.rows, 2);
  EXPECT_EQ(b.cols, 3);
  EXPECT_EQ(b.source.file, 7);
  EXPECT_EQ(bytes.substr(static_cast<size_t>(b.source.offset), 12), std::string(12, 'b'));
  EXPECT_EQ(file->weights[1].rows, 1);
  EXPECT_EQ(file->weights[1].cols, 4);
  EXPECT_EQ(file->file_bytes, static_cast<Bytes>(bytes.size()));
}

TEST(Safetensors, EveryTruncationIsRefused) {
  const std::string whole =
      testing::safetensors_bytes({{"a", "F32", {4}, std::string(16, 'a')}});
  for (size_t n = 0; n < whole.size(); ++n) {
    const auto file = read_bytes(whole.substr(0, n));
    ASSERT_FALSE(file.ok()) << n;
    EXPECT_EQ(file.status().code(), Code::kBadFile) << file.status().message();
  }
}

TEST(Safetensors, RefusesBadHeaders) {
  std::string huge;
  put<uint64_t>(&huge, ~0ull);
  expect_bad(huge + "{}", "the header is said to have");
  expect_bad(file_with(""), "not valid JSON");
  expect_bad(file_with("[]"), "an array where it does not belong");
  expect_bad(file_with("{\"t\": 5}"), "an integer where it does not belong");
  expect_bad(file_with("{\"t\": {}}"), "tensor 't' has no 'dtype'");
  expect_bad(file_with("{\"\": {}}"), "no name");
  expect_bad(file_with("{\"t\": {\"x\": 1}}"), "unknown member 'x'");
  expect_bad(file_with("{\"t\": {\"dtype\": \"F32\", \"dtype\": \"F32\"}}"), "twice");
  expect_bad(file_with("{\"t\": {\"shape\": [[1]]}}"),
             "an array where it does not belong");
  expect_bad(file_with("{\"t\": {\"shape\": {\"a\": 1}}}"), "an object");
}

TEST(Safetensors, RefusesBadTypesShapesAndOffsets) {
  const std::string f32 = "\"F32\"";
  expect_bad(file_with(header("\"F8_E4M3\"", "[8]", "[0,8]")),
             "tensor 't' has type 'F8_E4M3', which is not supported", Code::kUnsupported);
  expect_bad(file_with(header("5", "[8]", "[0,32]")), "an integer where");
  expect_bad(file_with(header(f32, "[0]", "[0,32]")), "a dimension is 0");
  expect_bad(file_with(header(f32, "[-8]", "[0,32]")), "holds -8");
  expect_bad(file_with(header(f32, "[8.0]", "[0,32]")), "a number where");
  expect_bad(file_with(header(f32, "[99999999999999999]", "[0,32]")), "a dimension is");
  expect_bad(file_with(header(f32, "[16777216,16777216,16777216,1]", "[0,32]")),
             "overflows");
  expect_bad(file_with(header(f32, "[18446744073709551615]", "[0,32]")), "63 bits");
  expect_bad(file_with(header(f32, "[1,1,1,1,1,1,1,1,8]", "[0,32]")), "more than 8");
  expect_bad(file_with(header(f32, "[8]", "[0,31]")), "its shape needs 32 bytes");
  expect_bad(file_with(header(f32, "[8]", "[32,0]")), "not a range");
  expect_bad(file_with(header(f32, "[8]", "[0]")), "not a range");
  expect_bad(file_with(header(f32, "[8]", "[0,32]"), 16), "past the end of the file");
  expect_bad(file_with(header(f32, "[8]", "[0,32]"), 40), "cover 32 of the 40 bytes");
  expect_bad(file_with(header(f32, "[8]", "[8,40]"), 40), "holes are not allowed");
}

TEST(Safetensors, RefusesOverlaps) {
  expect_bad(file_with(R"({"a":{"dtype":"F32","shape":[4],"data_offsets":[0,16]},)"
                       R"("b":{"dtype":"F32","shape":[4],"data_offsets":[8,24]}})",
                       24),
             "overlaps and holes are not allowed");
}

}  // namespace
}  // namespace headrace
