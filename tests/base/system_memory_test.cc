// memory_room() on trees laid out as the kernel does, control groups v1 and v2, on the
// host and seen from inside a container.
#include "headrace/base/system_memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

namespace headrace {
namespace {

using ::testing::HasSubstr;

class FakeSystem {
 public:
  FakeSystem() {
    std::string name = ::testing::TempDir() + "headrace_cgroup_XXXXXX";
    EXPECT_NE(mkdtemp(name.data()), nullptr);
    root_ = name;
    meminfo(16 * kGiB);
  }
  ~FakeSystem() {
    std::error_code ignored;
    std::filesystem::remove_all(root_, ignored);
  }
  FakeSystem(const FakeSystem&) = delete;

  void write(const std::string& path, const std::string& text) {
    const std::filesystem::path full = root_ + path;
    std::filesystem::create_directories(full.parent_path());
    std::ofstream(full) << text;
  }
  void meminfo(Bytes available) {
    write("/proc/meminfo",
          "MemTotal:       65536000 kB\nMemFree:         1000 kB\nMemAvailable:   " +
              std::to_string(available / kKiB) + " kB\n");
  }
  void own_group(const std::string& lines) { write("/proc/self/cgroup", lines); }
  void v2(const std::string& group, const std::string& limit, Bytes usage,
          Bytes inactive = 0) {
    const std::string at = "/sys/fs/cgroup" + group;
    write(at + "/memory.max", limit + "\n");
    write(at + "/memory.current", std::to_string(usage) + "\n");
    write(at + "/memory.stat",
          "anon 1234\nfile 999999999\nactive_file 7\ninactive_file " +
              std::to_string(inactive) + "\nslab 5\n");
  }
  void v1(const std::string& group, const std::string& limit, Bytes usage,
          Bytes inactive = 0) {
    const std::string at = "/sys/fs/cgroup/memory" + group;
    write(at + "/memory.limit_in_bytes", limit + "\n");
    write(at + "/memory.usage_in_bytes", std::to_string(usage) + "\n");
    write(at + "/memory.stat",
          "cache 999\ninactive_file 1\ntotal_cache 999\ntotal_inactive_file " +
              std::to_string(inactive) +
              "\nhierarchical_memory_limit 9223372036854771712\n");
  }
  MemoryRoom room() {
    const Result<MemoryRoom> r = memory_room(root_);
    EXPECT_TRUE(r.ok()) << r.status().message();
    return r.ok() ? *r : MemoryRoom();
  }
  const std::string& root() const { return root_; }

