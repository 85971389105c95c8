// File tier: files on a local disk, read and written past the page cache.
//
// Object i is file i of the list given. Transfers are cut into chunks; up to
// `queue_depth` chunks are in the system at once, in the order of the tickets, but that a
// small transfer (an embedding row, needed as soon as its token is known) overtakes the
// chunks still waiting. The method is the first of
//   io_uring + O_DIRECT, buffers registered  - what a root user gets
//   io_uring + O_DIRECT                      - locked memory is limited (ulimit -l)
//   pread pool + O_DIRECT                    - io_uring is refused (old kernel, seccomp)
//   pread pool through the page cache        - O_DIRECT is refused, or the file is in RAM
// that works; describe().method names it and describe().notice says what was refused.
//
// Promises beyond those of Tier
//   1. Offsets, sizes and addresses are multiples of 4 KiB whatever the method. The last
//      extent of a file may reach up to 4 KiB past its end: what lies past it loads as
//      zeros.
//   2. A file that shrinks while in use is an error of the load that meets its end, never
//      zeros or stale bytes; check_unchanged() finds every other change.
//   3. An unwaited ticket holds one of `max_tickets` slots. When all are held, load and
//      store first finish the oldest transfer; if that failed, they return its Status.
//   4. The destructor finishes every store, and drops the parts of loads not yet
//      submitted.
// Choosing depth and chunk: their product is what the disk can work on while nobody
// polls. At 4 GB/s 8 x 1 MiB last 2 ms and 8 x 4 MiB 8 ms: take the larger chunk where
// ops are long.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "headrace/base/status.h"
#include "headrace/base/types.h"
#include "headrace/tier/arena.h"
#include "headrace/tier/io_backend.h"
#include "headrace/tier/tier.h"

namespace headrace {

// A transfer of at most this size overtakes; see above.
constexpr Bytes kSmallTransfer = 64 * kKiB;

enum class FileAccess {
  kRead,       // the files exist and are only read
  kReadWrite,  // the files exist; stores must stay inside their present size
  kScratch,  // each file is made with `scratch_bytes`, reserved on the disk, and has no
             // name in its folder: nothing is left behind by a crash either
};

enum class FileMethod { kBest, kUring, kPreadDirect, kPreadBuffered };

struct FileTierOptions {
  FileAccess access = FileAccess::kRead;
  Bytes scratch_bytes = 0;  // of each file, kScratch only; rounded up to 4 KiB
  // kBest falls back with a notice; the others fail with kUnsupported where refused.
  FileMethod method = FileMethod::kBest;
  int queue_depth = 8;           // chunks in the system at once, 1 to 256 (and 2 small)
  Bytes chunk_bytes = 1 * kMiB;  // a multiple of 4 KiB, up to 1 GiB; the last takes up to 25 % more
  int max_tickets = 256;         // unwaited transfers, at least 1
  int pool_threads = 4;          // of the pread pool, 1 to 64
  // Registration pins the arena: all of it becomes resident when the tier opens.
  bool register_buffers = true;
  // Tests: puts another backend around (or instead of) the real one.
  std::function<std::unique_ptr<IoBackend>(std::unique_ptr<IoBackend>)> wrap_backend;
};

class FileTier : public Tier {
 public:
  // kIo when a file opened by this tier was truncated, written to by somebody else (size
  // or modification time differ) or replaced (its path names another file) since it was
  // opened; names the file. Replacement alone does not change what loads return: the old
  // file stays open. Files of kReadWrite are checked for replacement, those of kScratch
  // not at all.
  virtual Status check_unchanged() const = 0;
  // The size of file `object` when it was opened.
  virtual Bytes object_bytes(int32_t object) const = 0;
};

// Opens `paths` (regular files). `arena` (may be null; must outlive the tier) is the
// memory to register; loads into other memory work too. Errors: kUsage for options out of
// range; kIo naming the file and the errno when it cannot be opened or reserved;
// kUnsupported for what is not a regular file, or a method that the system refuses.
Result<std::unique_ptr<FileTier>> open_file_tier(std::vector<std::string> paths,
                                                 Arena* arena,
                                                 const FileTierOptions& options = {});

}  // namespace headrace
