#include "headrace/base/status.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "headrace/base/types.h"

namespace headrace {
namespace {

TEST(Status, OkHasNoMessageAndExitCodeZero) {
  const Status ok;
  EXPECT_TRUE(ok.ok());
  EXPECT_EQ(ok.code(), Code::kOk);
  EXPECT_EQ(ok.message(), "");
  EXPECT_EQ(exit_code(ok.code()), 0);
  EXPECT_TRUE(Status(Code::kOk, "ignored").ok());
}

TEST(Status, EveryCodeHasTheDocumentedExitCodeAndAName) {
  const std::vector<std::tuple<Code, int, std::string>> table = {
      {Code::kUsage, 2, "usage"},
      {Code::kDoesNotFit, 3, "does_not_fit"},
      {Code::kBadFile, 4, "bad_file"},
      {Code::kUnsupported, 4, "unsupported"},
      {Code::kIo, 5, "io"},
      {Code::kNotFinite, 6, "not_finite"},
      {Code::kCancelled, 130, "cancelled"}};
  for (const auto& [code, exit, name] : table) {
    EXPECT_EQ(exit_code(code), exit);
    EXPECT_EQ(code_name(code), name);
  }
}

TEST(Status, ContextIsPutBeforeTheMessageAndOkStaysOk) {
  const Status s = error(Code::kIo, "read at %d: %s", 7, "gone").within("model.gguf");
  EXPECT_EQ(s.code(), Code::kIo);
  EXPECT_EQ(s.message(), "model.gguf: read at 7: gone");
  EXPECT_TRUE(Status().within("anything").ok());
}

TEST(Status, MessagesOfAnyLengthAreWhole) {
  const std::string longer(5000, 'x');
  EXPECT_EQ(error(Code::kIo, "%s", longer.c_str()).message(), longer);
  EXPECT_EQ(text_of("%s", ""), "");
}

TEST(HumanBytes, ThreeFiguresAndTheUnitThatSuits) {
  EXPECT_EQ(human_bytes(0), "0 B");
  EXPECT_EQ(human_bytes(812), "812 B");
  EXPECT_EQ(human_bytes(-1), "-1 B");
  EXPECT_EQ(human_bytes(1536 * kMiB), "1.50 GiB");
  EXPECT_EQ(human_bytes(98 * kMiB + 400 * kKiB), "98.4 MiB");
  EXPECT_EQ(human_bytes(-2 * kMiB), "-2.00 MiB");
  EXPECT_EQ(human_bytes(5000 * 1024 * kGiB), "5000.0 TiB");
}

Result<int> half_of(int n) {
  if (n % 2 != 0) return error(Code::kUsage, "%d is odd", n);
  return n / 2;
}
Result<int> quarter_of(int n) {
  HR_ASSIGN(const int half, half_of(n));
  HR_ASSIGN(const int quarter, half_of(half));
  return quarter;
}
Status divisible_by_four(int n) {
  HR_TRY(quarter_of(n).status());
  return {};
}

TEST(Result, PropagatesTheFirstError) {
  ASSERT_TRUE(quarter_of(12).ok());
  EXPECT_EQ(*quarter_of(12), 3);
  EXPECT_EQ(quarter_of(6).status().message(), "3 is odd");
  EXPECT_EQ(divisible_by_four(7).message(), "7 is odd");
  EXPECT_TRUE(divisible_by_four(8).ok());
}

TEST(Result, CarriesWhatCanOnlyBeMoved) {
  Result<std::unique_ptr<int>> r(std::make_unique<int>(5));
  std::unique_ptr<int> p = std::move(r).value();
  EXPECT_EQ(*p, 5);
}

TEST(CheckDeathTest, AFailedCheckNamesConditionReasonAndPlace) {
  EXPECT_DEATH(HR_CHECK(1 + 1 == 3, "arithmetic holds"),
               "status_test.cc:[0-9]+: arithmetic holds .1 \\+ 1 == 3");
}

}  // namespace
}  // namespace headrace
