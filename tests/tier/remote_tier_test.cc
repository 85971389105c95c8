#include "headrace/tier/remote_tier.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "headrace/tier/host_tier.h"
#include "tests/tier/tier_testing.h"

namespace headrace {
namespace {

using testing::HasSubstr;
using testing_tier::fill;
using testing_tier::first_difference;
using testing_tier::TempFolder;

TEST(RemoteTier, GivesTheAddressOfAnExtentWithoutACopy) {
  TempFolder folder("/dev/shm");
  auto tier =
      open_remote_tier({PoolKind::kScratchFile, folder.file("p")}, {100, 8 * kPage});
  ASSERT_TRUE(tier.ok()) << tier.status().message();
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
  auto direct = (*tier)->direct({1, kPage, 2 * kPage});
  ASSERT_TRUE(direct.ok());
  fill(*direct, 1);
  std::vector<std::byte> copy(2 * kPage);
  auto t = (*tier)->load({1, kPage, 2 * kPage}, copy);
  ASSERT_TRUE(t.ok() && (*tier)->wait(*t).ok());
  EXPECT_EQ(first_difference(copy, 1), -1);
  EXPECT_EQ((*tier)->direct({0, 0, 101}).status().code(), Code::kUsage);
  EXPECT_EQ((*tier)->direct({2, 0, 1}).status().code(), Code::kUsage);
  EXPECT_EQ((*tier)->direct({0, -1, 1}).status().code(), Code::kUsage);
  EXPECT_EQ((*tier)->direct({0, 0, -1}).status().code(), Code::kUsage);
}

TEST(RemoteTier, AFileOfScratchsNameIsNeitherInTheWayNorTouched) {
  TempFolder folder("/dev/shm");
  std::ofstream(folder.file("precious")).put('x');
  auto tier = open_remote_tier({PoolKind::kScratchFile, folder.file("precious")}, {kPage});
  ASSERT_TRUE(tier.ok()) << tier.status().message();
  tier->reset();
  EXPECT_EQ(std::filesystem::file_size(folder.file("precious")), 1u);
}

TEST(RemoteTier, TwoTiersSeeTheSameBytesOfASharedPool) {
  TempFolder folder("/dev/shm");
  const std::string path = folder.file("pool");
  std::ofstream(path).close();
  std::filesystem::resize_file(path, 64 * kKiB);
  auto writer = open_remote_tier({PoolKind::kSharedFile, path}, {64 * kKiB});
  auto reader = open_remote_tier({PoolKind::kSharedFile, path}, {64 * kKiB});
  ASSERT_TRUE(writer.ok() && reader.ok());
  std::vector<std::byte> data(64 * kKiB);
  fill(data, 5);
  auto t = (*writer)->store(data, {0, 0, 64 * kKiB});
  ASSERT_TRUE(t.ok() && (*writer)->wait(*t).ok());
  auto seen = (*reader)->direct({0, 0, 64 * kKiB});
  ASSERT_TRUE(seen.ok());
  EXPECT_EQ(first_difference(*seen, 5), -1);
  // The pool outlives its tiers.
  writer->reset();
  reader->reset();
  EXPECT_EQ(std::filesystem::file_size(path), 65536u);
}

TEST(RemoteTier, RefusesPoolsThatAreTooSmallOnADiskOrNotThere) {
  TempFolder folder("/dev/shm");
  std::ofstream(folder.file("small")).put('x');
  const auto small =
      open_remote_tier({PoolKind::kSharedFile, folder.file("small")}, {kPage});
  EXPECT_EQ(small.status().code(), Code::kDoesNotFit);
  const auto huge =
      open_remote_tier({PoolKind::kScratchFile, folder.file("h")}, {int64_t{1} << 50});
  EXPECT_EQ(huge.status().code(), Code::kDoesNotFit) << huge.status().message();
  EXPECT_FALSE(std::filesystem::exists(folder.file("h")));
  const auto missing =
      open_remote_tier({PoolKind::kSharedFile, folder.file("no")}, {kPage});
  EXPECT_EQ(missing.status().code(), Code::kIo);
  EXPECT_THAT(missing.status().message(), HasSubstr("No such file"));
  const auto device = open_remote_tier({PoolKind::kSharedFile, "/dev/null"}, {kPage});
  EXPECT_EQ(device.status().code(), Code::kUnsupported);
  const auto directory =
      open_remote_tier({PoolKind::kSharedFile, folder.path()}, {kPage});
  EXPECT_EQ(directory.status().code(), Code::kUnsupported);

  TempFolder disk;
  if (disk.path().rfind("/dev/shm", 0) == 0) GTEST_SKIP() << "the build folder is in RAM";
  std::ofstream(disk.file("f")) << std::string(8192, 'x');
  const auto on_disk = open_remote_tier({PoolKind::kSharedFile, disk.file("f")}, {kPage});
  EXPECT_EQ(on_disk.status().code(), Code::kUnsupported);
  EXPECT_THAT(on_disk.status().message(), HasSubstr("file tier"));
}

TEST(RemoteTier, TakesMemoryOfANumaNodeAndRefusesNodesThatAreNotThere) {
  auto tier = open_remote_tier({PoolKind::kNumaNode, "", 0}, {64 * kKiB});
  if (tier.status().code() == Code::kUnsupported)
    GTEST_SKIP() << tier.status().message();  // a kernel without NUMA policy
  ASSERT_TRUE(tier.ok()) << tier.status().message();
  auto direct = (*tier)->direct({0, 0, 64 * kKiB});
  ASSERT_TRUE(direct.ok());
  fill(*direct, 2);
  const auto absent = open_remote_tier({PoolKind::kNumaNode, "", 1023}, {kPage});
  EXPECT_EQ(absent.status().code(), Code::kUnsupported);
  EXPECT_THAT(absent.status().message(), HasSubstr("1023"));
  EXPECT_EQ(open_remote_tier({PoolKind::kNumaNode, "", -1}, {kPage}).status().code(),
            Code::kUsage);
}

TEST(HostTier, IsZeroWhenFreshAndRefusesWhatCannotBeMapped) {
  auto tier = open_host_tier({kPage});
  ASSERT_TRUE(tier.ok());
  auto direct = (*tier)->direct({0, 0, kPage});
  ASSERT_TRUE(direct.ok());
  for (std::byte b : *direct) ASSERT_EQ(b, std::byte{0});
  EXPECT_GE((*tier)->describe().memory_bytes, kPage);
  EXPECT_EQ(open_host_tier({int64_t{1} << 50}).status().code(), Code::kDoesNotFit);
  EXPECT_EQ(open_host_tier({-1}).status().code(), Code::kUsage);
  EXPECT_EQ(open_host_tier({INT64_MAX, INT64_MAX}).status().code(), Code::kUsage);
  EXPECT_EQ(open_host_tier({kPage}, {0, true}).status().code(), Code::kUsage);
  EXPECT_TRUE(open_host_tier({}).ok());
}

}  // namespace
}  // namespace headrace
