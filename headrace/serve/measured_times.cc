#include "headrace/serve/measured_times.h"

#include <algorithm>
#include <cmath>

#include "headrace/base/status.h"

namespace headrace {
namespace {

// Of logarithms: steps of one size differ by 10 %; before anything is measured the machine may be
// seven times as fast as its plan, or as slow, and a point twice as dear as the others.
constexpr double kNoise = 0.01, kPace = 4, kShape = 0.5;
constexpr double kAlike = 0.8;    // correlation of neighbours
constexpr double kForget = 0.002;  // of what is known, each step
constexpr double kOdd = 2;        // standard deviations; what is beyond counts no more
constexpr int64_t kFresh = 16;    // steps
constexpr int64_t kNever = -1000;

// Covariance of what nothing is known of.
double unsure(size_t i, size_t j) {
  if (i == 0 || j == 0) return i == j ? kPace : 0;
  return kShape * std::pow(kAlike, std::abs(static_cast<double>(i) - static_cast<double>(j)));
}

}  // namespace

MeasuredTimes::MeasuredTimes(const BatchPlan& plan)
    : predicted_(plan.times), last_(predicted_.size(), kNever), state_(1 + predicted_.size()),
      covariance_(state_.size() * state_.size()), now_(plan.times) {
  HR_CHECK(!predicted_.empty() && predicted_[0].ns > 0, "a plan has predicted times");
  for (size_t i = 0; i < state_.size(); ++i)
    for (size_t j = 0; j < state_.size(); ++j) sure(i, j) = unsure(i, j);
}

std::array<MeasuredTimes::Side, 2> MeasuredTimes::sides(int64_t rows) const {
  size_t right = 0;
  while (right + 1 < predicted_.size() && predicted_[right].rows < rows) ++right;
  const size_t left = right == 0 || predicted_[right].rows <= rows ? right : right - 1;
  if (left == right) return {{{right, 1}, {right, 0}}};
  const double share = static_cast<double>(rows - predicted_[left].rows) /
                       static_cast<double>(predicted_[right].rows - predicted_[left].rows);
  return {{{left, 1 - share}, {right, share}}};
}

double MeasuredTimes::ns_of(size_t point) const {
  return static_cast<double>(predicted_[point].ns) * std::exp(state_[0] + state_[1 + point]);
}

bool MeasuredTimes::stale(int64_t rows) const {
  const auto near = sides(rows);
  return std::all_of(near.begin(), near.end(), [this](const Side& s) {
    return s.share == 0 || steps_ - last_[s.point] > kFresh;
  });
}

// Towards knowing nothing; what is believed stays.
void MeasuredTimes::forget() {
  for (size_t i = 0; i < state_.size(); ++i)
    for (size_t j = 0; j < state_.size(); ++j)
      sure(i, j) += kForget * (unsure(i, j) - sure(i, j));
}

void MeasuredTimes::add(int64_t rows, Nanos ns) {
  ++steps_;
  forget();
  const size_t n = state_.size();
  double expected = 0;
  for (const Side& s : sides(rows)) expected += s.share * ns_of(s.point);
  // How the logarithm of the time follows the state.
  std::vector<double> slope(n), gain(n);
  slope[0] = 1;
  for (const Side& s : sides(rows)) {
    slope[1 + s.point] += s.share * ns_of(s.point) / expected;
    if (s.share > 0) last_[s.point] = steps_;
  }
  double variance = kNoise;
  for (size_t i = 0; i < n; ++i) {
    for (size_t j = 0; j < n; ++j) gain[i] += sure(i, j) * slope[j];
    variance += slope[i] * gain[i];
  }
  const double most = kOdd * std::sqrt(variance);
  const double error =
      std::clamp(std::log(static_cast<double>(std::max<Nanos>(1, ns)) / expected), -most, most);
  for (size_t i = 0; i < n; ++i) state_[i] += gain[i] / variance * error;
  for (size_t i = 0; i < n; ++i)
    for (size_t j = 0; j < n; ++j) sure(i, j) -= gain[i] * gain[j] / variance;
  refresh();
}

void MeasuredTimes::refresh() {
  double least = 1;
  for (size_t i = 0; i < now_.size(); ++i) {
    least = std::max(least, ns_of(i));
    now_[i].ns = static_cast<Nanos>(least);
  }
}

}  // namespace headrace
