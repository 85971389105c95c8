// IoCounter: bytes this process made the disks read, as the kernel counts them.
#pragma once

#include "headrace/base/types.h"

namespace headrace::cli {

// Keeps /proc/self/io open, so that a reading costs one system call.
class IoCounter {
 public:
  IoCounter();
  ~IoCounter();
  IoCounter(const IoCounter&) = delete;
  IoCounter& operator=(const IoCounter&) = delete;

  // read_bytes of /proc/self/io; -1 where the kernel does not say.
  Bytes read_bytes() const;

 private:
  int descriptor_;
};

}  // namespace headrace::cli
