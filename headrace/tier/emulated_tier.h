// Emulated tier: any tier behind a link of a set bandwidth and latency. With a host tier
// inside it stands for a slower memory, with a file tier inside for a slower disk; the
// emulated device of every test configuration is one of these.
//
// The model: a link carries one transfer at a time, in the order of submission, at the rate
// of its direction; a transfer is complete `latency_ns` after its last byte left, and
// latencies overlap. A duplex link carries loads and stores independently, a shared one
// does not. Tiers that are given the same EmulatedLink share it.
//
// A transfer is done when its bytes have been copied *and* the clock has passed its
// modelled end; the inner tier must be faster than the model for the model to be exact.
#pragma once

#include <memory>

#include "headrace/base/status.h"
#include "headrace/base/types.h"
#include "headrace/tier/clock.h"
#include "headrace/tier/tier.h"

namespace headrace {

struct LinkModel {
  double bytes_per_s = 1e9;      // of loads; > 0
  Nanos latency_ns = 0;          // >= 0
  bool duplex = true;
  double store_bytes_per_s = 0;  // 0: as loads
};

class EmulatedLink {
 public:
  // `clock` must outlive the link.
  explicit EmulatedLink(const LinkModel& model, Clock& clock = real_clock())
      : model_(model), clock_(&clock) {}
  // Books a transfer that starts now or when the link is free; returns when it completes.
  Nanos book(Bytes bytes, bool store);
  const LinkModel& model() const { return model_; }
  Clock& clock() const { return *clock_; }

 private:
  LinkModel model_;
  Clock* clock_;
  Nanos free_at_[2] = {0, 0};  // loads, stores; a shared link uses the first alone
};

// Puts `inner` behind `link`. `max_tickets`: unwaited transfers, see TicketTable. kUsage
// when a rate of the model is no bandwidth or its latency is negative, or max_tickets is below 1.
Result<std::unique_ptr<Tier>> open_emulated_tier(std::unique_ptr<Tier> inner,
                                                 std::shared_ptr<EmulatedLink> link,
                                                 int max_tickets = 256);

}  // namespace headrace
