// What the program does in odd surroundings: system calls that are forbidden, standard streams that
// are closed, full, or read by nobody.
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>

#include "tests/e2e/serve.h"

namespace headrace::testing {
namespace {

// As Docker's default profile does.
void forbid_io_uring() {
  sock_filter filter[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_io_uring_setup, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog program = {static_cast<unsigned short>(std::size(filter)), filter};
  if (::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
      ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0) {
    ::_exit(98);
  }
}

constexpr int kNotAllowed = 97;

// As ProcSubset=pid of systemd does; the groups too, which may have limits where the test runs.
void hide_meminfo() {
  if (::unshare(CLONE_NEWNS) != 0 || ::mount("", "/", "", MS_REC | MS_PRIVATE, nullptr) != 0 ||
      ::mount("none", "/sys/fs/cgroup", "tmpfs", 0, nullptr) != 0 ||
      ::mount("/dev/null", "/proc/meminfo", "", MS_BIND, nullptr) != 0) {
    ::_exit(kNotAllowed);
  }
}

class Surroundings : public Serve {
 protected:
  // For a server that cannot say on stdout where it listens.
  void start_silently(const Process::Options& options) {
    process_.emplace(folder_,
                     std::vector<std::string>{"serve", model(), "--memory", "64MiB", "--port", "0",
                                              "--threads", "2"},
                     options);
    wait_until([&] { return (port_ = listening_port()) != 0; });
    wait_until([&] { return ask(get("/health")).status == 200; });
  }
  // Of the IPv4 socket that the server listens on (proc(5), /proc/net/tcp); 0: none yet.
  uint16_t listening_port() const {
    std::set<std::string> own;
    std::error_code ec;
    for (const auto& d : std::filesystem::directory_iterator(
             "/proc/" + std::to_string(process_->pid()) + "/fd", ec)) {
      own.insert(std::filesystem::read_symlink(d.path(), ec).string());
    }
    std::ifstream table("/proc/net/tcp");
    std::string line;
    std::getline(table, line);
    while (std::getline(table, line)) {
      unsigned port = 0, state = 0, inode = 0;
      if (std::sscanf(line.c_str(), "%*s %*8x:%x %*s %x %*s %*s %*s %*s %*s %u", &port, &state,
                      &inode) == 3 &&
          state == TCP_LISTEN && own.count("socket:[" + std::to_string(inode) + "]") != 0) {
        return static_cast<uint16_t>(port);
      }
    }
    return 0;
  }
  std::string descriptor(int number) const {
    return std::filesystem::read_symlink("/proc/" + std::to_string(process_->pid()) + "/fd/" +
                                         std::to_string(number)).string();
  }
};

TEST_F(Surroundings, RunsAndServesWhereIoUringIsForbidden) {
  const std::vector<std::string> run = {"run", model(), "--prompt", "The quick brown fox",
                                        "--ignore-eos", "--temperature", "0", "--tokens", "8",
                                        "--memory", "64MiB"};
  const Finished usual = headrace(folder_, run);
  ASSERT_EQ(usual.code, 0) << usual.err;
  Process::Options options;
  options.in_child = forbid_io_uring;
  Process process(folder_, run, options);
  const Finished forbidden = process.wait();
  ASSERT_EQ(forbidden.code, 0) << forbidden.err;
  EXPECT_EQ(forbidden.out, usual.out);

  start({}, "64MiB", options);
  EXPECT_EQ(complete("The quick brown fox", 8), usual.out);
  const Finished f = stop();
  EXPECT_EQ(f.code, 0) << f.err;
  EXPECT_NE(f.err.find("io_uring"), std::string::npos) << f.err;
}

TEST_F(Surroundings, ABudgetThatIsASizeNeedsNoNumberOfTheSystems) {
  Process::Options options;
  options.in_child = hide_meminfo;
  const auto run = [&](const std::string& memory) {
    return Process(folder_, {"run", model(), "--prompt", "The", "--tokens", "4", "--memory",
                             memory}, options).wait();
  };
  const Finished automatic = run("auto");
  if (automatic.code == kNotAllowed) GTEST_SKIP() << "this user may not mount anything";
  EXPECT_EQ(automatic.code, 5);
  EXPECT_NE(automatic.err.find("MemAvailable"), std::string::npos) << automatic.err;
  const Finished size = run("64MiB");
  EXPECT_EQ(size.code, 0) << size.err;
  start({}, "64MiB", options);
  EXPECT_FALSE(complete("The quick brown fox", 8).empty());
  EXPECT_EQ(stop().code, 0);
}

TEST_F(Surroundings, NoFileGetsTheNumberOfAStandardStreamThatWasClosed) {
  Process::Options options;
  options.in_child = [] { ::close_range(0, 2, 0); };
  start_silently(options);
  for (const int number : {0, 1, 2}) EXPECT_EQ(descriptor(number), "/dev/null") << number;
  EXPECT_FALSE(complete("The quick brown fox", 8).empty());
  EXPECT_EQ(stop().code, 0);
}

TEST_F(Surroundings, ServesWhereStdoutIsFull) {
  const int full = ::open("/dev/full", O_WRONLY | O_CLOEXEC);
  ASSERT_GE(full, 0);
  Process::Options options;
  options.stdout_descriptor = full;
  start_silently(options);
  EXPECT_FALSE(complete("The quick brown fox", 8).empty());
  const Finished f = stop();
  ::close(full);
  EXPECT_EQ(f.code, 0) << f.err;
  EXPECT_NE(f.err.find("standard output: No space left"), std::string::npos) << f.err;
}

// It holds the reading end itself, and does not read.
TEST_F(Surroundings, IsNotHeldUpByAnStderrThatNobodyReads) {
  const std::string fifo = folder_ / "fifo";
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  Process::Options options;
  options.in_child = [&] { ::dup2(::open(fifo.c_str(), O_RDWR), 2); };
  start({}, "64MiB", options);
  const int end = ::open(fifo.c_str(), O_WRONLY | O_NONBLOCK | O_CLOEXEC);
  ASSERT_GE(end, 0);
  const std::string page(4096, 'x');
  while (::write(end, page.data(), page.size()) > 0) {
  }
  ASSERT_EQ(errno, EAGAIN);
  EXPECT_EQ(stop().code, 0);
  ::close(end);
}

}  // namespace
}  // namespace headrace::testing
