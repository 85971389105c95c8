#include "headrace/tier/file_tier.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "tests/tier/tier_testing.h"

namespace headrace {
namespace {

using testing::HasSubstr;
using testing_tier::fill;
using testing_tier::first_difference;
using testing_tier::TempFolder;
using testing_tier::write_pattern_file;

Arena make_arena(Bytes bytes) {
  auto arena = Arena::create(bytes);
  EXPECT_TRUE(arena.ok()) << arena.status().message();
  return std::move(arena).value();
}

std::unique_ptr<FileTier> open_ok(std::vector<std::string> paths, Arena* arena,
                                  const FileTierOptions& options = {}) {
  auto tier = open_file_tier(std::move(paths), arena, options);
  EXPECT_TRUE(tier.ok()) << tier.status().message();
  return tier.ok() ? std::move(tier).value() : nullptr;
}

Status load_now(Tier& tier, const TierExtent& from, std::span<std::byte> to) {
  HR_ASSIGN(const Ticket ticket, tier.load(from, to));
  return tier.wait(ticket);
}

TEST(FileTier, ReadsEveryByteOfAFileInOneLoadAndZerosBehindItsEnd) {
  TempFolder folder;
  const Bytes size = 5 * kMiB + 1234;
  write_pattern_file(folder.file("a"), size, 1);
  Arena arena = make_arena(8 * kMiB);
  auto tier = open_ok({folder.file("a")}, &arena);
  ASSERT_NE(tier, nullptr);
  EXPECT_EQ(tier->object_bytes(0), size);
  const Bytes rounded = round_up(size, kPage);
  auto to = arena.at(0, rounded);
  std::fill(to.begin(), to.end(), std::byte{0xff});
  const Status status = load_now(*tier, {0, 0, rounded}, to);
  ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(first_difference(to.first(static_cast<size_t>(size)), 1), -1);
  for (std::byte b : to.subspan(static_cast<size_t>(size))) ASSERT_EQ(b, std::byte{0});
  EXPECT_EQ(tier->counters().loads, 1);
  EXPECT_EQ(tier->counters().loaded_bytes, rounded);
}

TEST(FileTier, ReadsWithEveryMethodDepthAndChunk) {
  TempFolder folder;
  const Bytes size = 3 * kMiB + 17;
  write_pattern_file(folder.file("a"), size, 2);
  Arena arena = make_arena(4 * kMiB);
  for (FileMethod method : {FileMethod::kBest, FileMethod::kUring,
                            FileMethod::kPreadDirect, FileMethod::kPreadBuffered}) {
    for (int depth : {1, 2, 8, 64}) {
      for (Bytes chunk : {kPage, 256 * kKiB, 4 * kMiB}) {
        FileTierOptions options;
        options.method = method;
        options.queue_depth = depth;
        options.chunk_bytes = chunk;
        options.register_buffers = depth != 2;
        auto tier = open_ok({folder.file("a")}, &arena, options);
        ASSERT_NE(tier, nullptr);
        const auto to = arena.at(0, round_up(size, kPage));
        fill(to, 99);
        ASSERT_TRUE(load_now(*tier, {0, 0, static_cast<Bytes>(to.size())}, to).ok());
        ASSERT_EQ(first_difference(to.first(static_cast<size_t>(size)), 2), -1)
            << tier->describe().method << " depth " << depth << " chunk " << chunk;
      }
    }
  }
}

TEST(FileTier, LoadsIntoMemoryOutsideTheRegisteredArena) {
  TempFolder folder;
  write_pattern_file(folder.file("a"), 64 * kKiB, 3);
  Arena registered = make_arena(64 * kKiB);
  Arena other = make_arena(64 * kKiB);
  auto tier = open_ok({folder.file("a")}, &registered);
  ASSERT_NE(tier, nullptr);
  ASSERT_TRUE(load_now(*tier, {0, 0, 64 * kKiB}, other.at(0, 64 * kKiB)).ok());
  EXPECT_EQ(first_difference(other.at(0, 64 * kKiB), 3), -1);
}

TEST(FileTier, SaysThatFilesInRamAreReadThroughThePageCache) {
  TempFolder folder("/dev/shm");
  write_pattern_file(folder.file("a"), 64 * kKiB, 4);
  Arena arena = make_arena(64 * kKiB);
  auto tier = open_ok({folder.file("a")}, &arena);
  ASSERT_NE(tier, nullptr);
  EXPECT_THAT(tier->describe().notice, HasSubstr("RAM"));
  EXPECT_THAT(tier->describe().notice, HasSubstr(folder.file("a")));
  EXPECT_EQ(tier->describe().method, "pread pool (page cache)");
  FileTierOptions options;
  options.method = FileMethod::kUring;
  const auto refused = open_file_tier({folder.file("a")}, &arena, options);
  EXPECT_EQ(refused.status().code(), Code::kUnsupported);
}

TEST(FileTier, RefusesFilesThatCannotBeOpenedByNameAndErrno) {
  TempFolder folder;
  const auto missing = open_file_tier({folder.file("nothing")}, nullptr);
  EXPECT_EQ(missing.status().code(), Code::kIo);
  EXPECT_THAT(missing.status().message(), HasSubstr(folder.file("nothing")));
  EXPECT_THAT(missing.status().message(), HasSubstr("No such file"));
  const auto directory = open_file_tier({folder.path()}, nullptr);
  EXPECT_EQ(directory.status().code(), Code::kUnsupported);
  ASSERT_EQ(mkfifo(folder.file("pipe").c_str(), 0600), 0);
  const auto pipe = open_file_tier({folder.file("pipe")}, nullptr);
  EXPECT_EQ(pipe.status().code(), Code::kUnsupported);
}

TEST(FileTier, RefusesOptionsOutOfRange) {
  const auto code = [](auto change) {
    FileTierOptions options;
    change(options);
    return open_file_tier({}, nullptr, options).status().code();
  };
  EXPECT_EQ(code([](auto& o) { o.queue_depth = 0; }), Code::kUsage);
  EXPECT_EQ(code([](auto& o) { o.queue_depth = 257; }), Code::kUsage);
  EXPECT_EQ(code([](auto& o) { o.chunk_bytes = 1000; }), Code::kUsage);
  EXPECT_EQ(code([](auto& o) { o.chunk_bytes = 0; }), Code::kUsage);
  EXPECT_EQ(code([](auto& o) { o.max_tickets = 0; }), Code::kUsage);
  EXPECT_EQ(code([](auto& o) { o.pool_threads = 0; }), Code::kUsage);
  EXPECT_EQ(code([](auto& o) { o.access = FileAccess::kScratch; }), Code::kUsage);
  EXPECT_EQ(code([](auto&) {}), Code::kOk);
}

TEST(FileTier, ScratchFilesLeaveNothingInTheirFolder) {
  TempFolder folder;
  Arena arena = make_arena(256 * kKiB);
  FileTierOptions options;
  options.access = FileAccess::kScratch;
  options.scratch_bytes = 1 * kMiB + 1;
  auto tier = open_ok({folder.file("s0"), folder.file("s1")}, &arena, options);
  ASSERT_NE(tier, nullptr);
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
  EXPECT_EQ(tier->object_bytes(1), 1 * kMiB + kPage);
  fill(arena.at(0, 128 * kKiB), 5);
  auto stored = tier->store(arena.at(0, 128 * kKiB), {1, 512 * kKiB, 128 * kKiB});
  ASSERT_TRUE(stored.ok());
  ASSERT_TRUE(tier->wait(*stored).ok());
  ASSERT_TRUE(
      load_now(*tier, {1, 512 * kKiB, 128 * kKiB}, arena.at(128 * kKiB, 128 * kKiB))
          .ok());
  EXPECT_EQ(first_difference(arena.at(128 * kKiB, 128 * kKiB), 5), -1);
  EXPECT_TRUE(tier->check_unchanged().ok());
}

// Such as what another process, or one that was killed, has left there.
TEST(FileTier, AFileOfScratchsNameIsNeitherInTheWayNorTouched) {
  TempFolder folder;
  write_pattern_file(folder.file("precious"), 8 * kKiB, 6);
  Arena arena = make_arena(64 * kKiB);
  FileTierOptions options;
  options.access = FileAccess::kScratch;
  options.scratch_bytes = 1 * kMiB;
  auto tier = open_ok({folder.file("precious")}, &arena, options);
  ASSERT_NE(tier, nullptr);
  auto stored = tier->store(arena.at(0, 64 * kKiB), {0, 0, 64 * kKiB});
  ASSERT_TRUE(stored.ok());
  EXPECT_TRUE(tier->wait(*stored).ok());
  EXPECT_EQ(std::filesystem::file_size(folder.file("precious")), 8192u);
  tier.reset();
  EXPECT_TRUE(std::filesystem::exists(folder.file("precious")));
}

TEST(FileTier, AFullDiskIsFoundWhenScratchIsReserved) {
  TempFolder folder;
  FileTierOptions options;
  options.access = FileAccess::kScratch;
  options.scratch_bytes = int64_t{1} << 42;  // 4 TiB
  const auto refused = open_file_tier({folder.file("s")}, nullptr, options);
  ASSERT_EQ(refused.status().code(), Code::kIo);
  EXPECT_THAT(refused.status().message(), HasSubstr(folder.file("s")));
  EXPECT_THAT(refused.status().message(), HasSubstr("No space left"));
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

TEST(FileTier, AFileThatShrinksIsAnErrorOfTheLoadThatMeetsItsEnd) {
  for (FileMethod method : {FileMethod::kBest, FileMethod::kPreadBuffered}) {
    TempFolder folder;
    const std::string path = folder.file("a");
    write_pattern_file(path, 1 * kMiB, 7);
    Arena arena = make_arena(1 * kMiB);
    FileTierOptions options;
    options.method = method;
    auto tier = open_ok({path}, &arena, options);
    ASSERT_NE(tier, nullptr);
    ASSERT_EQ(truncate(path.c_str(), 512 * kKiB + 100), 0);
    EXPECT_TRUE(load_now(*tier, {0, 0, 512 * kKiB}, arena.at(0, 512 * kKiB)).ok());
    const Status status =
        load_now(*tier, {0, 256 * kKiB, 768 * kKiB}, arena.at(0, 768 * kKiB));
    ASSERT_EQ(status.code(), Code::kIo);
    EXPECT_THAT(status.message(), HasSubstr(path));
    EXPECT_THAT(status.message(), HasSubstr("shrank from 1048576 to 524388"));
    EXPECT_EQ(tier->check_unchanged().code(), Code::kIo);
  }
}

TEST(FileTier, FindsThatAFileWasWrittenToReplacedOrRemoved) {
  TempFolder folder;
  const std::string path = folder.file("a");
  write_pattern_file(path, 64 * kKiB, 8);
  struct timespec old_time[2] = {{1000, 0}, {1000, 0}};
  ASSERT_EQ(utimensat(AT_FDCWD, path.c_str(), old_time, 0), 0);
  Arena arena = make_arena(64 * kKiB);
  auto tier = open_ok({path}, &arena);
  ASSERT_NE(tier, nullptr);
  EXPECT_TRUE(tier->check_unchanged().ok());
  {
    std::fstream file(path, std::ios::in | std::ios::out);
    file.seekp(100);
    file << 'x';
  }
  EXPECT_THAT(tier->check_unchanged().message(), HasSubstr("written to"));

  tier = open_ok({path}, &arena);
  ASSERT_NE(tier, nullptr);
  write_pattern_file(folder.file("new"), 64 * kKiB, 9);
  std::filesystem::rename(folder.file("new"), path);
  EXPECT_THAT(tier->check_unchanged().message(), HasSubstr("replaced"));
  EXPECT_TRUE(load_now(*tier, {0, 0, 64 * kKiB}, arena.at(0, 64 * kKiB)).ok());

  tier = open_ok({path}, &arena);
  ASSERT_NE(tier, nullptr);
  std::filesystem::remove(path);
  EXPECT_THAT(tier->check_unchanged().message(), HasSubstr("went away"));
}

TEST(FileTier, StoresIntoAnExistingFileStayInsideIt) {
  TempFolder folder;
  write_pattern_file(folder.file("a"), 64 * kKiB + 5, 10);
  Arena arena = make_arena(128 * kKiB);
  FileTierOptions options;
  options.access = FileAccess::kReadWrite;
  auto tier = open_ok({folder.file("a")}, &arena, options);
  ASSERT_NE(tier, nullptr);
  EXPECT_EQ(tier->store(arena.at(0, 4 * kKiB), {0, 64 * kKiB, 4 * kKiB}).status().code(),
            Code::kIo);
  auto ticket = tier->store(arena.at(0, 4 * kKiB), {0, 60 * kKiB, 4 * kKiB});
  ASSERT_TRUE(ticket.ok());
  EXPECT_TRUE(tier->wait(*ticket).ok());
  EXPECT_TRUE(tier->check_unchanged().ok());
  EXPECT_EQ(std::filesystem::file_size(folder.file("a")), 65541u);
}

// read_bytes of /proc/self/io: what the process made block devices deliver.
Bytes read_bytes_of_process() {
  std::ifstream io("/proc/self/io");
  std::string word;
  Bytes value = -1;
  while (io >> word)
    if (word == "read_bytes:") io >> value;
  return value;
}

TEST(FileTier, CountsTheBytesThatTheKernelSaysWereRead) {
  TempFolder folder;
  const Bytes size = 9 * kMiB + 3 * kPage;
  write_pattern_file(folder.file("a"), size, 11);
  Arena arena = make_arena(16 * kMiB);
  for (bool registered : {false, true}) {
    FileTierOptions options;
    options.register_buffers = registered;
    auto tier = open_ok({folder.file("a")}, &arena, options);
    ASSERT_NE(tier, nullptr);
    if (!tier->describe().notice.empty())
      GTEST_SKIP() << "the build folder has no direct I/O: " << tier->describe().notice;
    const Bytes kernel_before = read_bytes_of_process();
    if (kernel_before < 0) GTEST_SKIP() << "no /proc/self/io here";
    const TierCounters before = tier->counters();
    for (Bytes at = 0; at < size; at += 768 * kKiB) {
      const Bytes n = std::min(768 * kKiB, size - at);
      ASSERT_TRUE(load_now(*tier, {0, at, n}, arena.at(at, n)).ok());
    }
    EXPECT_EQ(tier->counters().loaded_bytes - before.loaded_bytes, size);
    EXPECT_EQ(read_bytes_of_process() - kernel_before, size);
  }
}

}  // namespace
}  // namespace headrace
