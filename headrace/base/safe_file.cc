#include "headrace/base/safe_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <utility>

namespace headrace {
namespace {

// Written bytes go to the disk in pieces of this size; two of them may be on the way.
constexpr Bytes kPushed = 8 * kMiB;

FileCalls& system_calls() {
  static FileCalls calls;
  return calls;
}
FileCalls* current = nullptr;
FileCalls& calls() { return current != nullptr ? *current : system_calls(); }

Status refused(const std::string& path, const char* what, int reason) {
  return error(Code::kIo, "%s: %s: %s", path.c_str(), what, std::strerror(reason));
}

Status refused_at(const std::string& path, const char* what, Bytes offset, int reason) {
  return error(Code::kIo, "%s: %s at %lld: %s", path.c_str(), what, static_cast<long long>(offset),
               std::strerror(reason));
}

int open_again(const char* path, int flags) {
  for (;;) {
    const int descriptor = calls().open(path, flags | O_CLOEXEC, 0644);
    if (descriptor >= 0 || errno != EINTR) return descriptor;
  }
}

int lock_again(int descriptor, int how) {
  for (;;) {
    const int result = ::flock(descriptor, how);
    if (result == 0 || errno != EINTR) return result;
  }
}

// Whether `path` is still the file that was opened.
bool same_file(int descriptor, const std::string& path) {
  struct stat open_one = {}, there = {};
  return ::fstat(descriptor, &open_one) == 0 && ::stat(path.c_str(), &there) == 0 &&
         open_one.st_ino == there.st_ino && open_one.st_dev == there.st_dev;
}

std::string folder_of(const std::string& path) {
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  return folder.empty() ? "." : folder.string();
}

std::string partial_of(const std::string& path) { return path + ".partial"; }

}  // namespace

int FileCalls::open(const char* path, int flags, int mode) { return ::open(path, flags, mode); }
ssize_t FileCalls::pwrite(int descriptor, const void* from, size_t bytes, off_t offset) {
  return ::pwrite(descriptor, from, bytes, offset);
}
ssize_t FileCalls::pread(int descriptor, void* to, size_t bytes, off_t offset) {
  return ::pread(descriptor, to, bytes, offset);
}
int FileCalls::fsync(int descriptor) { return ::fsync(descriptor); }
int FileCalls::rename(const char* from, const char* to) { return std::rename(from, to); }
int FileCalls::exchange(const char* one, const char* other) {
  return ::renameat2(AT_FDCWD, one, AT_FDCWD, other, RENAME_EXCHANGE);
}
int FileCalls::mkdir(const char* path) { return ::mkdir(path, 0755); }

FileCalls* replace_file_calls(FileCalls* calls) { return std::exchange(current, calls); }

Result<InFile> InFile::open(const std::string& path) {
  InFile in;
  in.path_ = path;
  in.descriptor_ = open_again(path.c_str(), O_RDONLY);
  if (in.descriptor_ < 0) return refused(path, "open", errno);
  struct stat info = {};
  if (::fstat(in.descriptor_, &info) != 0) return refused(path, "stat", errno);
  if (!S_ISREG(info.st_mode)) return error(Code::kIo, "%s: not a regular file", path.c_str());
  in.size_ = info.st_size;
  in.modified_ns_ = info.st_mtim.tv_sec * int64_t{1000000000} + info.st_mtim.tv_nsec;
  return in;
}

InFile::InFile(InFile&& other) noexcept
    : path_(std::move(other.path_)),
      descriptor_(std::exchange(other.descriptor_, -1)),
      size_(other.size_),
      modified_ns_(other.modified_ns_) {}

InFile::~InFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

Status InFile::read(Bytes offset, std::span<std::byte> out) const {
  while (!out.empty()) {
    const ssize_t n = calls().pread(descriptor_, out.data(), out.size(), offset);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return refused_at(path_, "read", offset, errno);
    if (n == 0) {
      return error(Code::kBadFile, "%s: ends at %lld, %zu bytes too early", path_.c_str(),
                   static_cast<long long>(offset), out.size());
    }
    out = out.subspan(static_cast<size_t>(n));
    offset += n;
  }
  return {};
}

void InFile::forget() const { (void)::posix_fadvise(descriptor_, 0, 0, POSIX_FADV_DONTNEED); }

Result<OutFile> OutFile::create(const std::string& path) {
  const int descriptor = open_again(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC);
  if (descriptor < 0) return refused(path, "create", errno);
  return OutFile(path, descriptor);
}

OutFile::OutFile(OutFile&& other) noexcept
    : path_(std::move(other.path_)),
      descriptor_(std::exchange(other.descriptor_, -1)),
      written_(other.written_),
      pushed_(other.pushed_),
      settled_(other.settled_) {}

OutFile::~OutFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

Status OutFile::put(Bytes offset, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t n = calls().pwrite(descriptor_, bytes.data(), bytes.size(), offset);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return refused_at(path_, "write", offset, errno);
    // A file system that takes nothing would be asked for ever.
    if (n == 0) return refused_at(path_, "write", offset, ENOSPC);
    bytes = bytes.subspan(static_cast<size_t>(n));
    offset += n;
  }
  return {};
}

