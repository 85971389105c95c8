// MeasuredTimes: how long a step of so many rows takes on this machine as it is now: the plan's
// prediction, corrected by the steps that were measured.
//
// Vocabulary
//   pace   measured / predicted, common to all steps: how fast the machine is at the moment
//   shape  what is left of that at one of the plan's points (1, 2, 4 ... rows): how wrong the
//          prediction is about it
// Both are logarithms, with how sure each of them is, and each pair together: a Kalman filter (R.
// E. Kalman, 1960) of which every step is a measurement. Pace changes by itself about ten times as
// fast as shape, and shapes of neighbours are alike. So a step of a size that is known says that
// the machine has changed, for all sizes; one of a size that is not says what that size costs,
// and that its neighbours may be so too. Where both have changed only a step of the other size can
// tell: stale() asks for one.
//
// Promises
//   1. The same steps give the same times: no clock is read.
//   2. Times never fall as rows grow.
//   3. One odd step, however long, makes a time that is well known longer by a third at most.
// Not thread-safe.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "headrace/session/batch_plan.h"

namespace headrace {

class MeasuredTimes {
 public:
  // Precondition: the plan has predicted times.
  explicit MeasuredTimes(const BatchPlan& plan);
  // A step of `rows` rows took so long; both at least 1.
  void add(int64_t rows, Nanos ns);
  // Between points, on a line, as step_time(). At least 1.
  Nanos at(int64_t rows) const { return step_time(now_, rows); }
  // No step near `rows` was among the last 16.
  bool stale(int64_t rows) const;

 private:
  // The points on both sides of `rows`, and how near they are: adds up to 1.
  struct Side {
    size_t point;
    double share;
  };
  std::array<Side, 2> sides(int64_t rows) const;
  double ns_of(size_t point) const;
  double& sure(size_t i, size_t j) { return covariance_[i * state_.size() + j]; }
  void forget();
  void refresh();

  const std::vector<StepTime> predicted_;
  std::vector<int64_t> last_;  // of each point: the step that was near it
  int64_t steps_ = 0;
  std::vector<double> state_;       // [1 + points]: pace, shapes
  std::vector<double> covariance_;  // [1 + points, 1 + points]
  std::vector<StepTime> now_;
};

}  // namespace headrace
