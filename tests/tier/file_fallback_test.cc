// What the file tier does where the system refuses it something: each refusal is made
// real in a child process that gives up the right to it.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/audit.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "headrace/tier/file_tier.h"
#include "tests/tier/tier_testing.h"

namespace headrace {
namespace {

using testing::HasSubstr;
using testing_tier::fill;
using testing_tier::first_difference;
using testing_tier::TempFolder;
using testing_tier::write_pattern_file;

// Runs `body` in a child; what it returns comes back as text.
std::string in_child(const std::function<std::string()>& body) {
  int ends[2];
  EXPECT_EQ(pipe(ends), 0);
  const pid_t child = fork();
  if (child == 0) {
    const std::string text = body();
    const ssize_t n = write(ends[1], text.data(), text.size());
    _exit(n == static_cast<ssize_t>(text.size()) ? 0 : 1);
  }
  close(ends[1]);
  std::string text(4096, '\0');
  const ssize_t n = read(ends[0], text.data(), text.size());
  text.resize(n > 0 ? static_cast<size_t>(n) : 0);
  close(ends[0]);
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << text;
  return text;
}

// "method | notice", after a load of everything that came out right.
std::string open_and_load(const std::string& path, Bytes bytes) {
  auto arena = Arena::create(round_up(bytes, kPage));
  if (!arena.ok()) return arena.status().message();
  auto tier = open_file_tier({path}, &*arena);
  if (!tier.ok()) return tier.status().message();
  const auto to = arena->at(0, round_up(bytes, kPage));
  auto ticket = (*tier)->load({0, 0, static_cast<Bytes>(to.size())}, to);
  if (!ticket.ok()) return ticket.status().message();
  if (const Status s = (*tier)->wait(*ticket); !s.ok()) return s.message();
  if (first_difference(to.first(static_cast<size_t>(bytes)), 1) != -1)
    return "wrong bytes";
  return (*tier)->describe().method + " | " + (*tier)->describe().notice;
}

// The process may lock no more than `bytes`, root or not.
bool limit_locked_memory(rlim_t bytes) {
  __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct none[2] = {};
  const rlimit limit = {bytes, bytes};
  return setrlimit(RLIMIT_MEMLOCK, &limit) == 0 &&
         syscall(SYS_capset, &header, none) == 0;
}

// From now on system call `number` fails with `error_number`.
bool refuse_call(long number, int error_number) {
  sock_filter filter[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, static_cast<unsigned>(number), 0, 1),
      BPF_STMT(BPF_RET | BPF_K,
               SECCOMP_RET_ERRNO | (static_cast<unsigned>(error_number) & 0xffffu)),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog program = {static_cast<unsigned short>(std::size(filter)), filter};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

class FileFallback : public testing::Test {
 protected:
  void SetUp() override {
    write_pattern_file(path_, kBytes, 1);
    usual_ = in_child([&] { return open_and_load(path_, kBytes); });
    if (usual_.rfind("io_uring", 0) != 0)
      GTEST_SKIP() << "this system refuses the best method anyway: " << usual_;
  }
  static constexpr Bytes kBytes = 16 * kMiB + 5;
  TempFolder folder_;
  std::string path_ = folder_.file("a");
  std::string usual_;
};

TEST_F(FileFallback, ReadsUnregisteredWhereLockedMemoryIsLimitedAndSaysSo) {
  const std::string got = in_child([&] {
    if (!limit_locked_memory(8 * kMiB)) return std::string("skip");
    return open_and_load(path_, kBytes);
  });
  if (got == "skip") GTEST_SKIP() << "the limit cannot be set here";
  EXPECT_THAT(got, testing::StartsWith("io_uring + O_DIRECT | "));
  EXPECT_THAT(got, HasSubstr("could not be registered"));
  EXPECT_THAT(got, HasSubstr("ulimit -l"));
}

TEST_F(FileFallback, ReadsWithThreadsWhereIoUringIsRefusedAndSaysSo) {
  for (int number : {EPERM, ENOSYS, ENOMEM}) {
    const std::string got = in_child([&] {
      if (!refuse_call(SYS_io_uring_setup, number)) return std::string("skip");
      return open_and_load(path_, kBytes);
    });
    if (got == "skip") GTEST_SKIP() << "no seccomp here";
    EXPECT_THAT(got, testing::StartsWith("pread pool + O_DIRECT | "));
    EXPECT_THAT(got, HasSubstr(std::strerror(number)));
  }
}

TEST_F(FileFallback, AForcedMethodIsRefusedInsteadOfReplaced) {
  const std::string got = in_child([&] {
    if (!refuse_call(SYS_io_uring_setup, EPERM)) return std::string("skip");
    FileTierOptions options;
    options.method = FileMethod::kUring;
    return std::string(
        code_name(open_file_tier({path_}, nullptr, options).status().code()));
  });
  if (got == "skip") GTEST_SKIP() << "no seccomp here";
  EXPECT_EQ(got, "unsupported");
}

Bytes cached_bytes(const std::string& path, Bytes bytes) {
  const int fd = open(path.c_str(), O_RDONLY);
  void* base = mmap(nullptr, static_cast<size_t>(bytes), PROT_READ, MAP_SHARED, fd, 0);
  std::vector<unsigned char> pages(static_cast<size_t>(round_up(bytes, kPage) / kPage));
  EXPECT_EQ(mincore(base, static_cast<size_t>(bytes), pages.data()), 0);
  munmap(base, static_cast<size_t>(bytes));
  close(fd);
  Bytes count = 0;
  for (unsigned char page : pages) count += page & 1;
  return count * kPage;
}

// What stays in the page cache would be charged to our memory limit.
TEST_F(FileFallback, TheBufferedPoolLeavesAtMostItsQueueInThePageCache) {
  const int fd = open(path_.c_str(), O_RDONLY);
  (void)posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
  close(fd);
  auto arena = Arena::create(round_up(kBytes, kPage));
  ASSERT_TRUE(arena.ok());
  FileTierOptions options;
  options.method = FileMethod::kPreadBuffered;
  options.queue_depth = 4;
  options.chunk_bytes = 256 * kKiB;
  auto tier = open_file_tier({path_}, &*arena, options);
  ASSERT_TRUE(tier.ok());
  const auto to = arena->at(0, arena->bytes());
  auto ticket = (*tier)->load({0, 0, arena->bytes()}, to);
  ASSERT_TRUE(ticket.ok());
  ASSERT_TRUE((*tier)->wait(*ticket).ok());
  EXPECT_LE(cached_bytes(path_, kBytes), 4 * 256 * kKiB);
}

}  // namespace
}  // namespace headrace
