#include "tools/console.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace headrace::cli {
namespace {

std::atomic<bool> g_stop{false};
std::atomic<bool> g_interruptible{false};
std::atomic<bool> g_interrupted{false};
std::atomic<int> g_error_patience_ms{-1};  // -1: for ever

// Async-signal-safe: atomics and sigaction only.
void on_signal(int number) {
  if (number == SIGINT && g_interruptible.exchange(false)) {
    g_interrupted = true;
    return;
  }
  g_stop = true;
  struct sigaction fatal = {};
  fatal.sa_handler = SIG_DFL;
  sigaction(SIGINT, &fatal, nullptr);
  sigaction(SIGTERM, &fatal, nullptr);
}

bool has_variable(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr && value[0] != '\0';
}

bool utf8_locale() {
  for (const char* name : {"LC_ALL", "LC_CTYPE", "LANG"}) {
    if (!has_variable(name)) continue;
    const std::string value = std::getenv(name);
    return value.find("UTF-8") != std::string::npos ||
           value.find("utf8") != std::string::npos ||
           value.find("UTF8") != std::string::npos;
  }
  return false;
}

TextStyle style_of(bool terminal) {
  const char* term = std::getenv("TERM");
  const bool dumb = term == nullptr || std::strcmp(term, "dumb") == 0;
  return {terminal && utf8_locale(), terminal && !dumb && !has_variable("NO_COLOR")};
}

// All of `text`, or the errno that stopped it.
int write_all(int descriptor, std::string_view text) {
  while (!text.empty()) {
    const ssize_t n = ::write(descriptor, text.data(), text.size());
    if (n >= 0) {
      text.remove_prefix(static_cast<size_t>(n));
    } else if (errno != EINTR) {
      return errno;
    }
  }
  return 0;
}

bool same_device(int a, int b) {
  struct stat one = {}, two = {};
  return fstat(a, &one) == 0 && fstat(b, &two) == 0 && one.st_rdev == two.st_rdev;
}

Status output_status(int error_number) {
  if (error_number == 0 || error_number == EPIPE) return {};
  return error(Code::kIo, "cannot write to standard output: %s",
               std::strerror(error_number));
}

}  // namespace

Console look_at_console() {
  Console c;
  c.stdin_terminal = isatty(STDIN_FILENO) == 1;
  c.stdout_terminal = isatty(STDOUT_FILENO) == 1;
  c.stderr_terminal = isatty(STDERR_FILENO) == 1;
  c.one_terminal = c.stdout_terminal && c.stderr_terminal &&
                   same_device(STDOUT_FILENO, STDERR_FILENO);
  winsize size = {};
  if (c.stderr_terminal && ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 &&
      size.ws_col > 0) {
    c.width = size.ws_col;
  }
  c.error_style = style_of(c.stderr_terminal);
  c.output_style = style_of(c.stdout_terminal);
  return c;
}

Nanos since_start() {
  using Clock = std::chrono::steady_clock;
  static const Clock::time_point start = Clock::now();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - start)
      .count();
}

void notice(const char* format, ...) {
  char text[1024];
  va_list args;
  va_start(args, format);
  std::vsnprintf(text, sizeof(text), format, args);
  va_end(args);
  print_error(std::string("headrace: ") + text + "\n");
}

// Nothing can be done about an stderr that does not take text.
void print_error(std::string_view text) {
  // A pipe that has room at all has room for a line (PIPE_BUF, man 7 pipe).
  pollfd room{STDERR_FILENO, POLLOUT, 0};
  const int patience = g_error_patience_ms;
  if (patience < 0 || ::poll(&room, 1, patience) > 0) (void)write_all(STDERR_FILENO, text);
}

void give_up_on_stderr_after(int milliseconds) { g_error_patience_ms = milliseconds; }

Status print_output(std::string_view text) {
  return output_status(write_all(STDOUT_FILENO, text));
}

void hold_standard_descriptors() {
  for (const int number : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (::fcntl(number, F_GETFD) >= 0) continue;
    // The least free number is this one. The wrong way round, so that using it fails as before.
    (void)::open("/dev/null", number == STDIN_FILENO ? O_WRONLY : O_RDONLY);
  }
}

std::atomic<bool>* stop_flag() {
  static const bool installed = [] {
    struct sigaction action = {};
    action.sa_handler = on_signal;
    sigaction(SIGINT, &action, nullptr);  // without SA_RESTART: reading a prompt ends too
    sigaction(SIGTERM, &action, nullptr);
    // What is written too far or for nobody fails with an error that says so.
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN);
    return true;
  }();
  (void)installed;
  return &g_stop;
}

void set_interruptible(bool on) {
  g_interrupted = false;
  g_interruptible = on;
}

bool answer_interrupted() { return g_interrupted; }

bool TextOutput::write(std::string_view text) {
  if (error_ == 0) error_ = write_all(STDOUT_FILENO, text);
  if (!text.empty()) mid_line_ = text.back() != '\n';
  return error_ == 0;
}

Status TextOutput::status() const { return output_status(error_); }

void ProgressLine::restart() {
  clear();
  begin_ = last_ = since_start();
}

void ProgressLine::update(const char* what, int64_t done, int64_t total,
                          const char* rate_unit) {
  constexpr Nanos kQuiet = 500'000'000, kBetween = 100'000'000;
  constexpr Nanos kBetweenLines = 10'000'000'000;
  const Nanos now = since_start();
  const Progress progress{what, done, total, now - begin_, rate_unit};
  if (!console_.stderr_terminal) {
    if (now - last_ < kBetweenLines) return;
    last_ = now;
    notice("%s", progress_line(progress, 0, {}).c_str());
    return;
  }
  if (now - begin_ < kQuiet || (drawn_ && now - last_ < kBetween)) return;
  last_ = now;
  drawn_ = true;
  // One column stays free: writing the last one would move some terminals to the next
  // line.
  print_error("\r\x1b[K" +
              progress_line(progress, console_.width - 1, console_.error_style));
}

void ProgressLine::clear() {
  if (drawn_) print_error("\r\x1b[K");
  drawn_ = false;
}

}  // namespace headrace::cli
