// The planner's view of a step: flat tables over the positions of one order. Internal to plan/.
//
// Vocabulary
//   position  index in `order`; the op at position k runs after the actions listed before it.
//   value     a tensor in one life: born at a position (or there at entry), touched by ops, dead
//             after its last touch. Tensors that no op touches are values as well when persistent.
//   touch     a position whose op reads or writes the value; it must be on the device there.
//   gap       between two touches that are not neighbours; also before the first touch of what is
//             there at entry, after the last of what must outlive the step, and, in a cyclic
//             problem, from the last touch to the first of the next cycle.
//   action    a store, load, drop, recompute, encode or decode, listed before a position.
//
// Memory model: at position k the device holds every value that is touched at k (outputs are
// allocated before inputs are freed), every value that is resident across k, and the workspace of
// the op. A load holds its bytes from the position it is listed before; a store until its drop.
#pragma once

#include <vector>

#include "headrace/plan/step_plan.h"

namespace headrace::plan {

struct Value {
  TensorId tensor;
  Bytes bytes = 0;               // device_bytes
  int32_t producer = -1;         // position of the op that writes it first; -1: there at entry
  std::vector<int32_t> touches;  // ascending positions
  std::vector<int32_t> writes;   // those of them that write it; each makes copies elsewhere stale
  bool persistent = false;       // weight or state: must outlive the step (in any tier)
  bool on_device_at_entry = false;  // not cyclic, state: it starts there. Otherwise the plan's choice
  TierId home;                   // a tier with a valid copy at entry (weights); invalid: none
  bool can_recompute = false;    // its op may run again: no updates, rules allow it, written once
  const PlacementRule* rule = nullptr;  // null: none
};

struct Problem {
  const StepRequest* request = nullptr;
  const Graph* graph = nullptr;
  const Machine* machine = nullptr;
  Bytes budget = 0;              // what placement may use: at most request->budget
  bool cyclic = false;
  std::vector<OpId> order;
  std::vector<Nanos> cost;       // by position
  std::vector<Bytes> workspace;  // by position
  std::vector<Value> values;
  std::vector<int32_t> value_of; // by TensorId; -1: not a value (constants held all the time)
  std::vector<std::vector<int32_t>> reads;   // by position: values read, updated or added to
  std::vector<std::vector<int32_t>> births;  // by position: values written first
  Bytes fixed_bytes = 0;         // constants: resident throughout
  TierId source_tier;            // where the files of weights are; invalid: nowhere
  int32_t size() const { return static_cast<int32_t>(order.size()); }
};

// More ops than any plan is made for.
constexpr size_t kMostOps = 2'000'000;

// Ok, or why this request can never be planned: kBadFile for a graph or machine that cannot be,
// kUsage for rules that contradict each other or name what does not exist.
Status check_request(const StepRequest& request);

// The tier that weights are loaded from: the first after the device (machine.h).
TierId source_tier(const Machine& machine);

// The graph's own order.
std::vector<OpId> program_order(const Graph& graph);

// The problem in this order (a valid order of all ops of the graph; kUsage otherwise). Precondition:
// check_request() is ok. What is special by role:
//   kConstant  no value, held throughout (fixed_bytes)
//   kGathered  touched at all positions up to its last use: gathered at the begin, never moved
//   kOutput    touched by the last position too, and held from there to the exit
//   tiles      a value that several ops write is touched by all positions between them
//   kWeight    home is the source tier; not cyclic: whether it is on the device at entry is the plan's
//              choice
Result<Problem> make_problem(const StepRequest& request, const std::vector<OpId>& order);

// Whether the tier takes what the value is: it can be stored to, is aligned no coarser than the value,
// and no rule forbids it.
bool may_store(const Problem& problem, const Value& value, TierId tier);

// The bytes held at each position when nothing moves.
std::vector<Bytes> resident_profile(const Problem& problem);
// The most of a profile; 0 when it is empty.
Bytes peak_of(const std::vector<Bytes>& profile);
// Every op once, without a wait: no plan takes less.
Nanos compute_ns(const Problem& problem);

// Predicted duration of encoding or decoding all of `value` by `codec`.
Nanos codec_cost(const Problem& problem, int32_t value, Codec codec);

// Whether a rule allows a codec for any value.
bool allows_codecs(const Problem& problem);
// The same problem, where no rule does. Its values point into `rules`, which must outlive it.
Problem without_codecs(const Problem& problem, std::vector<PlacementRule>* rules);

enum class ActionKind : uint8_t { kStore, kLoad, kDrop, kRecompute, kEncode, kDecode };

// Listed before position `before` (size(): after the last op); the list order of actions before one
// position is theirs. Range as in Instr: of the form that `codec` names.
struct Action {
  ActionKind kind = ActionKind::kStore;
  int32_t before = 0;
  int32_t value = -1;            // kRecompute: the value wanted; other outputs of the op are dropped
                                 // at once unless they are recomputed by the same action list
  Range range;                   // kStore, kLoad, kDrop
  TierId tier;                   // kStore, kLoad
  Codec codec = Codec::kNone;    // kStore, kLoad, kDrop: which form; kEncode, kDecode
};

// What placement decides. A value without actions is kept from birth to last touch. A drop is listed
// for everything that leaves before its last touch; what is dead is dropped by emit().
struct Schedule {
  std::vector<Action> actions;   // by `before`
  std::vector<bool> at_entry;    // by value: on the device at entry (cyclic: and at exit)
  std::vector<Choice> choices;   // for people; the times are filled in later
};

// The bytes held at each position under `schedule`: the most at any moment from the actions before the
// position to its op (runs of other ops among those actions included). Position 0 counts the entry.
// O(actions + touches). Actions that make no sense are not noticed: walk_schedule() does.
std::vector<Bytes> schedule_profile(const Problem& problem, const Schedule& schedule);

}  // namespace headrace::plan
