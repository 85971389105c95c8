// Files that must not be half there: whole reads and writes, and files that appear complete or not
// at all. What training saves and what the prefix store keeps goes through it.
//
// Promises
//   1. Short reads, short writes and EINTR are gone on with; every other refusal of the system is
//      kIo with file, offset and reason. A read past the end is kBadFile.
//   2. Large writes go to the disk as they are made and leave no page cache behind, so that what is
//      not yet written stays below 16 MiB.
//   3. AtomicFile: at its path is the old file or the new one, whole and synced, at any moment,
//      also after a kill. Two writers of one path take turns.
// Not thread-safe; different objects may be used by different threads.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "headrace/base/status.h"
#include "headrace/base/types.h"

namespace headrace {

// What the system does to files, so that tests can make it fail. The functions are those of the
// system, with its results and errno.
class FileCalls {
 public:
  virtual ~FileCalls() = default;
  virtual int open(const char* path, int flags, int mode);
  virtual ssize_t pwrite(int descriptor, const void* from, size_t bytes, off_t offset);
  virtual ssize_t pread(int descriptor, void* to, size_t bytes, off_t offset);
  virtual int fsync(int descriptor);
  virtual int rename(const char* from, const char* to);
  // Both names stay and change places (renameat2 with RENAME_EXCHANGE).
  virtual int exchange(const char* one, const char* other);
  virtual int mkdir(const char* path);
};
// The process's: the system's own unless a test has put another in its place, which must outlive
// its use. Returns the one before; null stands for the system's own. Not while files are in use.
FileCalls* replace_file_calls(FileCalls* calls);

// A file that is read at any place.
class InFile {
 public:
  // kIo when it cannot be opened or is no regular file.
  static Result<InFile> open(const std::string& path);
  InFile(InFile&& other) noexcept;
  InFile& operator=(InFile&&) = delete;
  ~InFile();

  const std::string& path() const { return path_; }
  Bytes size() const { return size_; }
  int64_t modified_ns() const { return modified_ns_; }
  Status read(Bytes offset, std::span<std::byte> out) const;
  // Gives back the page cache of what has been read.
  void forget() const;

 private:
  InFile() = default;
  std::string path_;
  int descriptor_ = -1;
  Bytes size_ = 0;
  int64_t modified_ns_ = 0;
};

// A new file, written from its start.
class OutFile {
 public:
  // Replaces what is there.
  static Result<OutFile> create(const std::string& path);
  OutFile(OutFile&& other) noexcept;
  OutFile& operator=(OutFile&&) = delete;
  ~OutFile();  // closes; what was not finished may be lost

  Bytes written() const { return written_; }
  Status append(std::span<const std::byte> bytes);
  Status append(std::string_view text);
  // Zeros up to the next multiple.
  Status pad_to(Bytes multiple);
  // Writes over what is there already. Precondition: it ends at or before written().
  Status rewrite(Bytes offset, std::span<const std::byte> bytes);
  // Forces everything to the disk.
  Status sync();

 private:
  friend class AtomicFile;
  OutFile(std::string path, int descriptor) : path_(std::move(path)), descriptor_(descriptor) {}
  Status put(Bytes offset, std::span<const std::byte> bytes);
  void push_out();

  std::string path_;
  int descriptor_ = -1;
  Bytes written_ = 0;
  Bytes pushed_ = 0;   // bytes whose way to the disk has been started
  Bytes settled_ = 0;  // bytes that are there
};

class AtomicFile {
 public:
  // Writes to PATH.partial, which one writer at a time holds; waits for its turn.
  static Result<AtomicFile> create(const std::string& path);
  // The same without waiting: nothing when another writer holds it, be it stopped for good.
  static Result<std::optional<AtomicFile>> create_unless_held(const std::string& path);
  // Removes what a killed writer of `path` has left. False when a writer holds it or none is there.
  static bool remove_leftover(const std::string& path);
  AtomicFile(AtomicFile&&) noexcept = default;
  ~AtomicFile();  // what was not committed is removed

  OutFile& file() { return *file_; }
  Status commit();

 private:
  AtomicFile(std::string path, OutFile file);
  static Result<std::optional<AtomicFile>> create(const std::string& path, int how);
  std::string path_;
  std::unique_ptr<OutFile> file_;
};

// Writes `text` to `path` completely or not at all.
Status write_atomically(const std::string& path, std::string_view text);
// A file of at most `most` bytes as text; kBadFile when it is larger.
Result<std::string> read_text(const std::string& path, Bytes most);
// Makes the folder and those it is in, their names forced to the disk: else what is synced inside
// may be lost with the name of the folder. Ok when it is there.
Status make_folders(const std::string& folder);
// Forces the names of a folder to the disk.
Status sync_folder(const std::string& folder);
Status move_path(const std::string& from, const std::string& to);
// Both names stay and change places, atomically.
Status exchange_paths(const std::string& one, const std::string& other);
// Removes a file, or a folder and what is in it. Ok when it is not there.
Status remove_path(const std::string& path);

// Held until destroyed, or until the process ends in whatever way.
class FileLock {
 public:
  // Waits for its turn when `wait`; else held() says whether the lock was free. The lock is an
  // empty file, which stays.
  static Result<FileLock> take(const std::string& path, bool wait);
  FileLock(FileLock&& other) noexcept;
  FileLock& operator=(FileLock&&) = delete;
  ~FileLock();
  bool held() const { return descriptor_ >= 0; }

 private:
  explicit FileLock(int descriptor) : descriptor_(descriptor) {}
  int descriptor_ = -1;
};

}  // namespace headrace
