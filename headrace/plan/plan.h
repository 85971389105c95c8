// The planner: a Graph, a Machine and an arena size become a verified cyclic Program.
//
// Method. Decoding reads every weight once a step, in the same order each time. A recency cache
// would re-read all M bytes; the optimum keeps a fixed subset R and reads M - R (Belady's MIN on a
// cyclic reference string). Passes, in order (pipeline.cc is the list):
//   live ranges   first and last op of every activation and workspace
//   offsets       arena offsets of activations, largest first at the lowest free offset
//   residents     which weights stay: a prefix of one fixed order whose every prefix is spread
//                 evenly over the step (van der Corput), so that a larger budget keeps a superset
//                 and the copy engine finds its work evenly between resident tiles; KV slots that
//                 may move come after them, older positions first
//   ring          offsets of what is streamed in a ring, loads issued when their place frees
//   emit          instructions, waits and residencies
// The size of the ring is chosen by playing each candidate in the simulator.
//
// Arena layout, low to high: state that never moves (KV) | residents | ring | activations and
// workspace. State and the common prefix of the residents have the same offsets in every Program of a
// session, whatever the row count: bridges move only what differs.
//
// Promises
//   1. Deterministic: the same request gives the same Program, byte for byte.
//   2. The Program passes verify(), as the tests check for every plan they make; its extents lie
//      inside arena_bytes.
//   3. What cannot fit is kDoesNotFit with the least arena that would do, before any work.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "headrace/cost/machine.h"
#include "headrace/ir/program.h"

namespace headrace {

struct PlanRequest {
  std::string name;                    // of the Program
  std::shared_ptr<const Graph> graph;
  const Machine* machine = nullptr;    // borrowed
  Bytes arena_bytes = 0;
  CostQuery cost;                      // rows and positions that times are predicted for
  // Where KV slots of split attention ops have a copy, so that they need not stay on the device; invalid:
  // all KV stays there. Slots are then kept after the weights, older segments first: what is not
  // kept is what the sequence reaches last, and moves nothing before that.
  TierId kv_tier;
};

Result<Program> plan_cyclic(const PlanRequest& request);  // kDoesNotFit: promise 3

// The smallest arena that plan_cyclic accepts for this graph, with this PlanRequest::kv_tier.
Bytes least_arena_bytes(const Graph& graph, TierId kv_tier = TierId());
// The smallest arena in which plan_cyclic streams nothing.
Bytes full_arena_bytes(const Graph& graph, TierId kv_tier = TierId());
// A full step of one sequence from about `position` on that seals no tile it could do without.
StepRows typical_rows(const Graph& graph, int64_t position);

// What follows a bridge: more cycles of the target, or another Program. In the second case the loads
// that the target issues for its next cycle are left out, and the bridge ends without them.
enum class Ending { kCycle, kStop };

// The first cycle of `target` from another state: the same computation, with Loads, earliest deadline
// first, for what `state` lacks. `state` is the exit_state of the Program that ran before; empty at
// the very start. Ends as the target does (kCycle), or with its residents alone (kStop).
Result<Program> plan_bridge(const Program& target, const std::vector<Placed>& state,
                            Ending ending = Ending::kCycle);

// What a Program holds and moves, for the plan table and the report.
struct PlanSummary {
  Bytes model_bytes = 0;      // M: page-rounded union of the weights one cycle uses
  Bytes resident_bytes = 0;   // R: page-rounded union of the weights that stay
  Bytes streamed_bytes = 0;   // of weights, loaded a cycle
  Bytes gathered_bytes = 0;   // embedding rows a cycle, at most
  Bytes ring_bytes = 0;
  Bytes state_bytes = 0;      // KV on the device, what passes through the ring apart
  Bytes kv_copy_bytes = 0;    // of slots that have a copy in another tier
  Bytes kv_loaded_bytes = 0;  // of slots, loaded in a cycle at `position`
  Bytes workspace_bytes = 0;  // activations and workspace, at their peak
  Bytes arena_bytes = 0;
  int resident_tensors = 0;
  int streamed_tensors = 0;
  Nanos predicted_ns = 0;     // of a cycle, by the simulator
  Nanos predicted_stall_ns = 0;
};
// `position`: of the first row of the cycle that times and KV bytes are predicted for.
PlanSummary summarize(const Program& program, int64_t position = 0);

}  // namespace headrace
