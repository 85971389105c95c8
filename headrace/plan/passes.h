// The planner's passes and the tables they hand on. Internal to plan/.
#pragma once

#include <vector>

#include "headrace/plan/plan.h"

namespace headrace::plan {

// A buffer that lives from its first op to its last (both included, by op index).
struct Buffer {
  TensorId tensor;  // invalid: workspace of `op`
  OpId op;
  Bytes bytes = 0;
  Bytes alignment = kLine;
  int32_t first = 0;
  int32_t last = 0;
  int32_t shares = -1;  // index of the buffer whose extent this one takes over; -1: its own
  Bytes offset = 0;     // set by assign_offsets, from the base of the activation region
};

// Activations, outputs, gathered rows, constants and workspaces of the graph, by first op.
std::vector<Buffer> live_ranges(const Graph& graph);

// Sets offsets; returns the height of the region (page-rounded). Greedy by size: the largest
// buffer first, each at the lowest offset free over its whole live range (Pisarchyk and Lee,
// "Efficient memory management for deep neural net inference", 2020).
Bytes assign_offsets(std::vector<Buffer>& buffers);

// What may be kept in memory or moved in every step: a weight, or a KV slot that has a copy in another
// tier; and the ops that use it.
struct Cached {
  TensorId tensor;
  bool slot = false;
  Bytes bytes = 0;      // page-rounded
  int32_t first = 0;    // op index of the first use; the number of ops: not used by this graph
  int32_t last = 0;     // and of the last
  bool pinned = false;  // in use together with something that is streamed: always resident
  bool resident = false;
  Bytes offset = 0;     // in the arena, once placed
  // Of what is streamed: the op after which the load may start; when `wraps`, that op runs in the
  // cycle before, so that it is resident at entry. A slot never wraps: with release -1 its load
  // starts with the cycle. What has been in its place before: indices of the list it is in.
  int32_t release = -1;
  // Of a slot: the op that says whether it is needed at all; nothing is loaded before it. -1: none.
  int32_t select = -1;
  bool wraps = false;
  std::vector<int32_t> before;
};

// Stays whatever the budget: small weights (norms, biases), or pinned.
bool always_resident(const Cached& cached);

// All weights of the graph, and its slots that have a copy (kv_slots), in the order in which they
// should be kept, see plan.h. Weights that no op uses come where the last op would use them: another
// Program of the session does.
std::vector<Cached> keep_order(const Graph& graph, bool kv_slots);

// Where the parts of the arena are.
struct Layout {
  Bytes state_bytes = 0;  // that never moves
  Bytes activation_bytes = 0;
  Bytes arena_bytes = 0;
  Bytes weight_begin() const { return state_bytes; }
  Bytes weight_end() const { return arena_bytes - activation_bytes; }
};

// Marks and places residents (in keep order, low to high) so that `ring_bytes` are left, then
// lays the rest out in the ring. False when the ring is too small for what is streamed.
bool place_cached(const Graph& graph, std::vector<Cached>& cached, const Layout& layout,
                  Bytes ring_bytes);

// Everything decided: the instructions.
Program emit(const PlanRequest& request, const Layout& layout,
             const std::vector<Buffer>& buffers, const std::vector<Cached>& cached);

}  // namespace headrace::plan
