// File calls that fail, fall short or kill the process at a chosen call. For tests.
#pragma once

#include <signal.h>
#include <unistd.h>

#include <cerrno>

#include "headrace/base/safe_file.h"

namespace headrace::testing {

class FaultyCalls : public FileCalls {
 public:
  enum class Fault { kNone, kError, kKill, kKillAfter, kDiskFull };
  Fault fault = Fault::kNone;
  int at = -1;  // the call that fails, from 0; kDiskFull: and all writes after it
  int reason = EIO;
  bool short_io = false;    // every second read and write moves only a part ...
  bool interrupts = false;  // ... and every third is interrupted
  int calls = 0;            // made so far

  FaultyCalls() { before_ = replace_file_calls(this); }
  ~FaultyCalls() override { replace_file_calls(before_); }

  int open(const char* path, int flags, int mode) override {
    return fails(false) ? -1 : done(FileCalls::open(path, flags, mode));
  }
  ssize_t pwrite(int descriptor, const void* from, size_t bytes, off_t offset) override {
    if (fails(true) || interrupted()) return -1;
    return done(FileCalls::pwrite(descriptor, from, part(bytes), offset));
  }
  ssize_t pread(int descriptor, void* to, size_t bytes, off_t offset) override {
    if (fails(false) || interrupted()) return -1;
    return done(FileCalls::pread(descriptor, to, part(bytes), offset));
  }
  int fsync(int descriptor) override {
    return fails(false) || interrupted() ? -1 : done(FileCalls::fsync(descriptor));
  }
  int rename(const char* from, const char* to) override {
    return fails(false) ? -1 : done(FileCalls::rename(from, to));
  }
  int exchange(const char* one, const char* other) override {
    return fails(false) ? -1 : done(FileCalls::exchange(one, other));
  }
  int mkdir(const char* path) override { return fails(false) ? -1 : done(FileCalls::mkdir(path)); }

 private:
  bool fails(bool writes) {
    const int number = calls++;
    if (fault == Fault::kDiskFull && writes && number >= at) {
      errno = ENOSPC;
      return true;
    }
    if (number != at) return false;
    if (fault == Fault::kKill) ::kill(::getpid(), SIGKILL);
    if (fault != Fault::kError) return false;
    errno = reason;
    return true;
  }
  template <typename T>
  T done(T result) {
    if (fault == Fault::kKillAfter && calls - 1 == at) ::kill(::getpid(), SIGKILL);
    return result;
  }
  bool interrupted() {
    if (!interrupts || ++moves_ % 3 != 0) return false;
    errno = EINTR;
    return true;
  }
  size_t part(size_t bytes) { return short_io && ++parts_ % 2 == 0 ? (bytes + 1) / 2 : bytes; }

  FileCalls* before_;
  int moves_ = 0, parts_ = 0;
};

}  // namespace headrace::testing
