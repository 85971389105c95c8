// Lower bounds on the time of any plan in one order of the ops. Internal to plan/.
//
// Method. Every plan is a point of this linear relaxation, by slots (before op 0, op 0, before
// op 1, op 1, ...): slot j lasts d_j, an op's at least its cost; a byte that is away from one touch
// to the next leaves over a link in one slot and comes back in another, each taking link time of
// that slot, or its op runs again; what is not away counts against the budget while ops run. Any
// prices of memory (by op) and of link time (by slot and stream, at most 1 together) give a bound:
// Lagrangian duality (Geoffrion, 1974). The first prices come from the fullest position and the
// windows of ops around it in which the bytes must leave and return, by a fractional knapsack over
// the ways to free a byte there (bounds_windows.cc, with a proof); then subgradient steps of
// Polyak's length (Polyak, 1969). What is left out can only make a plan slower: latencies, whole
// chunks, extents, operands of reruns.
#pragma once

#include "headrace/plan/problem.h"

namespace headrace::plan {

// `iterations`: the most steps of the ascent from each of at most two starts, O(gaps log positions)
// each; 0: the starts alone. `upper_ns`: the time of a plan, which the ascent aims at; a wrong one
// costs quality only.
Bound lower_bound(const Problem& problem, int iterations, Nanos upper_ns);

// A cyclic step, in any order of its ops: what ops touch of weights and states in a cycle, less
// what can stay on the device from cycle to cycle, comes in over the links in each; what is written
// of it and cannot stay goes out. 0 when not cyclic. Values that a rule allows a codec for are left
// out.
Nanos cycle_link_ns(const Problem& problem);

}  // namespace headrace::plan
