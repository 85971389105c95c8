// Fault tier: any tier, made to misbehave on purpose. For tests of whoever uses tiers.
//
// A transfer is held back: load() fills the destination with 0xFF (a NaN in every float
// format), store() reads nothing yet, and the inner transfer starts only when enough
// polls have passed or the ticket is waited for. So a consumer that uses a load before
// waiting sees poison, and one that changes the source of a store before waiting stores
// the wrong bytes: both are visible, always, where real hardware shows them once in a
// thousand runs.
#pragma once

#include <cstdint>
#include <memory>

#include "headrace/base/status.h"
#include "headrace/tier/tier.h"

namespace headrace {

struct FaultPlan {
  // The transfer (1: the first, loads and stores counted together) that fails; 0: none.
  int64_t fail_at = 0;
  // All transfers from fail_at on fail: the disk is gone.
  bool fail_for_ever = false;
  int error_number = 5;         // EIO
  bool fail_at_submit = false;  // load()/store() itself fails, not wait()
  // Calls of poll() or done() that pass before the inner transfer starts.
  int delay_polls = 0;
  // Adds 0 to this many polls to each delay, and lets wait() start younger transfers
  // first: completions come in another order than submissions. Repeatable by `seed`.
  int reorder_polls = 0;
  uint64_t seed = 1;
  bool poison = true;
  int max_tickets = 256;
};

// Puts `plan` before `inner`. Requests that the inner tier refuses are refused by wait().
std::unique_ptr<Tier> make_fault_tier(std::unique_ptr<Tier> inner, const FaultPlan& plan);

}  // namespace headrace
