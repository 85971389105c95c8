// Checkpoints of a run: RUN/checkpoints/step-NNNNNNNN/, each a manifest.json and data files.
//
// Promises
//   1. Atomic: written to a temporary folder, every file and the folder synced, then renamed. A
//      kill at any moment leaves the checkpoints there were before, and at most one more. Writers
//      of one RUN take turns by a lock file (two runs may save into one folder at once), so that a
//      temporary folder that a writer meets is of the past: it is removed.
//   2. Every block of 4 MiB has a checksum (XXH3, 64 bits) in the manifest; reading checks it. What
//      is broken is kBadFile with the tensor's name; the one before it is tried by latest().
//   3. Streams: memory is one block, whatever the size of a tensor.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "headrace/base/status.h"
#include "headrace/base/types.h"

namespace headrace {

constexpr Bytes kCheckpointBlock = 4 * kMiB;

struct CheckpointTensor {
  std::string name;
  std::string dtype;
  int64_t rows = 0, cols = 0;
  Bytes bytes = 0;
};

struct CheckpointInfo {
  int64_t step = 0;         // optimizer steps done
  int64_t next_sample = 0;  // of the dataset
  double loss_scale = 1;
  int64_t good_steps = -1;  // in a row since it was last changed; below 0: the run does not scale
  std::string config;  // JSON of the run's config
  std::vector<CheckpointTensor> tensors;
};

// Reads `out.size()` bytes of tensor `index` from `begin`; writes them.
using ReadPart = std::function<Status(size_t index, Bytes begin, std::span<std::byte> out)>;
using WritePart = std::function<Status(size_t index, Bytes begin, std::span<const std::byte> in)>;
using ByteProgress = std::function<void(Bytes done, Bytes total)>;

// Writes a checkpoint of `info` and removes all but the newest `keep`. kIo (ENOSPC included): what
// was there before stands, nothing of this one is left. `block` is kCheckpointBlock bytes, lent.
Status write_checkpoint(const std::string& run, const CheckpointInfo& info, int64_t keep,
                        std::span<std::byte> block, const ReadPart& read,
                        const ByteProgress& progress = {});

// The checkpoints of a run whose manifest is whole and whose data has its size, as folders, the one
// written last first. (Not the one of most steps: a run that has gone on from an earlier checkpoint
// writes lower numbers again.) Empty when there are none; kIo.
Result<std::vector<std::string>> list_checkpoints(const std::string& run);
// The first of them; empty: none.
Result<std::string> latest_checkpoint(const std::string& run);
Result<CheckpointInfo> read_checkpoint_info(const std::string& folder);
// Hands every block of every tensor to `write`, checksums checked.
Status read_checkpoint(const std::string& folder, const CheckpointInfo& info,
                       std::span<std::byte> block, const WritePart& write,
                       const ByteProgress& progress = {});

// A checkpoint read at any place, a few blocks in memory (12 MiB). Blocks are checked as they are
// read. Not thread-safe.
class CheckpointReader {
 public:
  // Errors as read_checkpoint_info; the checkpoint may be removed while it is open.
  static Result<std::unique_ptr<CheckpointReader>> open(const std::string& folder);
  ~CheckpointReader();

  const CheckpointInfo& info() const;
  // Index of the tensor of that name; -1: none.
  int64_t find(std::string_view name) const;
  // Bytes [begin, begin + out.size()) of a tensor, which must lie in it.
  Status read(size_t index, Bytes begin, std::span<std::byte> out);

 private:
  struct State;
  explicit CheckpointReader(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace headrace
