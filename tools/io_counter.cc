#include "tools/io_counter.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>

namespace headrace::cli {

IoCounter::IoCounter() : descriptor_(::open("/proc/self/io", O_RDONLY | O_CLOEXEC)) {}

IoCounter::~IoCounter() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

Bytes IoCounter::read_bytes() const {
  char text[512];
  const ssize_t n =
      descriptor_ >= 0 ? ::pread(descriptor_, text, sizeof(text) - 1, 0) : ssize_t{-1};
  if (n <= 0) return -1;
  text[n] = '\0';
  const char* line = std::strstr(text, "\nread_bytes: ");
  long long bytes = -1;
  if (line == nullptr || std::sscanf(line, "\nread_bytes: %lld", &bytes) != 1) return -1;
  return bytes;
}

}  // namespace headrace::cli
