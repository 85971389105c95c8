// Trace: what happened. One record per instruction, and memory curves of the tiers; written
// by the simulator and by the executor in the same type, so that a plan can be held to account.
#pragma once

#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "headrace/ir/program.h"

namespace headrace {

// Times are nanoseconds since the start of the step. stall_ns: how long the stream stood still
// before this instruction, waiting for another stream.
struct TraceRecord {
  Nanos begin_ns = 0;
  Nanos end_ns = 0;
  Nanos stall_ns = 0;
  Bytes bytes = 0;  // moved by a transfer
};

// One run of a Program: records[i] belongs to program.instrs[i].
struct Trace {
  std::vector<TraceRecord> records;
  Nanos total_ns = 0;       // first instruction to last compute, transfers in flight not counted
  Nanos stall_ns = 0;       // compute stream, sum
  Bytes loaded_bytes = 0;   // by Load
  Bytes gathered_bytes = 0; // by Gather (embedding rows)
  Bytes stored_bytes = 0;
};

// A point of a memory curve: bytes of a tier held from `step` on.
struct MemoryPoint {
  int32_t step = 0;
  Bytes bytes = 0;
};
// Bytes held at each step where residencies begin or end; a byte that two of them share (a matmul
// that writes over its residual) counts once.
std::vector<MemoryPoint> memory_curve(const Program& program, TierId tier = kDevice);
// The end of the highest extent: the arena that the Program needs, gaps included; or the room that
// it needs in another tier.
Bytes peak_bytes(const Program& program, TierId tier = kDevice);

// The same by class of data: shown_class() of the tensor, and the workspace of ops as one more.
constexpr size_t kWorkspaceSlot = kDataClassCount;
struct ClassPoint {
  int32_t step = 0;
  std::array<Bytes, kDataClassCount + 1> bytes{};
};
std::vector<ClassPoint> class_curve(const Program& program, TierId tier = kDevice);

// The same over time. A residency begins when the instruction that fills it begins, and ends when
// its Detach completes; one without a Detach when the last instruction before its end has ended.
// Preconditions: verify(program) is ok, and `trace` is of it.
struct TimePoint {
  Nanos time_ns = 0;
  std::array<Bytes, kDataClassCount + 1> bytes{};  // from then on; ascending times, no two equal
};
std::vector<TimePoint> time_curve(const Program& program, const Trace& trace,
                                  TierId tier = kDevice);

// Chrome / Perfetto trace-event JSON (the "Trace Event Format" document): one row a stream, memory
// counters for each tier by class, our fields in `args`. The file holds its Program's text
// (otherData), so that it can be read back alone.
std::string to_chrome_json(const Program& program, const Trace& trace);

// A trace file that to_chrome_json wrote, events in any order; kBadFile for one of another program,
// or with a Program that does not pass verify(). Events are read as they come: memory is that of
// the result and of the Program's text.
struct TraceFile {
  Program program;
  Trace trace;
};
Result<TraceFile> parse_chrome_json(std::string_view json);

}  // namespace headrace
