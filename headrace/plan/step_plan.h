// Planning any step: a Graph, a Machine and a device budget become a Program in which every tensor is
// kept, moved or recomputed, with a bound that says how good that is; or a certificate
// of why nothing fits. (plan.h is the same for decoding with read-only weights, where one fixed
// pattern is known to be optimal.)
//
// Method, see docs/guide/planning.md. Passes, in order; step_pipeline.cc is the list:
//   problem       values, their touches and idle gaps, at the positions of one order
//   order         the best of several orders of the ops, by the peak that they need
//   placement     one way for each idle gap {keep, move to a tier, recompute; where a rule allows a codec,
//                 keep or move the encoded form}
//   transfers     when each Store and Load is issued: calendars of link time, earliest deadline first
//   emit          instructions and residencies
//   offsets       static extents; when they exceed the budget, placement runs again with less
//   simulate      the candidates of the portfolio are compared by what the simulator predicts
//
// Promises
//   1. Deterministic: the same request gives the same Program, byte for byte; no clock is read.
//   2. The Program passes verify(); its extents lie inside the budget and the tiers' capacities.
//   3. Never slower (in the simulator) than any policy of the portfolio that fits.
//   4. Rules are obeyed, or the request is refused with the tensor's name and the reason.
//   5. What cannot fit is an Infeasible value, not an error.
#pragma once

#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "headrace/cost/machine.h"
#include "headrace/ir/rules.h"
#include "headrace/ir/trace.h"

namespace headrace {

enum class Goal : uint8_t {
  kFit,         // the first plan that fits: no local search
  kLatency,     // the shortest step
  kThroughput,  // the shortest step when it repeats: cyclic, prefetch across the step's end
};

struct StepRequest {
  std::string name;                   // of the Program
  std::shared_ptr<const Workload> workload;
  const Machine* machine = nullptr;   // borrowed; tiers[0].capacity is not used
  Bytes budget = 0;                   // bytes of the device's arena
  CostQuery cost;                     // for ops whose cost depends on rows
  Goal goal = Goal::kLatency;
  bool reorder = true;                // false: the graph's own order stays
  bool recompute = true;              // false: offload only
  // A plan for a smaller budget or a slower link that the result must not be slower than; borrowed.
  const Program* inherit = nullptr;
};

// No plan of this step on this machine within this budget can be faster than total_ns.
struct Bound {
  Nanos compute_ns = 0;   // every op once
  // In the order of the Program: bytes that must cross a link, beside compute as far as they can.
  Nanos link_ns = 0;
  Nanos total_ns = 0;     // the larger; compute_ns alone when ops may be reordered
  std::string reason;     // which of them binds, with numbers
};

// How one idle gap (or a part of it) is spent, for --explain.
enum class Way : uint8_t { kKeep, kMove, kRecompute, kCompress, kMoveCompressed };
const char* name_of(Way way);
struct Choice {
  TensorId tensor;
  Range range;
  Way way = Way::kMove;
  TierId tier;             // of kMove, kMoveCompressed
  Codec codec = Codec::kNone;
  OpId after, before;      // the touches around the gap; invalid: the step's begin or end
  Bytes freed_bytes = 0;
  Nanos gap_ns = 0;        // from the end of `after` to the begin of `before`
  Nanos lead_ns = 0;       // from the end of the Load to the use
  Nanos added_ns = 0;      // time it is predicted to add to the step
  // What the other ways would have added, kKeep apart; kNever: not possible.
  static constexpr Nanos kNever = -1;
  Nanos move_ns = kNever, recompute_ns = kNever, compress_ns = kNever;
};

struct Considered {
  std::string policy;      // "planner", "offload by distance", ...
  bool fits = false;
  Nanos predicted_ns = 0;
  Bytes peak_bytes = 0;
};

struct PassTime {
  std::string pass;
  int64_t work = 0;        // what it counted (gaps, evaluations), not seconds
};

struct StepPlan {
  Program program;
  Trace predicted;
  Bound bound;
  std::vector<Choice> choices;       // by freed bytes x time, largest first
  std::vector<Considered> portfolio;
  std::vector<PassTime> passes;
  Bytes unconstrained_peak_bytes = 0;  // of the live bytes, everything kept
};

// Why nothing fits: at `op`, these bytes must be on the device at the same time whatever is done.
struct Infeasible {
  OpId op;
  Bytes needed_bytes = 0;            // least budget that any plan of this step needs
  Bytes budget = 0;
  std::vector<TensorId> live;        // the irreducible set, largest first
  Bytes workspace = 0;
  std::string reason;                // in words
  std::vector<std::string> options;  // what would make it fit, best first
};

using StepResult = std::variant<StepPlan, Infeasible>;
// Errors: kBadFile (graph or machine that cannot be: cycles, NaN, bandwidth 0), kUsage (rules that
// contradict each other or cannot be obeyed).
Result<StepResult> plan_step(const StepRequest& request);

}  // namespace headrace
