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

struct BuildOptions {
  double price = 0;       // seconds asked for each second of transfer (see placement.h)
  // Ways are judged as up to this share worse than they are, at random by `seed`: for local search.
  double noise = 0;
  uint64_t seed = 0;
  // A way that is not to be taken for the gap of a value that ends at a position.
  int32_t banned_value = -1;
  int32_t banned_before = -1;
  Way banned_way = Way::kKeep;
};

// Makes `state` fit, from what it is: what it keeps may be moved or run again, the rest stays.
Unfit build(State& state, const BuildOptions& options);

}  // namespace headrace::plan
