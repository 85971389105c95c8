#include "headrace/session/rate_monitor.h"

#include <algorithm>
#include <cmath>

namespace headrace {

std::optional<double> RateMonitor::add(Bytes loaded, Nanos step_ns, Nanos wait_ns) {
  constexpr double kLeaves = 0.20;    // of the planned rate
  constexpr double kLinkBound = 0.5; // of the step spent waiting
  if (loaded == 0 || static_cast<double>(wait_ns) < kLinkBound * static_cast<double>(step_ns)) {
    count_ = 0;
    return std::nullopt;
  }
  const double rate = static_cast<double>(loaded) * 1e9 / static_cast<double>(step_ns);
  if (std::abs(rate / planned_ - 1) <= kLeaves) {
    count_ = 0;
    return std::nullopt;
  }
  rates_[static_cast<size_t>(count_++)] = rate;
  if (count_ < kSteps) return std::nullopt;
  count_ = 0;
  std::sort(rates_.begin(), rates_.end());
  planned_ = (rates_[kSteps / 2 - 1] + rates_[kSteps / 2]) / 2;
  return planned_;
}

}  // namespace headrace
