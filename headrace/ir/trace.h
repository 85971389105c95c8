// Trace: what happened. One record per instruction and the memory curve of the device; written
// by the simulator and by the executor in the same type, so that a plan can be held to account.
#pragma once

#include <string>
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

// A point of the memory curve: device bytes held from `step` on.
struct MemoryPoint {
  int32_t step = 0;
  Bytes bytes = 0;
};
// Bytes held at each step where residencies begin or end; a byte that two of them share (a matmul
// that writes over its residual) counts once.
std::vector<MemoryPoint> memory_curve(const Program& program);
// The end of the highest extent: the arena that the Program needs, gaps included.
Bytes peak_bytes(const Program& program);

// Chrome / Perfetto trace-event JSON (the "Trace Event Format" document): one row a stream, our
// fields in `args`.
std::string to_chrome_json(const Program& program, const Trace& trace);

}  // namespace headrace
