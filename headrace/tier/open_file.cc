#include "headrace/tier/open_file.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/statvfs.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

namespace headrace {
namespace {

Status io_error(const std::string& path, const char* what, int number) {
  return error(Code::kIo, "%s: %s: %s (errno %d)", path.c_str(), what,
               std::strerror(number), number);
}

int flags_of(FileAccess access) {
  switch (access) {
    case FileAccess::kRead: return O_RDONLY | O_CLOEXEC;
    case FileAccess::kReadWrite: return O_RDWR | O_CLOEXEC;
    case FileAccess::kScratch: return O_RDWR | O_CLOEXEC | O_CREAT | O_EXCL;
  }
  return O_RDONLY;
}

// True when the files of this file system live in RAM: direct I/O means nothing there.
bool in_memory(int fd) {
  struct statfs about;
  if (fstatfs(fd, &about) != 0) return false;
  return about.f_type == TMPFS_MAGIC || about.f_type == RAMFS_MAGIC;
}

// Some file systems accept O_DIRECT at open and refuse it, or our alignment, at the first
// read. 0 or the errno of one read.
int try_direct_read(int fd) {
  alignas(kPage) std::byte page[kPage];
  ssize_t n;
  do n = pread(fd, page, sizeof page, 0);
  while (n < 0 && errno == EINTR);
  return n < 0 ? errno : 0;
}

}  // namespace

int open_scratch(const std::string& path) {
  const std::string folder = std::filesystem::path(path).parent_path().string();
  const int fd = ::open(folder.empty() ? "." : folder.c_str(),
                        O_RDWR | O_CLOEXEC | O_TMPFILE | O_EXCL, 0600);
  if (fd >= 0 || (errno != EOPNOTSUPP && errno != EISDIR && errno != EINVAL)) return fd;
  const int named = ::open(path.c_str(), flags_of(FileAccess::kScratch), 0600);
  if (named >= 0) unlink(path.c_str());
  return named;
}

OpenFile::OpenFile(OpenFile&& other) noexcept { *this = std::move(other); }

OpenFile& OpenFile::operator=(OpenFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(fd_, other.fd_);
  std::swap(bytes_, other.bytes_);
  std::swap(access_, other.access_);
  std::swap(why_buffered_, other.why_buffered_);
  std::swap(opened_, other.opened_);
  return *this;
}

OpenFile::~OpenFile() {
  if (fd_ >= 0) close(fd_);
}

Status OpenFile::reserve(Bytes bytes) {
  const std::string what = text_of("cannot reserve %s", human_bytes(bytes).c_str());
  // Asked first: fallocate() fills the whole disk before it finds that it was too small.
  struct statvfs space;
  if (fstatvfs(fd_, &space) == 0 &&
      static_cast<Bytes>(space.f_bavail) < bytes / static_cast<Bytes>(space.f_frsize))
    return io_error(path_, what.c_str(), ENOSPC);
  int rc;
  do rc = fallocate(fd_, 0, 0, bytes) == 0 ? 0 : errno;
  while (rc == EINTR);
  // Where the file system cannot reserve, a full disk is found by the store that meets
  // it.
  if (rc == EOPNOTSUPP) rc = ftruncate(fd_, bytes) == 0 ? 0 : errno;
  if (rc == 0) return Status();
  return io_error(path_, what.c_str(), rc);
}

Result<OpenFile> OpenFile::open(const std::string& path, const FileTierOptions& options,
                                bool want_direct) {
  OpenFile file;
  file.path_ = path;
  file.access_ = options.access;
  const bool scratch = options.access == FileAccess::kScratch;
  struct stat found;
  // Before open(): opening a pipe would block.
  if (!scratch && stat(path.c_str(), &found) != 0)
    return io_error(path, "cannot open", errno);
  if (!scratch && !S_ISREG(found.st_mode))
    return error(Code::kUnsupported, "%s: not a regular file", path.c_str());
  file.fd_ = scratch ? open_scratch(path)
                     : ::open(path.c_str(), flags_of(options.access), 0600);
  if (file.fd_ < 0)
    return io_error(path, scratch ? "cannot create" : "cannot open", errno);
  if (scratch) HR_TRY(file.reserve(round_up(options.scratch_bytes, kPage)));
  if (fstat(file.fd_, &file.opened_) != 0) return io_error(path, "fstat", errno);
  file.bytes_ = file.opened_.st_size;

  if (!want_direct) {
    file.why_buffered_ = "asked for";
  } else if (in_memory(file.fd_)) {
    file.why_buffered_ = "its file system keeps files in RAM";
  } else {
    const int flags = fcntl(file.fd_, F_GETFL);
    int rc = fcntl(file.fd_, F_SETFL, flags | O_DIRECT) == 0 ? 0 : errno;
    if (rc == 0) rc = try_direct_read(file.fd_);
    if (rc != 0 && rc != EINVAL && rc != EOPNOTSUPP && rc != ENOTSUP)
      return io_error(path, "read of 4096 bytes at 0", rc);
    if (rc != 0) {
      (void)fcntl(file.fd_, F_SETFL, flags);
      file.why_buffered_ = text_of("O_DIRECT is refused: %s", std::strerror(rc));
    }
  }
  // Read-ahead would fetch what nobody asked for, and what it fetches again after a chunk
  // was dropped stays: without this 480 of 512 MiB read stayed cached (Linux 6.18), with
  // it none.
  if (!file.direct()) (void)posix_fadvise(file.fd_, 0, 0, POSIX_FADV_RANDOM);
  return file;
}

Status OpenFile::check_size() const {
  struct stat now;
  if (fstat(fd_, &now) != 0) return io_error(path_, "fstat", errno);
  if (now.st_size >= bytes_) return Status();
  return error(Code::kIo, "%s: the file shrank from %lld to %lld bytes while in use",
               path_.c_str(), static_cast<long long>(bytes_),
               static_cast<long long>(now.st_size));
}

Status OpenFile::check_unchanged() const {
  if (access_ == FileAccess::kScratch) return Status();
  if (access_ == FileAccess::kRead) {
    HR_TRY(check_size());
    struct stat now;
    if (fstat(fd_, &now) != 0) return io_error(path_, "fstat", errno);
    const bool same = now.st_size == opened_.st_size &&
                      now.st_mtim.tv_sec == opened_.st_mtim.tv_sec &&
                      now.st_mtim.tv_nsec == opened_.st_mtim.tv_nsec;
    if (!same)
      return error(Code::kIo, "%s: the file was written to while in use", path_.c_str());
  }
  struct stat there;
  if (stat(path_.c_str(), &there) != 0)
    return io_error(path_, "the file went away while in use", errno);
  if (there.st_dev != opened_.st_dev || there.st_ino != opened_.st_ino)
    return error(Code::kIo, "%s: the file was replaced by another while in use",
                 path_.c_str());
  return Status();
}

}  // namespace headrace
