// RateMonitor: is the link as fast as the plan thought? Fed with every steady decode step.
//
// Only a step that spent half of its time or more waiting for transfers says how fast the link is:
// there the link was busy nearly all the time, and bytes / time is its rate. A rate that leaves the
// planned one by 20 % for 8 such steps in a row is reported once, as the median of the eight.
#pragma once

#include <array>
#include <optional>

#include "headrace/base/types.h"

namespace headrace {

class RateMonitor {
 public:
  explicit RateMonitor(double planned_bytes_per_s) : planned_(planned_bytes_per_s) {}

  // One step: bytes loaded, its duration, and how long compute stood still. The new rate in bytes
  // a second when it is time to plan again; planned() is that rate from then on.
  std::optional<double> add(Bytes loaded, Nanos step_ns, Nanos wait_ns);
  double planned() const { return planned_; }

 private:
  static constexpr int kSteps = 8;
  double planned_;
  std::array<double, kSteps> rates_{};
  int count_ = 0;
};

}  // namespace headrace
