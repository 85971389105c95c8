// The terminal side of a verb: where text, notices and progress may go, and how a run is
// stopped.
//
// Promises
//   1. Only TextOutput writes to stdout in `run`; everything else goes to stderr.
//   2. Progress is drawn only when stderr is a terminal, and never while text streams to
//      one. Elsewhere (nohup, a pipe) it is a plain line every ten seconds.
//   3. The first SIGINT or SIGTERM sets a flag; the next one ends the process.
#pragma once

#include <atomic>
#include <string>
#include <string_view>

#include "headrace/base/status.h"
#include "headrace/report/run_report.h"

namespace headrace::cli {

struct Console {
  bool stdin_terminal = false;
  bool stdout_terminal = false;
  bool stderr_terminal = false;
  bool one_terminal = false;  // stdout and stderr are the same one
  int width = 80;          // of stderr's terminal
  TextStyle error_style;   // of stderr
  TextStyle output_style;  // of stdout
};
// Looks at the descriptors, the locale variables, TERM and NO_COLOR.
Console look_at_console();

// Nanoseconds since the entry of main(), which calls this first.
Nanos since_start();

// A line on stderr, "headrace: " before it.
[[gnu::format(printf, 1, 2)]] void notice(const char* format, ...);
// Text on stderr as it is.
void print_error(std::string_view text);
// From now on text that nobody has read for so long is dropped: a server goes on beside a pipe that
// is full.
void give_up_on_stderr_after(int milliseconds);
// Text on stdout. kIo when it cannot be written; ok when the reader has gone.
Status print_output(std::string_view text);

// A file that is opened later must not get the number of a standard stream that was closed before
// the program began: what is written for people would be written into it. To be called first.
void hold_standard_descriptors();

// Ignores SIGPIPE and makes SIGINT and SIGTERM set the flag that is returned.
std::atomic<bool>* stop_flag();
// While true, the first SIGINT only sets answer_interrupted() (a conversation goes on).
void set_interruptible(bool on);
bool answer_interrupted();

// Generated text to stdout, each piece at once, past stdio.
class TextOutput {
 public:
  // False once nothing more can be written.
  bool write(std::string_view text);
  bool closed() const { return error_ != 0; }
  // Text was written, and it did not end in a newline.
  bool mid_line() const { return mid_line_; }
  // Ok also when the reader went away (EPIPE): that ends a run, it is no failure. Else
  // kIo.
  Status status() const;

 private:
  int error_ = 0;
  bool mid_line_ = false;
};

// The one rewritten line; where stderr is no terminal, lines of their own.
class ProgressLine {
 public:
  explicit ProgressLine(const Console& console) : console_(console) {}
  ~ProgressLine() { clear(); }
  // Draws at most ten times a second, and not in the first half second; lines of their
  // own come every ten seconds.
  void update(const char* what, int64_t done, int64_t total, const char* rate_unit = "tok/s");
  // A new phase: its own clock, nothing drawn yet.
  void restart();
  void clear();

 private:
  const Console& console_;
  bool drawn_ = false;
  Nanos begin_ = 0;
  Nanos last_ = 0;
};

}  // namespace headrace::cli
