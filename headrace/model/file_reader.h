// FileReader: reads the header of a model file forward, through one small buffer.
//
// Promises
//   1. 256 KiB of memory whatever the file; no mapping; bytes past the header are not
//   read but
//      for the rest of the last buffer.
//   2. Reading past the end is kBadFile that says what was being read and where the file
//   ends;
//      a refusal of the system is kIo with file, offset and errno.
//   3. The page cache that reading filled is given back when the reader is destroyed.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

#include "headrace/base/json_text.h"
#include "headrace/base/types.h"

namespace headrace {

class FileReader {
 public:
  // kIo when `path` cannot be opened or is not a regular file.
  static Result<FileReader> open(const std::string& path);
  FileReader(FileReader&& other) noexcept;
  FileReader& operator=(FileReader&&) = delete;
  ~FileReader();

  const std::string& path() const { return path_; }
  Bytes size() const { return size_; }
  // Offset in the file of the next byte that read() gives.
  Bytes position() const { return begin_ + next_; }
  Bytes remaining() const { return size_ - position(); }

  // Copies the next `bytes` bytes to `out`; `what` names them in errors.
  Status read(void* out, Bytes bytes, const char* what);
  // Moves over `bytes` bytes without copying them. The same errors as read().
  Status skip(Bytes bytes, const char* what);
  // Goes to an absolute offset. Precondition: 0 <= offset <= size().
  void seek(Bytes offset);

  // One little-endian number of the file.
  template <typename T>
  Result<T> number(const char* what) {
    T out{};
    HR_TRY(read(&out, sizeof(T), what));
    return out;
  }

 private:
  FileReader(std::string path, int descriptor, Bytes size);
  Status fill();
  Status past_end(Bytes wanted, const char* what) const;

  std::string path_;
  int descriptor_ = -1;
  Bytes size_ = 0;
  std::unique_ptr<std::byte[]> buffer_;
  Bytes begin_ = 0;     // file offset of buffer_[0]
  Bytes filled_ = 0;    // bytes of the buffer that hold file bytes
  Bytes next_ = 0;      // index in the buffer of the next byte
  Bytes furthest_ = 0;  // how far the file was read: what the page cache may hold
};

}  // namespace headrace
