#include "headrace/tier/clock.h"

#include <time.h>

#include <cerrno>

#include "headrace/base/system.h"

namespace headrace {
namespace {

// Below this a timer would overshoot more than it waits.
constexpr Nanos kSpin = 60'000;
constexpr Nanos kSecond = 1'000'000'000;

class RealClock final : public Clock {
 public:
  Nanos now() override { return monotonic_ns(); }
  void sleep_until(Nanos time) override {
    const Nanos early = time - kSpin;
    if (now() < early) {
      const timespec t = {early / kSecond, early % kSecond};
      while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, nullptr) == EINTR) {
      }
    }
    while (now() < time) {
    }
  }
};

}  // namespace

Clock& real_clock() {
  static RealClock clock;
  return clock;
}

}  // namespace headrace
