#include "headrace/model/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace headrace {
namespace {

constexpr double kTwoPi = 2 * std::numbers::pi;

Status check(const RopeConfig& rope, int64_t head_dim) {
  HR_CHECK(head_dim > 0 && head_dim % 2 == 0, "rope rotates pairs");
  if (!(rope.base > 1) || !std::isfinite(rope.base)) {
    return error(Code::kBadFile, "the rope base is %g, not above 1", rope.base);
  }
  if (!(rope.factor > 0) || !std::isfinite(rope.factor)) {
    return error(Code::kBadFile, "the rope scaling factor is %g, not above 0",
                 rope.factor);
  }
  const bool banded =
      rope.scaling == RopeScaling::kLlama3 || rope.scaling == RopeScaling::kYarn;
  if (banded && !(rope.original_context > 0)) {
    return error(Code::kBadFile, "%s rope scaling without the original context length",
                 name_of(rope.scaling));
  }
  if (rope.scaling == RopeScaling::kLlama3 &&
      !(rope.low_freq_factor > 0 && rope.high_freq_factor > rope.low_freq_factor)) {
    return error(Code::kBadFile, "llama3 rope scaling from factor %g to %g",
                 rope.low_freq_factor, rope.high_freq_factor);
  }
  if (rope.scaling == RopeScaling::kYarn &&
      !(rope.beta_slow > 0 && rope.beta_fast >= rope.beta_slow)) {
    return error(Code::kBadFile, "yarn rope scaling from beta %g to %g", rope.beta_slow,
                 rope.beta_fast);
  }
  if (!rope.divisors.empty() &&
      rope.divisors.size() != static_cast<size_t>(head_dim / 2)) {
    return error(Code::kBadFile, "%zu rope divisors for %lld pairs", rope.divisors.size(),
                 static_cast<long long>(head_dim / 2));
  }
  for (const float divisor : rope.divisors) {
    if (!(divisor > 0) || !std::isfinite(divisor)) {
      return error(Code::kBadFile, "a rope divisor is %g, not above 0", divisor);
    }
  }
  return {};
}

// Llama 3.1: wavelengths shorter than original / high are kept, those longer than
// original / low are divided by the factor, between them the two are blended.
double llama3(const RopeConfig& rope, double frequency) {
  const double turns =
      rope.original_context * frequency / kTwoPi;  // context / wavelength
  if (turns > rope.high_freq_factor) return frequency;
  if (turns < rope.low_freq_factor) return frequency / rope.factor;
  const double blend =
      (turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor);
  return (1 - blend) * frequency / rope.factor + blend * frequency;
}

// YaRN: the pair (a real number) that makes `turns` rotations within the original
// context.
double yarn_pair(const RopeConfig& rope, int64_t head_dim, double turns) {
  return static_cast<double>(head_dim) *
         std::log(rope.original_context / (turns * kTwoPi)) / (2 * std::log(rope.base));
}

double yarn(const RopeConfig& rope, int64_t head_dim, int64_t pair, double frequency) {
  const double low = std::max(std::floor(yarn_pair(rope, head_dim, rope.beta_fast)), 0.0);
  double high = std::min(std::ceil(yarn_pair(rope, head_dim, rope.beta_slow)),
                         static_cast<double>(head_dim - 1));
  if (high <= low) high = low + 0.001;
  const double ramp =
      std::clamp((static_cast<double>(pair) - low) / (high - low), 0.0, 1.0);
  return frequency / rope.factor * ramp + frequency * (1 - ramp);
}

}  // namespace

const char* name_of(RopeScaling scaling) {
  switch (scaling) {
    case RopeScaling::kNone: return "none";
    case RopeScaling::kLinear: return "linear";
    case RopeScaling::kLlama3: return "llama3";
    case RopeScaling::kYarn: return "yarn";
  }
  return "?";
}

Result<std::vector<float>> inverse_frequencies(const RopeConfig& rope, int64_t head_dim) {
  HR_TRY(check(rope, head_dim));
  std::vector<float> out;
  for (int64_t pair = 0; pair < head_dim / 2; ++pair) {
    double frequency = std::pow(
        rope.base, -2 * static_cast<double>(pair) / static_cast<double>(head_dim));
    switch (rope.scaling) {
      case RopeScaling::kNone: break;
      case RopeScaling::kLinear: frequency /= rope.factor; break;
      case RopeScaling::kLlama3: frequency = llama3(rope, frequency); break;
      case RopeScaling::kYarn: frequency = yarn(rope, head_dim, pair, frequency); break;
    }
    if (!rope.divisors.empty()) frequency /= rope.divisors[static_cast<size_t>(pair)];
    out.push_back(static_cast<float>(frequency));
  }
  return out;
}

double rope_mscale(const RopeConfig& rope) {
  if (rope.scaling != RopeScaling::kYarn) return 1;
  if (rope.attention_factor > 0) return rope.attention_factor;
  return rope.factor <= 1 ? 1 : 0.1 * std::log(rope.factor) + 1;
}

}  // namespace headrace