 private:
  std::string root_;
};

std::string mib(Bytes n) { return std::to_string(n * kMiB); }
const char* const kNoLimitV1 = "9223372036854771712";

TEST(MemoryRoom, WithoutAnyGroupMemAvailableIsTheRoom) {
  FakeSystem system;
  const MemoryRoom room = system.room();
  EXPECT_EQ(room.available, 16 * kGiB);
  EXPECT_EQ(room.cgroup_left, -1);
  EXPECT_EQ(room.limited_by, "MemAvailable");
}

TEST(MemoryRoom, WithoutMeminfoItIsAnErrorThatNamesTheFile) {
  FakeSystem system;
  system.write("/proc/meminfo", "MemTotal: 5 kB\n");
  const Result<MemoryRoom> r = memory_room(system.root());
  ASSERT_FALSE(r.ok());
  EXPECT_EQ(r.status().code(), Code::kIo);
  EXPECT_THAT(r.status().message(), HasSubstr("/proc/meminfo"));
}

TEST(MemoryRoom, WithoutMeminfoAGroupsLimitIsStillKnown) {
  FakeSystem system;
  system.write("/proc/meminfo", "");
  system.own_group("0::/job\n");
  system.v2("/job", mib(800), 300 * kMiB);
  const MemoryRoom room = system.room();
  EXPECT_EQ(room.available, 500 * kMiB);
  EXPECT_EQ(room.mem_available, -1);
  EXPECT_EQ(room.limited_by, "/job");
  EXPECT_EQ(check_group_limit(801 * kMiB, room).code(), Code::kDoesNotFit);
}

TEST(MemoryRoom, V2LimitLessUsageIsTheRoom) {
  FakeSystem system;
  system.own_group("0::/user/job\n");
  system.v2("/user/job", mib(800), 300 * kMiB);
  const MemoryRoom room = system.room();
  EXPECT_EQ(room.available, 500 * kMiB);
  EXPECT_EQ(room.cgroup_left, 500 * kMiB);
  EXPECT_EQ(room.limited_by, "/user/job");
  EXPECT_EQ(room.mem_available, 16 * kGiB);
}

TEST(MemoryRoom, V2WordMaxIsNoLimit) {
  FakeSystem system;
  system.own_group("0::/a\n");
  system.v2("/a", "max", 300 * kMiB);
  EXPECT_EQ(system.room().cgroup_left, -1);
  EXPECT_EQ(system.room().available, 16 * kGiB);
}

TEST(MemoryRoom, V2SoftLimitCountsWhereItIsLower) {
  FakeSystem system;
  system.own_group("0::/a\n");
  system.v2("/a", "max", 300 * kMiB);
  system.write("/sys/fs/cgroup/a/memory.high", mib(700) + "\n");
  EXPECT_EQ(system.room().available, 400 * kMiB);
  system.v2("/a", mib(500), 300 * kMiB);
  EXPECT_EQ(system.room().available, 200 * kMiB);
  system.write("/sys/fs/cgroup/a/memory.high", "max\n");
  EXPECT_EQ(system.room().available, 200 * kMiB);
}

// Both hierarchies are mounted, the controller is in the old one.
TEST(MemoryRoom, InAHybridTreeTheOldHierarchysLimitIsFound) {
  FakeSystem system;
  system.own_group("4:memory:/job\n1:name=systemd:/job\n0::/job\n");
  system.v1("/job", mib(600), 100 * kMiB);
  system.write("/sys/fs/cgroup/unified/job/cgroup.procs", "1\n");
  EXPECT_EQ(system.room().available, 500 * kMiB);
}

TEST(MemoryRoom, TheSmallestLimitOnTheWayUpIsTheMostThatAProcessMayHold) {
  FakeSystem system;
  EXPECT_EQ(system.room().cgroup_limit, -1);
  EXPECT_TRUE(check_group_limit(100 * kGiB, system.room()).ok());
  system.own_group("0::/pod/job\n");
  system.v2("/pod/job", mib(900), 890 * kMiB);
  system.v2("/pod", mib(600), 10 * kMiB);
  system.v2("", "max", 5 * kGiB);
  const MemoryRoom room = system.room();
  EXPECT_EQ(room.cgroup_limit, 600 * kMiB);
  EXPECT_EQ(room.cgroup_left, 10 * kMiB);
  EXPECT_TRUE(check_group_limit(600 * kMiB, room).ok());
  const Status status = check_group_limit(600 * kMiB + 1, room);
  EXPECT_EQ(status.code(), Code::kDoesNotFit);
  EXPECT_THAT(status.message(), HasSubstr("--memory 600MiB at most"));
}

TEST(MemoryRoom, ALimitOfAParentCounts) {
  FakeSystem system;
  system.own_group("0::/a/b/c\n");
  system.v2("/a/b/c", "max", 100 * kMiB);
  system.v2("/a/b", mib(900), 500 * kMiB);
  system.v2("/a", mib(2000), 1900 * kMiB);
  const MemoryRoom room = system.room();
  EXPECT_EQ(room.available, 100 * kMiB);
  EXPECT_EQ(room.limited_by, "/a");
}

TEST(MemoryRoom, InactivePageCacheCountsAsFree) {
  FakeSystem system;
  system.own_group("0::/a\n");
  system.v2("/a", mib(1000), 990 * kMiB, 700 * kMiB);
  EXPECT_EQ(system.room().available, 710 * kMiB);
}

TEST(MemoryRoom, CacheLargerThanUsageGivesNoMoreThanTheLimit) {
  FakeSystem system;
  system.own_group("0::/a\n");
  system.v2("/a", mib(1000), 10 * kMiB,
            700 * kMiB);  // the two files are read at two times
  EXPECT_EQ(system.room().available, 1000 * kMiB);
}

TEST(MemoryRoom, AGroupBeyondItsLimitHasNoRoom) {
  FakeSystem system;
  system.own_group("0::/a\n");
  system.v2("/a", mib(100), 130 * kMiB);
  EXPECT_EQ(system.room().available, 0);
}

TEST(MemoryRoom, AMachineTighterThanTheGroupIsTheLimit) {
  FakeSystem system;
  system.meminfo(200 * kMiB);
  system.own_group("0::/a\n");
  system.v2("/a", mib(800), 300 * kMiB);
  const MemoryRoom room = system.room();
  EXPECT_EQ(room.available, 200 * kMiB);
  EXPECT_EQ(room.cgroup_left, 500 * kMiB);
  EXPECT_EQ(room.limited_by, "MemAvailable");
}

TEST(MemoryRoom, V1IsReadFromTheMemoryControllersOwnMount) {
  FakeSystem system;
  system.own_group("12:cpu,cpuacct:/other\n5:memory:/job\n0::/ignored\n");
  system.v1("/job", mib(600), 550 * kMiB, 150 * kMiB);
  system.v1("", kNoLimitV1, 3 * kGiB);
  const MemoryRoom room = system.room();
  EXPECT_EQ(room.available, 200 * kMiB);
  EXPECT_EQ(room.limited_by, "/job");
}

TEST(MemoryRoom, V1MemoryAmongSeveralControllersIsFound) {
  FakeSystem system;
  system.own_group("5:hugetlb,memory,pids:/job\n");
  system.v1("/job", mib(600), 100 * kMiB);
  EXPECT_EQ(system.room().available, 500 * kMiB);
}

TEST(MemoryRoom, V1LimitOfAParentCounts) {
  FakeSystem system;
  system.own_group("5:memory:/pod/job\n");
  system.v1("/pod/job", kNoLimitV1, 100 * kMiB);
  system.v1("/pod", mib(400), 100 * kMiB);
  EXPECT_EQ(system.room().available, 300 * kMiB);
}

// In a container without a cgroup namespace /proc/self/cgroup names the host's path,
// while the mount shows the container's own group at its top.
TEST(MemoryRoom, InAContainerTheLimitAtTheTopOfTheMountIsFoundV1) {
  FakeSystem system;
  system.own_group("5:memory:/docker/0123456789abcdef\n");
  system.v1("", mib(512), 100 * kMiB, 50 * kMiB);
  const MemoryRoom room = system.room();
  EXPECT_EQ(room.available, 462 * kMiB);
  EXPECT_EQ(room.limited_by, "/");
}

TEST(MemoryRoom, InAContainerTheLimitAtTheTopOfTheMountIsFoundV2) {
  FakeSystem system;
  system.own_group("0::/\n");
  system.v2("", mib(512), 100 * kMiB);
  EXPECT_EQ(system.room().available, 412 * kMiB);
  system.own_group("0::/kubepods/burstable/pod1/abc\n");
  EXPECT_EQ(system.room().available, 412 * kMiB);
}

// A process moved out of its namespace's root sees such paths.
TEST(MemoryRoom, PathsOutsideTheNamespaceDoNoHarm) {
  FakeSystem system;
  system.own_group("0::/../../other\n");
  system.v2("", mib(512), 100 * kMiB);
  EXPECT_EQ(system.room().available, 412 * kMiB);
}

TEST(MemoryRoom, MalformedLinesAreSkipped) {
  FakeSystem system;
  system.own_group("\n:\nnonsense\n0::relative\n7:memory\n5:memory:\n");
  system.v1("", mib(300), 100 * kMiB);
  EXPECT_EQ(system.room().available, 200 * kMiB);
}

TEST(MemoryRoom, OfThisMachineIsSensible) {
  const Result<MemoryRoom> r = memory_room();
  ASSERT_TRUE(r.ok()) << r.status().message();
  EXPECT_GT(r->mem_available, 0);
  EXPECT_LE(r->available, r->mem_available);
}

TEST(ProcessMemory, GrowsByWhatIsTouched) {
  const ProcessMemory before = process_memory();
  EXPECT_GT(before.rss, kMiB);
  EXPECT_GE(before.peak_rss, before.rss);
  EXPECT_GT(before.page_tables, 0);
  std::vector<char> block(64 * kMiB);
  for (size_t i = 0; i < block.size(); i += 4096) block[i] = 1;
  const ProcessMemory after = process_memory();
  EXPECT_GE(after.anonymous - before.anonymous, 60 * kMiB);
  EXPECT_GE(after.peak_rss, after.rss);
  EXPECT_GT(block[4096], 0);
}

TEST(ProcessMemory, ThePeakCountsFromWhereItWasReset) {
  {
    std::vector<char> block(64 * kMiB);
    for (size_t i = 0; i < block.size(); i += 4096) block[i] = 1;
    EXPECT_GT(block[4096], 0);
  }
  const ProcessMemory before = process_memory();
  EXPECT_GE(before.peak_rss, before.rss + 32 * kMiB);
  ASSERT_TRUE(reset_peak_memory().ok());
  EXPECT_LT(process_memory().peak_rss, before.peak_rss - 32 * kMiB);
}

TEST(ProcessMemory, WithTheAllocatorTunedFreedMemoryGoesBackAtOnce) {
  tune_malloc();
  std::vector<std::unique_ptr<std::vector<char>>> blocks, kept;
  for (int i = 0; i < 400; ++i) {
    blocks.push_back(std::make_unique<std::vector<char>>(80 * kKiB, 'x'));
    kept.push_back(std::make_unique<std::vector<char>>(64));
  }
  const Bytes full = process_memory().anonymous;
  blocks.clear();
  EXPECT_LT(process_memory().anonymous, full - 25 * kMiB);
}

}  // namespace
}  // namespace headrace
