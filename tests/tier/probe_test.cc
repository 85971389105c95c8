#include "headrace/tier/probe.h"

#include <gtest/gtest.h>

#include "tests/tier/tier_testing.h"

namespace headrace {
namespace {

using testing_tier::TempFolder;
using testing_tier::write_pattern_file;

TEST(Probe, GivesARateAndALatencyAndSaysHowItMeasured) {
  TempFolder folder;
  write_pattern_file(folder.file("a"), 3 * kMiB + 100, 1);
  ProbeOptions options;
  options.tier.chunk_bytes = 256 * kKiB;
  auto rate = measure_read_rate(folder.file("a"), options);
  ASSERT_TRUE(rate.ok()) << rate.status().message();
  EXPECT_GT(rate->bytes_per_s, 0);
  EXPECT_GT(rate->latency_ns, 0);
  EXPECT_EQ(rate->bytes, 3 * kMiB);
  EXPECT_FALSE(rate->method.empty());
  options.bytes = 1 * kMiB + 5;
  rate = measure_read_rate(folder.file("a"), options);
  ASSERT_TRUE(rate.ok());
  EXPECT_EQ(rate->bytes, 1 * kMiB);
}

TEST(Probe, RefusesFilesThatAreTooSmallAndOptionsOutOfRange) {
  TempFolder folder;
  write_pattern_file(folder.file("a"), 4096, 1);
  EXPECT_EQ(measure_read_rate(folder.file("a")).status().code(), Code::kUsage);
  EXPECT_EQ(measure_read_rate(folder.file("b")).status().code(), Code::kIo);
  ProbeOptions options;
  options.latency_reads = 0;
  EXPECT_EQ(measure_read_rate(folder.file("a"), options).status().code(), Code::kUsage);
  options = {};
  options.tier.queue_depth = -1;
  EXPECT_EQ(measure_read_rate(folder.file("a"), options).status().code(), Code::kUsage);
}

}  // namespace
}  // namespace headrace
