#include "headrace/session/sampling.h"

#include <algorithm>
#include <cmath>

namespace headrace {
namespace {

// PCG32's default stream.
constexpr uint64_t kIncrement = 1442695040888963407ull;

int32_t argmax(std::span<const float> logits) {
  size_t best = 0;
  for (size_t i = 1; i < logits.size(); ++i) {
    if (logits[i] > logits[best]) best = i;
  }
  return static_cast<int32_t>(best);
}

}  // namespace

Status check(const SamplingOptions& o) {
  if (!(o.temperature >= 0)) return error(Code::kUsage, "temperature must be 0 or more");
  if (o.top_k < 0) return error(Code::kUsage, "top-k must be 0 (all) or more");
  if (!(o.top_p > 0 && o.top_p <= 1)) return error(Code::kUsage, "top-p must be in (0, 1]");
  if (!(o.min_p >= 0 && o.min_p <= 1)) return error(Code::kUsage, "min-p must be in [0, 1]");
  if (!(o.repeat_penalty > 0)) return error(Code::kUsage, "repeat-penalty must be above 0");
  if (o.repeat_last < 0) return error(Code::kUsage, "repeat-last must be 0 or more");
  return {};
}

Sampler::Sampler(const SamplingOptions& options, int64_t vocab)
    : options_(options), state_(options.seed + kIncrement) {
  next_random();
  const bool greedy = options.temperature == 0 && options.repeat_penalty == 1;
  if (greedy) return;
  candidates_.reserve(static_cast<size_t>(vocab));
  weights_.reserve(static_cast<size_t>(vocab));
}

uint32_t Sampler::next_random() {
  const uint64_t old = state_;
  state_ = old * 6364136223846793005ull + kIncrement;
  const uint32_t mixed = static_cast<uint32_t>(((old >> 18) ^ old) >> 27);
  const uint32_t turn = static_cast<uint32_t>(old >> 59);
  return (mixed >> turn) | (mixed << ((32 - turn) & 31));
}

// The k largest, in descending order, ties by id.
void Sampler::keep_top_k(size_t k) {
  const auto before = [](const Candidate& a, const Candidate& b) {
    return a.logit != b.logit ? a.logit > b.logit : a.id < b.id;
  };
  const auto end = candidates_.begin() + static_cast<std::ptrdiff_t>(k);
  std::partial_sort(candidates_.begin(), end, candidates_.end(), before);
  candidates_.resize(k);
}

int32_t Sampler::draw() {
  weights_.clear();
  double sum = 0;
  for (const Candidate& c : candidates_) {
    weights_.push_back(
        std::exp(static_cast<double>(c.logit - candidates_[0].logit) / options_.temperature));
    sum += weights_.back();
  }
  // top-p: the shortest head that holds that share; min-p: a share of the best one's weight.
  double kept = 0;
  size_t count = 0;
  while (count < weights_.size()) {
    if (count > 0 && (kept >= options_.top_p * sum || weights_[count] < options_.min_p)) break;
    kept += weights_[count++];
  }
  double at = next_random() / 4294967296.0 * kept;
  for (size_t i = 0; i < count; ++i) {
    at -= weights_[i];
    if (at < 0) return candidates_[i].id;
  }
  return candidates_[count - 1].id;
}

int32_t Sampler::sample(std::span<const float> logits, std::span<const int32_t> history) {
  if (options_.temperature == 0 && options_.repeat_penalty == 1) return argmax(logits);
  candidates_.clear();
  for (size_t i = 0; i < logits.size(); ++i) {
    candidates_.push_back({logits[i], static_cast<int32_t>(i)});
  }
  const size_t last = std::min(history.size(), static_cast<size_t>(options_.repeat_last));
  const std::span<const int32_t> recent = history.last(last);
  for (size_t i = 0; i < recent.size(); ++i) {
    // Each token is penalised once, however often it appears.
    if (std::find(recent.begin(), recent.begin() + static_cast<std::ptrdiff_t>(i), recent[i]) !=
        recent.begin() + static_cast<std::ptrdiff_t>(i)) {
      continue;
    }
    float& logit = candidates_[static_cast<size_t>(recent[i])].logit;
    const float penalty = static_cast<float>(options_.repeat_penalty);
    logit = logit > 0 ? logit / penalty : logit * penalty;
  }
  size_t k = candidates_.size();
  if (options_.temperature == 0) k = 1;
  if (options_.top_k > 0) k = std::min(k, static_cast<size_t>(options_.top_k));
  keep_top_k(k);
  return options_.temperature == 0 ? candidates_[0].id : draw();
}

}  // namespace headrace
