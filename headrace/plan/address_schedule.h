// Planning in addresses: for short steps under budgets that are met to the last byte. Internal to plan/.
//
// placement.h counts bytes and leaves extents to the allocator; at 100 % occupancy no extents may exist
// for what it decides, and room left for them costs much of a short step's time. Here extents come
// first. Two values may share bytes unless one op touches both: whenever an op touches one of them in
// an idle gap of the other, the shared bytes of that other must be away. So extents decide what moves,
// and every choice of them is a plan that fits.
//
// Vocabulary
//   slot     a moment at which bytes must be there: 0 the entry, 2 k + 1 the ops that run again before
//            position k, 2 k + 2 the op at k, 2 n + 1 the exit.
//   life     a value from when it comes onto the device until no part of it is left there: it has one
//            offset. Running its op again begins a new one, and so does coming back as a whole
//            (Way::kMove of all bytes in the State). The workspace of an op is a life of one slot.
//   part     bytes of a life that are away in one gap, because others need theirs.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "headrace/plan/emit_step.h"
#include "headrace/plan/placement_state.h"

namespace headrace::plan {

// Positions of the longest step that is planned in addresses.
constexpr int32_t kMostAddressPositions = 128;

// Slots of a step, as bits.
class SlotSet {
 public:
  void add(int32_t slot) { bits_[word(slot)] |= uint64_t{1} << (slot % 64); }
  void add(int32_t lo, int32_t hi) {
    for (int32_t s = lo; s <= hi; ++s) add(s);
  }
  bool meets(const SlotSet& other) const {
    uint64_t common = 0;
    for (size_t i = 0; i < bits_.size(); ++i) common |= bits_[i] & other.bits_[i];
    return common != 0;
  }

 private:
  static size_t word(int32_t slot) { return static_cast<size_t>(slot) / 64; }
  std::array<uint64_t, (2 * kMostAddressPositions + 2 + 63) / 64> bits_ = {};
};

enum class LifeEnd : uint8_t {
  kDead,   // nothing touches it again
  kRerun,  // its op runs again: the next life
  kMoves,  // all of it is moved, and comes back as the next life
  kStays,  // state: it must outlive the step
};

struct Life {
  int32_t value = -1;      // -1: workspace
  int32_t position = -1;   // of the op whose workspace it is
  Bytes bytes = 0;
  Bytes offset = -1;       // -1: none yet
  std::vector<int32_t> touches;  // slots, ascending
  LifeEnd end = LifeEnd::kDead;
  bool reborn = false;     // begins with its op running again
  SlotSet touched;
  // Idle slots: [i] between touches i and i + 1; the last one up to the exit (kStays) or to the next
  // life (kMoves). Empty where touches are neighbours.
  std::vector<SlotSet> gaps;
  std::vector<bool> open;  // the gap is not empty
  // Slots in which its copy is on its way, when links are idle: out after the last touch (kMoves), back
  // before the first (the life before it kMoves).
  SlotSet leaving, coming;
};

// Whether steps like this are planned in addresses: short, not cyclic, one other tier that takes
// stores, no weights in files, gathered rows, constants, or rules.
bool can_plan_in_addresses(const Problem& problem);

// The lives of a state, those of one value in order, without offsets. Empty when an op of several
// outputs runs again.
std::vector<Life> lives_of(const State& state);

struct AddressTimeline {
  Nanos total_ns = 0;
  Nanos transfer_ns = 0;         // of all transfers
  std::vector<int32_t> stalls;   // slots that waited
};

// When everything is listed, and what the step takes then. Parts are split to at most `chunk` bytes
// (0: not). Links are queues filled just in time: stores by the first slot that needs their bytes,
// loads by their use, each once no op needs its bytes any more before that. Precondition: all lives
// have offsets, and no two that share bytes are touched in one slot. `schedule` may be null.
AddressTimeline schedule_in_addresses(const State& state, const std::vector<Life>& lives, Bytes chunk,
                                      Schedule* schedule);

// What assign_extents() is given.
std::vector<Extent> extents_of(const std::vector<Life>& lives);

}  // namespace headrace::plan
