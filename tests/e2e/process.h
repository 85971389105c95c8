// Runs the built headrace binary: arguments in, exit code and what it wrote out. For
// tests.
#pragma once

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <mutex>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

namespace headrace::testing {

// A folder of its own, removed at the end.
class Folder {
 public:
  Folder() : Folder(std::filesystem::temp_directory_path()) {}
  explicit Folder(const std::filesystem::path& in) {
    std::string path = (in / "headrace-e2e-XXXXXX").string();
    path_ = ::mkdtemp(path.data());
  }
  ~Folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

inline std::string slurp(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

struct Finished {
  int code = -1;  // exit code; -1 when a signal ended it
  int signal = 0;
  std::string out;
  std::string err;
};

// One process. stdout and stderr go to files, so that nothing blocks; none is a terminal.
class Process {
 public:
  struct Options {
    std::string input;               // of stdin
    int stdout_descriptor = -1;      // instead of a file
    bool terminal = false;           // stdin and stderr are one, see type()
    bool stdout_terminal = false;    // with `terminal`: stdout as well
    std::function<void()> in_child;  // before exec
  };
  Process(const Folder& folder, std::vector<std::string> args)
      : Process(folder, args, Options()) {}
  Process(const Folder& folder, std::vector<std::string> args, const Options& options)
      : folder_(folder) {
    std::ofstream(folder / "stdin", std::ios::binary) << options.input;
    std::filesystem::remove(folder /
                            "stdout");  // wait_for_output sees this process's alone
    std::vector<std::string> words = {HEADRACE_BINARY_DIR "/headrace"};
    words.insert(words.end(), args.begin(), args.end());
    std::vector<char*> argv;
    for (std::string& w : words) argv.push_back(w.data());
    argv.push_back(nullptr);
    if (options.terminal) open_terminal();
    pid_ = ::fork();
    if (pid_ != 0) return;
    ::dup2(::open((folder / "stdin").c_str(), O_RDONLY), 0);
    ::dup2(options.stdout_descriptor >= 0 ? options.stdout_descriptor : create("stdout"),
           1);
    ::dup2(create("stderr"), 2);
    if (options.terminal) {
      ::setsid();
      const int slave =
          ::open(::ptsname(terminal_), O_RDWR);  // becomes the controlling one
      ::dup2(slave, 0);
      ::dup2(slave, 2);
      if (options.stdout_terminal) ::dup2(slave, 1);
      ::setenv("TERM", "xterm", 1);
    }
    ::close_range(3, 1000, 0);
    ::setenv("XDG_CACHE_HOME", folder.path().c_str(), 1);  // no machine file of this user
    if (options.in_child) options.in_child();
    ::execv(argv[0], argv.data());
    ::_exit(99);
  }

  // Waits until at least `bytes` of stdout are there; false when it ended before.
  bool wait_for_output(size_t bytes) const {
    return wait_until([&] { return size_of("stdout") >= bytes; });
  }
  // The same for a text on stderr.
  bool wait_for_error(const std::string& text) const {
    return wait_until(
        [&] { return slurp(folder_ / "stderr").find(text) != std::string::npos; });
  }
  // Waits until it catches SIGINT and sleeps (reads a pipe that gives nothing).
  bool wait_for_sleep() const {
    return wait_until([&] {
      const std::string status =
          slurp("/proc/" + std::to_string(pid_) + "/status");
      const size_t caught = status.find("SigCgt:");
      return status.find("State:\tS") != std::string::npos &&
             caught != std::string::npos &&
             (std::stoull(status.substr(caught + 7), nullptr, 16) & 2) != 0;
    });
  }
  void send(int signal) const { ::kill(pid_, signal); }
  pid_t pid() const { return pid_; }
  // What a person types at the terminal; "\x03" is Ctrl-C, "\x04" Ctrl-D.
  void type(const std::string& keys) const {
    const ssize_t n = ::write(terminal_, keys.data(), keys.size());
    if (n != static_cast<ssize_t>(keys.size())) std::abort();
  }
  // Waits until the terminal shows `text` beyond its first `from` bytes; where it ends, 0
  // if never.
  size_t wait_for_screen(const std::string& text, size_t from = 0) const {
    for (int i = 0; i < 6000; ++i) {
      {
        const std::lock_guard<std::mutex> lock(mutex_);
        const size_t at = screen_.find(text, from);
        if (at != std::string::npos) return at + text.size();
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    return 0;
  }
  Finished wait() {
    int status = 0;
    ::waitpid(pid_, &status, 0);
    if (slave_ >= 0) ::close(slave_);  // the last one: the reader meets the end
    Finished f;
    if (WIFEXITED(status)) f.code = WEXITSTATUS(status);
    if (WIFSIGNALED(status)) f.signal = WTERMSIG(status);
    f.out = slurp(folder_ / "stdout");
    f.err = slurp(folder_ / "stderr");
    if (terminal_ >= 0) {
      reader_.join();
      f.err = screen_;
      ::close(terminal_);
    }
    return f;
  }

 private:
  // Looks every 5 ms for half a minute; false when the process ended before.
  bool wait_until(const std::function<bool()>& holds) const {
    for (int i = 0; i < 6000; ++i) {
      if (holds()) return true;
      siginfo_t info = {};
      ::waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG | WNOWAIT);
      if (info.si_pid == pid_) return false;
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    return false;
  }
  int create(const char* name) const {
    return ::open((folder_ / name).c_str(), O_CREAT | O_TRUNC | O_RDWR, 0600);
  }
  size_t size_of(const char* name) const {
    struct stat info = {};
    const bool there = ::stat((folder_ / name).c_str(), &info) == 0;
    return there ? static_cast<size_t>(info.st_size) : 0;
  }
  void open_terminal() {
    terminal_ = ::posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
    ::grantpt(terminal_);
    ::unlockpt(terminal_);
    // An end held here: reading gives bytes, not an error, before the child has opened
    // its own.
    slave_ = ::open(::ptsname(terminal_), O_RDWR | O_NOCTTY | O_CLOEXEC);
    reader_ = std::thread([this] {
      char piece[4096];
      for (;;) {
        const ssize_t n = ::read(terminal_, piece, sizeof(piece));
        if (n <= 0) return;
        const std::lock_guard<std::mutex> lock(mutex_);
        screen_.append(piece, static_cast<size_t>(n));
      }
    });
  }
  const Folder& folder_;
  pid_t pid_ = -1;
  int terminal_ = -1;
  int slave_ = -1;
  std::thread reader_;
  mutable std::mutex mutex_;
  std::string screen_;
};

inline Finished headrace(const Folder& folder, std::vector<std::string> args,
                         const std::string& input = "") {
  Process::Options options;
  options.input = input;
  return Process(folder, std::move(args), options).wait();
}

}  // namespace headrace::testing
