// Program: in which order, on which stream, where every byte lives. A Graph's ops plus Load /
// Store / Gather / Detach, an arena offset for every resident interval, and the waits between
// streams. Made by plan/, played by sim/, executed by run/, explained by report/.
//
// Vocabulary (memory operations are read from the device's side)
//   Load t <- tier    start copying t into its planned extent; usable once the ticket completes.
//   Store t -> tier   start copying the device copy out; both copies exist when it completes.
//   Gather t <- tier  a Load of those rows of a table that the step's tokens name.
//   Detach t          give up the device copy. An error when no other valid copy exists and t is
//                     still needed.
//   step              a position in `instrs`. The device side issues them in this order; compute
//                     instructions run on stream 0, transfers on the stream of their link.
//   residency         a tensor (or an op's workspace) in one arena range over the steps
//                     [begin, end). begin kEntry: resident at entry; end kExit: still at exit.
//   cyclic            runs again and again (a decode step); ends where it began.
//
// Promises, all checked by verify(Program)
//   1. every operand of a compute step is resident there, and its Load is waited for.
//   2. no two residencies that share a step share a byte; nor does a Load start into bytes that
//      an earlier, unfinished instruction still uses.
//   3. nothing is detached that has no other valid copy and is needed later.
//   4. all extents lie inside [0, arena_bytes).
//   5. a cyclic Program has the same residencies at exit as at entry.
//   6. to_text / parse_program round-trip; the text is self-contained (graph, tiers, costs).
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "headrace/ir/graph.h"

namespace headrace {

constexpr StreamId kComputeStream{0};
constexpr Step kEntry{-1};

enum class InstrKind : uint8_t { kCompute, kLoad, kStore, kGather, kDetach };
constexpr int kInstrKindCount = 5;
const char* name_of(InstrKind kind);

struct Instr {
  InstrKind kind = InstrKind::kCompute;
  StreamId stream = kComputeStream;
  OpId op;              // kCompute
  TensorId tensor;      // the others
  TierId tier;          // kLoad, kGather: from; kStore: to
  // Steps whose latest execution must be complete before this one starts. An index at or after
  // the own one means the execution in the previous cycle.
  std::vector<Step> waits;
  Nanos cost_ns = 0;    // kCompute: predicted duration
  bool operator==(const Instr&) const = default;
};

struct Residency {
  TensorId tensor;       // invalid: workspace of `op`
  OpId op;
  Bytes offset = 0;
  Bytes bytes = 0;       // page-rounded for what is loaded from a file
  Step begin = kEntry;
  Step end;              // one past the last step; instrs.size() when still resident at exit
  bool operator==(const Residency&) const = default;
};

// A tier as the planner sees it.
struct TierInfo {
  std::string name;             // "device", "file", ...
  Bytes capacity = 0;
  double load_bytes_per_s = 0;  // 0 for the device itself
  double store_bytes_per_s = 0;
  Nanos latency_ns = 0;
  bool operator==(const TierInfo&) const = default;
};

struct Program {
  std::string name;
  std::shared_ptr<const Graph> graph;
  bool cyclic = false;
  Bytes arena_bytes = 0;
  std::vector<TierInfo> tiers;      // by TierId; [0] is the device
  std::vector<Instr> instrs;
  std::vector<Residency> residencies;  // by (begin, offset)

  Step exit() const { return Step(static_cast<int64_t>(instrs.size())); }
};

// A tensor known by name at a place: what a Program expects at entry, or leaves at exit. Names,
// since Programs of one session have different Graphs.
struct Placed {
  std::string name;
  Bytes offset = 0;
  Bytes bytes = 0;
  bool operator==(const Placed&) const = default;
};
// Weights and state resident at entry / at exit, by offset. Constants are not part of it: the
// executor writes them into their extents whenever it enters a Program.
std::vector<Placed> entry_state(const Program& program);
std::vector<Placed> exit_state(const Program& program);

// Where a file-backed tensor's bytes are read from: page-rounded, the tensor starts `skew` bytes in.
struct LoadExtent {
  Bytes offset = 0;
  Bytes bytes = 0;
  Bytes skew = 0;
};
LoadExtent load_extent(const FileExtent& source);
// Arena bytes that a residency of `tensor` takes: page-rounded superset for weights, the size
// rounded to kLine otherwise.
Bytes device_bytes(const Tensor& tensor);

// Ok, or the first broken promise. O(steps x live residencies): slow and obvious.
Status verify(const Program& program);

std::string to_text(const Program& program);
Result<Program> parse_program(std::string_view text);

}  // namespace headrace
