// Construction: a state that fits, by committing ways at the position that is most over budget, the
// least added seconds per useful byte first. Internal to placement.
#pragma once

#include "headrace/plan/placement_state.h"

namespace headrace::plan {

// Where a state cannot be made to fit; position -1: it does.
struct Unfit {
  int32_t position = -1;
  Bytes bytes = 0;
};

// The state with what the rules ask for: gaps that must be remote are moved. kUsage when a rule cannot
// be obeyed.
Result<State> ruled_state(const Problem& problem, const PlaceOptions& options);

// Makes `state` fit. `price`: seconds asked for each second of transfer (see placement.h).
Unfit build(State& state, double price);

}  // namespace headrace::plan
