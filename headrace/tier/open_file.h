// OpenFile: one file of the file tier, opened past the page cache where that is possible.
#pragma once

#include <sys/stat.h>

#include <string>

#include "headrace/base/status.h"
#include "headrace/base/types.h"
#include "headrace/tier/file_tier.h"

namespace headrace {

// A descriptor of a new file without a name, in the folder of `path`: whatever ends this process,
// nothing is left, and nobody else's file or leftover of that name is in the way. Where the file
// system has none (NFS) it has its name for a moment. -1 and errno. The caller closes it.
int open_scratch(const std::string& path);

// A file and what it was when it was opened. Owns the descriptor.
class OpenFile {
 public:
  OpenFile() = default;
  OpenFile(OpenFile&& other) noexcept;
  OpenFile& operator=(OpenFile&& other) noexcept;
  ~OpenFile();

  // Opens (or makes, for kScratch) `path`. O_DIRECT is used unless `want_direct` is
  // false, the file system keeps files in RAM (tmpfs accepts the flag and gains nothing),
  // or a first read of 4 KiB is refused; why_buffered() then says which.
  static Result<OpenFile> open(const std::string& path, const FileTierOptions& options,
                               bool want_direct);

  const std::string& path() const { return path_; }
  int fd() const { return fd_; }
  Bytes bytes() const { return bytes_; }
  bool direct() const { return why_buffered_.empty(); }
  const std::string& why_buffered() const { return why_buffered_; }

  // kIo when the open file is now smaller than it was.
  Status check_size() const;
  // See FileTier::check_unchanged().
  Status check_unchanged() const;

 private:
  Status reserve(Bytes bytes);

  std::string path_;
  int fd_ = -1;
  Bytes bytes_ = 0;
  FileAccess access_ = FileAccess::kRead;
  std::string why_buffered_;
  struct stat opened_ = {};
};

}  // namespace headrace