// Only a hint to the system; sync() finds what went wrong.
void OutFile::push_out() {
  if (written_ - pushed_ < kPushed) return;
  if (pushed_ > settled_) {
    (void)::sync_file_range(
        descriptor_, settled_, pushed_ - settled_,
        SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER);
    (void)::posix_fadvise(descriptor_, settled_, pushed_ - settled_, POSIX_FADV_DONTNEED);
    settled_ = pushed_;
  }
  (void)::sync_file_range(descriptor_, pushed_, written_ - pushed_, SYNC_FILE_RANGE_WRITE);
  pushed_ = written_;
}

Status OutFile::append(std::span<const std::byte> bytes) {
  HR_TRY(put(written_, bytes));
  written_ += static_cast<Bytes>(bytes.size());
  push_out();
  return {};
}

Status OutFile::append(std::string_view text) {
  return append(std::as_bytes(std::span(text.data(), text.size())));
}

Status OutFile::pad_to(Bytes multiple) {
  static constexpr std::array<std::byte, 4096> kZeros = {};
  Bytes missing = round_up(written_, multiple) - written_;
  while (missing > 0) {
    const auto n = static_cast<size_t>(std::min<Bytes>(missing, 4096));
    HR_TRY(append(std::span(kZeros).first(n)));
    missing -= static_cast<Bytes>(n);
  }
  return {};
}

Status OutFile::rewrite(Bytes offset, std::span<const std::byte> bytes) {
  HR_CHECK(offset + static_cast<Bytes>(bytes.size()) <= written_, "rewrites what is there");
  return put(offset, bytes);
}

Status OutFile::sync() {
  for (;;) {
    if (calls().fsync(descriptor_) == 0) break;
    if (errno != EINTR) return refused(path_, "sync", errno);
  }
  (void)::posix_fadvise(descriptor_, 0, 0, POSIX_FADV_DONTNEED);
  return {};
}

AtomicFile::AtomicFile(std::string path, OutFile file)
    : path_(std::move(path)), file_(std::make_unique<OutFile>(std::move(file))) {}

Result<AtomicFile> AtomicFile::create(const std::string& path) {
  HR_ASSIGN(std::optional<AtomicFile> file, create(path, LOCK_EX));
  HR_CHECK(file.has_value(), "waited for its turn");
  return std::move(*file);
}

Result<std::optional<AtomicFile>> AtomicFile::create_unless_held(const std::string& path) {
  return create(path, LOCK_EX | LOCK_NB);
}

Result<std::optional<AtomicFile>> AtomicFile::create(const std::string& path, int how) {
  const std::string partial = partial_of(path);
  for (;;) {
    const int descriptor = open_again(partial.c_str(), O_WRONLY | O_CREAT);
    if (descriptor < 0) return refused(partial, "create", errno);
    OutFile file(partial, descriptor);
    if (lock_again(descriptor, how) != 0) {
      if (errno == EWOULDBLOCK) return std::optional<AtomicFile>();
      return refused(partial, "lock", errno);
    }
    // Who held the lock may have renamed or removed the file meanwhile.
    if (!same_file(descriptor, partial)) continue;
    if (::ftruncate(descriptor, 0) != 0) return refused(partial, "truncate", errno);
    return std::optional<AtomicFile>(AtomicFile(path, std::move(file)));
  }
}

