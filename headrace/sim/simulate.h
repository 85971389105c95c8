// The simulator: plays a Program on a machine and returns the Trace that the executor is expected
// to return. Moves no memory.
//
// Model: discrete events. The device side reads the instructions in order and issues each when the
// compute instruction listed before it has ended. Compute, encode and decode run on stream 0, each
// for its cost, after its waits. A transfer joins the queue of its stream (link_stream), which
// serves one at a time in the order issued; it starts when the link is free and its waits are over,
// occupies the link for bytes / bandwidth and completes one latency later, never before the one
// ahead of it in the queue. Detach takes no time and completes with its waits. A cyclic Program is
// played until its duration repeats; the last cycle is returned.
#pragma once

#include "headrace/ir/trace.h"

namespace headrace {

struct SimOptions {
  // Other tiers than those of the Program (same number, same order), whose links are then other
  // streams; empty: the Program's.
  std::vector<TierInfo> tiers;
  // Every cost on stream 0 is multiplied by a factor uniform in [1 - noise, 1 + noise]. It is a hash
  // of `seed` and of the op (encode, decode: of the tensor and codec), so that an op has the same
  // factor in every plan of its graph, wherever it stands and each time it runs.
  double noise = 0;
  uint64_t seed = 0;
  // The rows of the steps, for what is moved of KV slots (kv_part, and of slots that are selected the
  // share that is selected of all); null: whole slots.
  const StepRows* rows = nullptr;
};

// Precondition: verify(program) is ok. Deterministic. O(instructions + waits) a cycle. Times stop at
// 4e18 ns, so that no link is too slow to be played.
Trace simulate(const Program& program, const SimOptions& options = {});

}  // namespace headrace
