#include "headrace/model/file_reader.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>

namespace headrace {
namespace {

constexpr Bytes kBufferBytes = 256 * kKiB;

static_assert(std::endian::native == std::endian::little, "files are little-endian");

}  // namespace

Result<FileReader> FileReader::open(const std::string& path) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) {
    return error(Code::kIo, "%s: cannot open: %s", path.c_str(), std::strerror(errno));
  }
  struct stat st;
  if (::fstat(descriptor, &st) != 0 || !S_ISREG(st.st_mode)) {
    ::close(descriptor);
    return error(Code::kIo, "%s: not a regular file", path.c_str());
  }
  // The kernel would read ahead into tensors that we never look at here.
  ::posix_fadvise(descriptor, 0, 0, POSIX_FADV_RANDOM);
  return FileReader(path, descriptor, st.st_size);
}

FileReader::FileReader(std::string path, int descriptor, Bytes size)
    : path_(std::move(path)),
      descriptor_(descriptor),
      size_(size),
      buffer_(new std::byte[kBufferBytes]) {}

FileReader::FileReader(FileReader&& other) noexcept
    : path_(std::move(other.path_)),
      descriptor_(other.descriptor_),
      size_(other.size_),
      buffer_(std::move(other.buffer_)),
      begin_(other.begin_),
      filled_(other.filled_),
      next_(other.next_),
      furthest_(other.furthest_) {
  other.descriptor_ = -1;
}

FileReader::~FileReader() {
  if (descriptor_ < 0) return;
  ::posix_fadvise(descriptor_, 0, round_up(furthest_, kPage), POSIX_FADV_DONTNEED);
  ::close(descriptor_);
}

Status FileReader::past_end(Bytes wanted, const char* what) const {
  return error(
      Code::kBadFile,
      "%s: the file ends at byte %lld, inside %s (%lld bytes wanted at byte %lld)",
      path_.c_str(), static_cast<long long>(size_), what, static_cast<long long>(wanted),
      static_cast<long long>(position()));
}

Status FileReader::fill() {
  begin_ += next_;
  next_ = 0;
  filled_ = 0;
  const Bytes want = std::min(kBufferBytes, size_ - begin_);
  while (filled_ < want) {
    const ssize_t got = ::pread(descriptor_, buffer_.get() + filled_,
                                static_cast<size_t>(want - filled_), begin_ + filled_);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) {
      return error(Code::kIo, "%s: read at %lld: %s", path_.c_str(),
                   static_cast<long long>(begin_ + filled_), std::strerror(errno));
    }
    if (got == 0) {
      return error(Code::kIo, "%s: read at %lld: the file became shorter than %lld bytes",
                   path_.c_str(), static_cast<long long>(begin_ + filled_),
                   static_cast<long long>(size_));
    }
    filled_ += got;
  }
  furthest_ = std::max(furthest_, begin_ + filled_);
  return {};
}

Status FileReader::read(void* out, Bytes bytes, const char* what) {
  if (bytes < 0 || bytes > remaining()) return past_end(bytes, what);
  auto* to = static_cast<std::byte*>(out);
  while (bytes > 0) {
    if (next_ == filled_) HR_TRY(fill());
    const Bytes part = std::min(bytes, filled_ - next_);
    std::memcpy(to, buffer_.get() + next_, static_cast<size_t>(part));
    next_ += part;
    to += part;
    bytes -= part;
  }
  return {};
}

Status FileReader::skip(Bytes bytes, const char* what) {
  if (bytes < 0 || bytes > remaining()) return past_end(bytes, what);
  if (bytes <= filled_ - next_) {
    next_ += bytes;
  } else {
    seek(position() + bytes);
  }
  return {};
}

void FileReader::seek(Bytes offset) {
  HR_CHECK(offset >= 0 && offset <= size_, "seek inside the file");
  if (offset >= begin_ && offset <= begin_ + filled_) {
    next_ = offset - begin_;
    return;
  }
  begin_ = offset;
  filled_ = 0;
  next_ = 0;
}

}  // namespace headrace
