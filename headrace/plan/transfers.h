// The pass `transfers`: when each Store, Drop and Load of a state is listed, and what the step takes
// then. Internal to placement.
//
// Vocabulary
//   piece     a run of bytes of one value in one gap that is moved by itself: stored (unless a valid
//             copy is in its tier), dropped, loaded back (unless nothing touches it again).
//   pending   bytes that are to be dropped once their store has ended.
//   encoded   a piece may be all of a value's encoded form: made before the first position of the gap,
//             which its bytes are planned for, and pending from the second; decoded before the use.
//
// Method. Time walks from position to position as the simulator does (sim/simulate.h). Links are
// queues, filled just in time, so that each choice of the next transfer is made as late as possible:
// stores by the first position that needs their bytes, loads by their deadline (EDF), each as early as
// the bytes planned up to its use leave room for it. An op waits for its loads, and for as many pending
// stores as its bytes need. Every state that fits has a schedule: at worst all stores are waited for.
#pragma once

#include <vector>

#include "headrace/plan/placement_state.h"

namespace headrace::plan {

struct Piece {
  int32_t value = 0;
  int32_t gap = 0;
  Range range;             // of the value, or of its encoded form
  Codec codec = Codec::kNone;  // kNone: of the value
  Bytes bytes = 0;         // device bytes
  int32_t release = 0;     // the store may be listed before this position
  int32_t after = -1;      // the touch before the gap: may be dropped before after + 1
  bool passes = false;     // may be dropped before `after`, once what runs again there has read it
  int32_t use = 0;         // the touch after it: loaded before it; in the next cycle when `wraps`
  int32_t need = 0;        // first position that is over budget when nothing moves
  int32_t stored_by = -1;  // index of the piece whose store made the copy; -1: there at entry
  TierId tier;
  int32_t out = -1, in = -1;  // streams; -1: no store of its own, no load
  Nanos out_ns = 0, in_ns = 0, latency_ns = 0;
  int32_t priority = 0;    // of the load, from the rules
  bool wraps = false;
};

// Where a piece was listed; -1: never (its store had not ended when the value was needed again).
struct Listed {
  int32_t store = -1, drop = -1, load = -1;
  // Among all transfers of the schedule: those listed before one position join their queues in order.
  int32_t store_turn = -1, load_turn = -1;
};

struct Stall {
  int32_t position = 0;
  Nanos loads_ns = 0;   // waited for loads
  Nanos stores_ns = 0;  // waited for bytes
};

struct Timeline {
  Nanos total_ns = 0;
  std::vector<Listed> listed;  // by piece
  std::vector<Stall> stalls;   // ascending positions
  std::vector<Nanos> begin_ns; // by position
  // By piece: when its load has ended, and its store.
  std::vector<Nanos> loaded_ns, stored_ns;
};

// The pieces of `state`, in the order of values; none larger than `chunk` bytes (0: no limit).
std::vector<Piece> pieces_of(const State& state, Bytes chunk);

// Precondition: state.fits(). Deterministic; O((positions + pieces) log) time. `not_before`: by piece,
// the time before which its load is not issued unless its use is next; empty: as early as possible.
Timeline schedule_transfers(const State& state, const std::vector<Piece>& pieces,
                            const std::vector<Nanos>& not_before = {});

// For a second schedule of the same pieces: when each load must start for its use, and those after it
// on its link, to come no later than in `timeline`; less a lead of kLeadOps ops and kLeadShare of the
// copy time. Bytes that come back no earlier than that leave room for the offsets of others.
std::vector<Nanos> late_starts(const State& state, const std::vector<Piece>& pieces,
                               const Timeline& timeline);

}  // namespace headrace::plan
