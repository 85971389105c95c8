// Clock: where a tier takes the time from, so that tests need no wall time.
#pragma once

#include "headrace/base/types.h"

namespace headrace {

class Clock {
 public:
  virtual ~Clock() = default;
  virtual Nanos now() = 0;
  // Returns at `time` or later; at once when it has passed.
  virtual void sleep_until(Nanos time) = 0;
};

// CLOCK_MONOTONIC. Sleeping may overshoot by the timer slack (about 60 us); waits shorter
// than that are spun. Thread-safe; lives for ever.
Clock& real_clock();

// Stands still until told. sleep_until() moves it: a sleeper is alone. Not thread-safe.
class ManualClock final : public Clock {
 public:
  Nanos now() override { return now_; }
  void sleep_until(Nanos time) override {
    if (time > now_) now_ = time;
  }
  void advance(Nanos by) { now_ += by; }

 private:
  Nanos now_ = 0;
};

}  // namespace headrace
