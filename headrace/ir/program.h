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
//                     [begin, end). begin kEntry: resident at entry; end |instrs|: still at exit.
//   recompute         an op that runs again, to bring back outputs whose device copy was given up.
//   Encode / Decode   write the encoded form of t beside it / t from its encoded form (codec.h).
//   range             a run of bytes of a tensor: transfers and residencies may be of a part.
//   copy              a residency in a tier other than the device: a slot of that tier's bytes.
//   stream            a queue of instructions that run one after the other: 0 computes, the others
//                     are links (one a direction, or one for both, or one for several tiers).
//   cyclic            runs again and again (a decode step); ends where it began.
//
// Exactly
//   issue     a residency begins at the step of the instruction that fills it: of a tensor on the
//             device at a Load, Gather, Decode or the (first) op that writes it; of an encoded form
//             at an Encode or Load; of a copy at a Store. Together the residencies that begin there
//             cover the instruction's range, at one distance (offset - range.begin): in one piece.
//             What a Load or Store reads is in one piece as well.
//   end       residencies of weights and state end with a Detach of their range; all others may
//             just end. Copies in other tiers never need a Detach.
//   present   a Load of a weight from source_tier needs no copy. Any other Load, and every Store,
//             Encode, Decode and op, reads bytes of the present version.
//   order     what an instruction may rely on: its own waits, what those waited for, and that a
//             stream's instructions complete in the order listed. A Detach completes when its waits
//             have and when the stream-0 instructions listed before it have; it delays nobody.
//             Nothing else counts, not even that a transfer is listed after an op.
//   alignment offsets on the device are multiples of alignment_of(tensor), and so is the begin of a
//             range; elsewhere they are multiples of Tensor::alignment. A tier stores only what is
//             aligned as TierInfo says.
//
// Promises, all checked by verify(Program)
//   1. every operand of a compute step is resident there in one piece and in its present version
//      (updates in place make a new one), and its Load is waited for.
//   2. no two residencies of one tier that share a step share a byte; nor does an instruction start
//      to write bytes that an earlier, unfinished instruction of another stream still uses.
//   3. nothing is detached that has no other valid copy and is needed later, unless an op that
//      writes it runs again before that.
//   4. all extents lie inside [0, arena_bytes), and inside the capacity of their tier.
//   5. a cyclic Program has the same residencies at exit as at entry, in every tier.
//   6. every op of the graph runs, in an order that its operands allow; what an op that runs again
//      reads has the version that it had the first time, and no op with recompute = 0 or updates
//      runs twice.
//   7. to_text / parse_program round-trip; the text is self-contained (graph, tiers, costs).
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "headrace/ir/codec.h"
#include "headrace/ir/graph.h"

namespace headrace {

constexpr StreamId kComputeStream{0};
constexpr Step kEntry{-1};

enum class InstrKind : uint8_t { kCompute, kLoad, kStore, kGather, kDetach, kEncode, kDecode };
constexpr int kInstrKindCount = 7;
const char* name_of(InstrKind kind);
inline bool is_transfer(InstrKind k) {
  return k == InstrKind::kLoad || k == InstrKind::kStore || k == InstrKind::kGather;
}

// Bytes [begin, begin + bytes) of a tensor's device copy, or of its encoded form. The default is
// all of it.
struct Range {
  Bytes begin = 0;
  Bytes bytes = -1;  // -1: to the end
  bool whole() const { return begin == 0 && bytes < 0; }
  bool operator==(const Range&) const = default;
};

struct Instr {
  InstrKind kind = InstrKind::kCompute;
  StreamId stream = kComputeStream;
  OpId op;              // kCompute
  TensorId tensor;      // the others
  TierId tier;          // kLoad, kGather: from; kStore: to
  // Steps whose latest execution must be complete before this one starts. An index at or after
  // the own one means the execution in the previous cycle.
  std::vector<Step> waits;
  Nanos cost_ns = 0;    // kCompute, kEncode, kDecode: predicted duration
  Range range;          // kLoad, kStore, kDetach: of the form that `codec` names
  Codec codec = Codec::kNone;  // which form is moved or given up; kEncode, kDecode: by which codec
  bool operator==(const Instr&) const = default;
};

struct Residency {
  TensorId tensor;       // invalid: workspace of `op`
  OpId op;
  Bytes offset = 0;
  Bytes bytes = 0;       // page-rounded for what is loaded from a file
  Step begin = kEntry;
  Step end;              // one past the last step; instrs.size() when still resident at exit
  TierId tier = kDevice; // whose bytes `offset` counts
  Range range;           // of the tensor, or of its encoded form
  Codec codec = Codec::kNone;
  bool operator==(const Residency&) const = default;
};

// A tier as the planner sees it.
struct TierInfo {
  std::string name;             // "device", "file", ...
  Bytes capacity = 0;
  double load_bytes_per_s = 0;  // 0 for the device itself
  double store_bytes_per_s = 0;
  Nanos latency_ns = 0;
  bool duplex = false;          // loads and stores do not slow each other
  int32_t group = -1;           // tiers of one group share one link; -1: a link of its own
  // What is stored there has at least this alignment (Tensor::alignment): kPage for a disk that is
  // written past the page cache.
  Bytes alignment = 1;
  bool operator==(const TierInfo&) const = default;
};

// The stream of a transfer of `kind` with `tier`. A link that is not duplex has one, a duplex
// link two; the tiers of a group share those of the first of them. Streams are numbered from 1 in
// the order of tiers, loads before stores.
StreamId link_stream(const std::vector<TierInfo>& tiers, TierId tier, InstrKind kind);

struct Program {
  std::string name;
  std::shared_ptr<const Graph> graph;
  bool cyclic = false;
  Bytes arena_bytes = 0;
  std::vector<TierInfo> tiers;      // by TierId; [0] is the device
  TierId source_tier{1};            // where the file extents of weights are
  std::string machine;              // what it was planned for, for people
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

// Where a file-backed tensor's bytes are read from: page-rounded; the tensor is `skew` bytes in.
struct LoadExtent {
  Bytes offset = 0;
  Bytes bytes = 0;
  Bytes skew = 0;
};
LoadExtent load_extent(const FileExtent& source);
// Arena bytes that a residency of `tensor` takes: page-rounded superset for weights, the size
// rounded to its alignment otherwise.
Bytes device_bytes(const Tensor& tensor);
// What extents of `tensor` on the device are multiples of: kPage for what is loaded from files.
Bytes alignment_of(const Tensor& tensor);
// The bytes of `range` of a tensor in the form `codec`: of device_bytes, or encoded_bytes rounded
// to the tensor's alignment.
Bytes range_bytes(const Tensor& tensor, const Range& range, Codec codec = Codec::kNone);

// Ok, or the first broken promise, with the step and the names. Plays one cycle, or two when the
// Program is cyclic, with tables of its own. O((n + accesses) log n).
Status verify(const Program& program);

std::string to_text(const Program& program);  // parse_program() gives the same back
Result<Program> parse_program(std::string_view text);

}  // namespace headrace
