#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "headrace/base/system_memory.h"

namespace headrace {
namespace {

constexpr Bytes kWhole = 1000 * kMiB;

TEST(ParseSize, TakesEveryUnitInAnyCase) {
  const std::vector<std::pair<std::string, Bytes>> table = {
      {"1", 1},
      {"4096", 4096},
      {"4096b", 4096},
      {"12k", 12 * kKiB},
      {"12KiB", 12 * kKiB},
      {"12kB", 12'000},
      {"800M", 800 * kMiB},
      {"512MiB", 512 * kMiB},
      {"512mib", 512 * kMiB},
      {"512MB", 512'000'000},
      {"2g", 2 * kGiB},
      {"2GiB", 2 * kGiB},
      {"2GB", 2'000'000'000},
      {"1.5GiB", 1536 * kMiB},
      {"0.5k", 512},
      {"3T", 3 * 1024 * kGiB},
      {"3TiB", 3 * 1024 * kGiB},
      {"3TB", 3'000'000'000'000},
      {"1e3", 1000},
      {"60%", 600 * kMiB},
      {"0.1%", kMiB},
      {"100%", kWhole},
      {"150%", 1500 * kMiB},
  };
  for (const auto& [text, bytes] : table) {
    const Result<Bytes> r = parse_size(text, kWhole);
    ASSERT_TRUE(r.ok()) << text << ": " << r.status().message();
    EXPECT_EQ(*r, bytes) << text;
  }
}

TEST(ParseSize, RefusesWhatIsNoSizeAndNamesTheText) {
  for (const char* text :
       {"", "MiB", "%", "auto", "12 MiB", " 12MiB", "12MiB ", "12XB", "12MiBs", "1,5GiB",
        "0x10", "+5MiB", "--3", "1.2.3", "12%%", "1e400", "ten"}) {
    const Result<Bytes> r = parse_size(text, kWhole);
    ASSERT_FALSE(r.ok()) << text;
    EXPECT_EQ(r.status().code(), Code::kUsage) << text;
    EXPECT_THAT(r.status().message(),
                ::testing::HasSubstr(std::string("'") + text + "'"));
  }
}

TEST(ParseSize, RefusesSizesThatHoldNothingOrAreBeyond64Bits) {
  for (const char* text : {"0", "0MiB", "0%", "-1", "-512MiB", "-10%", "0.5", "1e-10GiB",
                           "nan", "nanMiB", "inf", "-inf", "1e19", "9000000TiB"}) {
    const Result<Bytes> r = parse_size(text, kWhole);
    ASSERT_FALSE(r.ok()) << text << " became " << *r;
    EXPECT_EQ(r.status().code(), Code::kUsage) << text;
    EXPECT_THAT(r.status().message(),
                ::testing::HasSubstr(std::string("'") + text + "'"));
  }
}

TEST(ParseSize, APercentageOfNothingHoldsNothing) {
  EXPECT_FALSE(parse_size("50%", 0).ok());
}

}  // namespace
}  // namespace headrace
