// The pass `emit`: a Problem and a Schedule become a Program. Internal to plan/.
//
// Three stages, a file each:
//   walk     (emit_step_walker.h)    instructions in order; who is resident from which step to which
//   offsets  (emit_step_offsets.cc)  an extent for every residency, by allocate(), in every tier
//   waits    (emit_step_waits.cc)    what the bytes that two streams share oblige one to wait for
//
// Vocabulary
//   block   what moves together: the residencies of one value from when it comes onto a tier until
//           no part of it is left there; in a cyclic Program also the parts at exit and at entry.
//   form    a value's plain bytes, or those that a codec makes of it.
#pragma once

#include <vector>

#include "headrace/plan/problem.h"

namespace headrace::plan {

// Bytes of a block that an instruction reads or writes.
struct ByteUse {
  int32_t instr = 0;
  TierId tier;
  int32_t block = 0;
  Bytes begin = 0, end = 0;  // from the begin of the block
};

struct Draft {
  Program program;                // without offsets; `waits` hold data dependencies alone
  std::vector<int32_t> block;     // by residency
  int32_t blocks = 0;
  std::vector<ByteUse> uses;      // by instr: of transfers, and of ops that write in place
};

// A Schedule that loses a value, or uses what is not there, is kUnsupported with the value's name: a
// mistake of the policy that made it.
Result<Draft> walk_schedule(const Problem& problem, const Schedule& schedule);

// Where a value lies from when it comes onto the device until no part of it is left there; its last
// use says which of those times is meant. `value` -1: the workspace of the op of a position.
struct Extent {
  int32_t value = -1;
  int32_t op_position = -1;    // of workspace: the position of its op
  int32_t last_position = -1;  // of its last use; -1: it is only there at entry
  bool among_reruns = false;   // the last use is by ops that run again before that position
  Bytes offset = 0;
};

struct EmitOptions {
  int64_t search_nodes = 0;  // of the allocator
  // Given: the device's extents, those of one value in order. Null: the allocator finds them.
  const std::vector<Extent>* extents = nullptr;
};

struct Emitted {
  Program program;
  Bytes excess = 0;          // by which the extents pass the budget or a tier's capacity; 0: fits
  TierId excess_tier;        // the tier that it is
  int32_t worst_position = 0;  // of the device's excess: where the most lies above
  int64_t search_nodes = 0;  // that the allocator used
};

// Sets the offsets of all residencies; program.arena_bytes becomes what they need, rounded to pages.
Status assign_extents(const Problem& problem, const EmitOptions& options, Draft& draft,
                      Emitted& result);

// Adds the waits that shared bytes oblige to, to those for data. O(n log n).
void add_byte_waits(Draft& draft);

// Without offsets: whoever needs room waits for as many of the stores before it as the budget asks for,
// oldest first. The time of such a Program is what the schedule comes to when extents never get in the
// way. O(n).
void add_room_waits(Draft& draft, Bytes budget);

// All three. Deterministic.
Result<Emitted> emit_step(const Problem& problem, const Schedule& schedule,
                          const EmitOptions& options);

}  // namespace headrace::plan