bool AtomicFile::remove_leftover(const std::string& path) {
  const std::string partial = partial_of(path);
  const int descriptor = open_again(partial.c_str(), O_WRONLY | O_NONBLOCK);  // a pipe would block
  if (descriptor < 0) return false;
  const bool free = lock_again(descriptor, LOCK_EX | LOCK_NB) == 0;
  // With the lock held no writer can have it: one that waits finds it gone and makes its own.
  const bool removed = free && same_file(descriptor, partial) && ::unlink(partial.c_str()) == 0;
  ::close(descriptor);
  return removed;
}

AtomicFile::~AtomicFile() {
  if (file_ != nullptr) ::unlink(partial_of(path_).c_str());
}

Status AtomicFile::commit() {
  HR_CHECK(file_ != nullptr, "committed once");
  HR_TRY(file_->sync());
  HR_TRY(move_path(partial_of(path_), path_));
  file_.reset();
  return sync_folder(folder_of(path_));
}

Status write_atomically(const std::string& path, std::string_view text) {
  HR_ASSIGN(AtomicFile out, AtomicFile::create(path));
  HR_TRY(out.file().append(text));
  return out.commit();
}

Result<std::string> read_text(const std::string& path, Bytes most) {
  HR_ASSIGN(const InFile in, InFile::open(path));
  if (in.size() > most) {
    return error(Code::kBadFile, "%s: %lld bytes; at most %lld are accepted", path.c_str(),
                 static_cast<long long>(in.size()), static_cast<long long>(most));
  }
  std::string text(static_cast<size_t>(in.size()), '\0');
  HR_TRY(in.read(0, std::as_writable_bytes(std::span(text))));
  return text;
}

Status make_folders(const std::string& folder) {
  std::error_code ignored;  // mkdir says it in its own words
  if (folder.empty() || std::filesystem::is_directory(folder, ignored)) return {};
  const std::string above = folder_of(folder);
  if (above != folder) HR_TRY(make_folders(above));
  if (calls().mkdir(folder.c_str()) == 0) return sync_folder(above);
  const int reason = errno;  // EEXIST: another process was faster, or a file has the name
  if (reason == EEXIST && std::filesystem::is_directory(folder, ignored)) return {};
  return refused(folder, "make folder", reason);
}

Status sync_folder(const std::string& folder) {
  const int descriptor = open_again(folder.c_str(), O_RDONLY | O_DIRECTORY);
  if (descriptor < 0) return refused(folder, "open", errno);
  int reason = 0;
  for (;;) {
    if (calls().fsync(descriptor) == 0) break;
    if (errno == EINTR) continue;
    reason = errno;
    break;
  }
  ::close(descriptor);
  return reason == 0 ? Status() : refused(folder, "sync", reason);
}

Status move_path(const std::string& from, const std::string& to) {
  if (calls().rename(from.c_str(), to.c_str()) == 0) return {};
  return refused(from, ("rename to " + to).c_str(), errno);
}

Status exchange_paths(const std::string& one, const std::string& other) {
  if (calls().exchange(one.c_str(), other.c_str()) == 0) return {};
  return refused(one, ("exchange with " + other).c_str(), errno);
}

Status remove_path(const std::string& path) {
  std::error_code ec;
  std::filesystem::remove_all(path, ec);
  return ec ? error(Code::kIo, "%s: remove: %s", path.c_str(), ec.message().c_str()) : Status();
}

Result<FileLock> FileLock::take(const std::string& path, bool wait) {
  const int descriptor = open_again(path.c_str(), O_RDWR | O_CREAT);
  if (descriptor < 0) return refused(path, "open lock", errno);
  if (lock_again(descriptor, wait ? LOCK_EX : LOCK_EX | LOCK_NB) == 0) return FileLock(descriptor);
  const int reason = errno;
  ::close(descriptor);
  if (reason == EWOULDBLOCK) return FileLock(-1);
  return refused(path, "lock", reason);
}

FileLock::FileLock(FileLock&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}

FileLock::~FileLock() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

}  // namespace headrace
