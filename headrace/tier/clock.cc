#include "headrace/tier/clock.h"

#include <time.h>

#include <cerrno>

namespace headrace {
namespace {

// Below this a timer would overshoot more than it waits.
constexpr Nanos kSpin = 60'000;
constexpr Nanos kSecond = 1'000'000'000;

class RealClock final : public Clock {
 public:
  Nanos now() override {
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * kSecond + t.tv_nsec;
  }
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
