// MemorySnapshot: what PyTorch's caching allocator held, and did, as
// `torch.cuda.memory._dump_snapshot` writes it (torch/cuda/memory.py and
// torch/csrc/cuda/memory_snapshot.cpp, versions 2.0 to 2.15).
//
// Vocabulary
//   segment    memory that the allocator got from the device (cudaMalloc); it is cut into blocks
//   block      a part of a segment: given out, waiting for a stream, or free
//   event      one thing that the allocator did, with the stack that asked for it
//   stack      frames, the innermost first; equal ones are held once
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "headrace/base/status.h"
#include "headrace/base/types.h"

namespace headrace {

struct StackFrame {
  std::string name, file;
  int64_t line = 0;
  bool operator==(const StackFrame&) const = default;
};

enum class BlockState : uint8_t { kActive, kPendingFree, kFree };

struct SnapshotBlock {
  int64_t address = 0;
  Bytes size = 0;
  Bytes requested = 0;   // before rounding; 0: unknown
  BlockState state = BlockState::kFree;
  int32_t stack = -1;    // of stacks; -1: not recorded
};

struct SnapshotSegment {
  int32_t device = 0;
  int64_t address = 0;
  Bytes bytes = 0;
  int64_t stream = 0;
  bool small_pool = false, expandable = false;
  bool private_pool = false;  // of a CUDA graph or a user's MemPool
  std::vector<SnapshotBlock> blocks;
};

enum class EventKind : uint8_t {
  kAlloc, kFreeRequested, kFreeCompleted, kSegmentAlloc, kSegmentFree, kSegmentMap, kSegmentUnmap,
  kSnapshot, kOom, kOther,
};
const char* name_of(EventKind kind);  // as in the file: "free_requested"

struct SnapshotEvent {
  EventKind kind = EventKind::kOther;
  int64_t address = 0;       // kOom: the free bytes of the device
  Bytes size = 0;
  int64_t stream = 0;
  int64_t time_us = 0;       // 0: not recorded
  int32_t stack = -1;
};

struct MemorySnapshot {
  std::vector<StackFrame> frames;
  std::vector<std::vector<int32_t>> stacks;             // of frames
  std::vector<SnapshotSegment> segments;
  std::vector<std::vector<SnapshotEvent>> traces;       // by device
  bool expandable_segments = false;                     // of allocator_settings
};

// kBadFile: no pickle, or not such a snapshot, saying what is missing; kUnsupported as PickleData.
Result<MemorySnapshot> parse_snapshot(std::string_view pickle);
// True when the bytes begin like a pickle.
bool looks_like_pickle(std::string_view bytes);

// In the same format: pytorch.org/memory_viz and torch.cuda._memory_viz open it.
std::string to_pickle(const MemorySnapshot& snapshot);

}  // namespace headrace
