// Timeline: one run of a Program as numbers over time, for a picture and for rankings: who holds
// which bytes of which tier, what each stream does, who waits for whom.
//
// Vocabulary
//   issue    when the device side reads an instruction: the end of the compute instruction before it.
//            Residencies begin and end at the issue of the step that names them.
//   holding  a residency of the Program with its times.
//   change   bytes of one class of one tier, added or given up at a step.
//   lead     from the end of a Load to the begin of the instruction that uses it.
//   blame    the transfer that a stalled instruction waited for last.
//   again    a compute instruction whose op ran before in this step (recomputation).
//
// Promises
//   1. Device changes summed up to any step are the memory_curve() of the Program there: a byte that
//      two residencies share counts once, for the larger.
//   2. Events are those of the Program, one an instruction, in its order; their sums are the totals
//      of the Trace.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "headrace/ir/trace.h"

namespace headrace {

// The classes of data, and the workspace of ops as one more.
constexpr int kMemoryClassCount = kDataClassCount + 1;
constexpr int kWorkspaceClass = kDataClassCount;
const char* memory_class_name(int memory_class);
int memory_class_of(const Program& program, const Residency& residency);

using ClassBytes = std::array<Bytes, kMemoryClassCount>;

struct TimelineLane {
  std::string name;     // "compute", "host load", "file load, store"
  StreamId stream;
  int64_t events = 0;
  Nanos busy_ns = 0;    // of a link: without the latencies after the bytes have passed
  Nanos stall_ns = 0;   // compute alone
  Bytes bytes = 0;
};

struct TimelineEvent {
  Nanos begin_ns = 0;
  Nanos end_ns = 0;
  Nanos stall_ns = 0;
  Nanos lead_ns = -1;   // Load, Gather; -1: nothing uses it any more, or no Load
  Bytes bytes = 0;
  int32_t lane = -1;    // -1: takes no time on a stream (Detach)
  int32_t blame = -1;   // a step
  int32_t used_by = -1; // Load, Gather: the step that uses it first
  bool again = false;
};

struct TimelineHolding {
  int32_t residency = 0;  // index in Program::residencies
  Nanos begin_ns = 0;
  Nanos end_ns = 0;
};

struct TimelineChange {
  int32_t step = 0;     // 0 for what is there at entry
  int16_t tier = 0;
  int16_t memory_class = 0;
  Bytes bytes = 0;      // below zero: given up
};

struct TimelineTier {
  std::string name;
  Bytes capacity = 0;   // of the device: the arena
  Bytes peak = 0;
  int32_t peak_step = 0;
  ClassBytes at_peak{}; // the bytes of each class then
};

struct Timeline {
  const Program* program = nullptr;  // borrowed; must outlive this
  Nanos total_ns = 0;
  Nanos stall_ns = 0;
  Nanos compute_ns = 0;              // of stream 0, without stalls
  Nanos again_ns = 0;                // of it: recomputation
  Bytes loaded_bytes = 0, stored_bytes = 0, gathered_bytes = 0;
  std::vector<Nanos> issue_ns;       // by step, and one more: the end
  std::vector<TimelineLane> lanes;   // those that the Program uses, compute first
  std::vector<TimelineEvent> events; // by step
  std::vector<TimelineHolding> holdings;
  std::vector<TimelineChange> changes;  // by (tier, step); those of one step belong together
  std::vector<TimelineTier> tiers;
};

// Preconditions: verify(program) is ok, and `trace` has one record an instruction. Time and memory
// linear in instructions and residencies, but for sorting.
Timeline make_timeline(const Program& program, const Trace& trace);

// What the instruction is about: the name of its op or its tensor.
const std::string& subject_of(const Program& program, const Instr& instr);
// "Load", "Store": for the start of a sentence.
const char* verb_of(InstrKind kind);

// The part of a name that says which layer it belongs to, "blk.3" of "blk.3.ffn_up.weight:0",
// "layer12" of "layer12/attn/q"; empty when no part is a number or ends in one after letters.
std::string layer_of(const std::string& name);

// One self-contained HTML file: the picture, its data and a table of the numbers for readers without
// scripts. `extra_html` is put below the picture as it is (a table of the plan); it must be valid and
// escaped.
std::string timeline_html(const Timeline& timeline, const std::string& extra_html = {});

// `text` for HTML, attributes included; what is not UTF-8 is replaced.
std::string html_text(const std::string& text);

}  // namespace headrace
