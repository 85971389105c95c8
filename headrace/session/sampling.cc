#include "headrace/session/sampling.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace headrace {
namespace {

// PCG32's default stream.
constexpr uint64_t kIncrement = 1442695040888963407ull;
constexpr float kBanned = -std::numeric_limits<float>::infinity();

size_t argmax(std::span<const float> logits) {
  size_t best = 0;
  for (size_t i = 1; i < logits.size(); ++i) {
    if (logits[i] > logits[best]) best = i;
  }
  return best;
}

Status check_bias(const std::vector<LogitBias>& biases, int64_t vocab) {
  for (size_t i = 0; i < biases.size(); ++i) {
    const auto [token, bias] = biases[i];
    if (token < 0 || token >= vocab) {
      return error(Code::kUsage, "logit-bias: token %d is not in the vocabulary of %lld tokens",
                   token, static_cast<long long>(vocab));
    }
    if (i > 0 && token <= biases[i - 1].token) {
      return error(Code::kUsage, "logit-bias: token %d is not in ascending order", token);
    }
    if (!(bias >= -100 && bias <= 100)) {
      return error(Code::kUsage, "logit-bias: of token %d must be in [-100, 100]", token);
    }
  }
  return {};
}

}  // namespace

Status check(const SamplingOptions& o, int64_t vocab) {
  if (!(o.temperature >= 0)) return error(Code::kUsage, "temperature must be 0 or more");
  if (o.top_k < 0) return error(Code::kUsage, "top-k must be 0 (all) or more");
  if (!(o.top_p > 0 && o.top_p <= 1)) return error(Code::kUsage, "top-p must be in (0, 1]");
  if (!(o.min_p >= 0 && o.min_p <= 1)) return error(Code::kUsage, "min-p must be in [0, 1]");
  if (!(o.repeat_penalty > 0)) return error(Code::kUsage, "repeat-penalty must be above 0");
  if (o.repeat_last < 0) return error(Code::kUsage, "repeat-last must be 0 or more");
  if (!(o.presence_penalty >= -2 && o.presence_penalty <= 2)) {
    return error(Code::kUsage, "presence-penalty must be in [-2, 2]");
  }
  if (!(o.frequency_penalty >= -2 && o.frequency_penalty <= 2)) {
    return error(Code::kUsage, "frequency-penalty must be in [-2, 2]");
  }
  return check_bias(o.logit_bias, vocab);
}

SamplerScratch::SamplerScratch(int64_t vocab) {
  static_assert(sizeof(Candidate) + sizeof(double) == kBytesPerToken);
  candidates_.reserve(static_cast<size_t>(vocab));
  weights_.reserve(static_cast<size_t>(vocab));
}

Sampler::Sampler(SamplingOptions options, int64_t vocab) : Sampler(std::move(options), nullptr) {
  if (options_.greedy()) return;
  own_ = std::make_unique<SamplerScratch>(vocab);
  scratch_ = own_.get();
}

Sampler::Sampler(SamplingOptions options, SamplerScratch* scratch)
    : options_(std::move(options)), state_(options_.seed + kIncrement), scratch_(scratch) {
  next_random();
}

uint32_t Sampler::next_random() {
  const uint64_t old = state_;
  state_ = old * 6364136223846793005ull + kIncrement;
  const uint32_t mixed = static_cast<uint32_t>(((old >> 18) ^ old) >> 27);
  const uint32_t turn = static_cast<uint32_t>(old >> 59);
  return (mixed >> turn) | (mixed << ((32 - turn) & 31));
}

void Sampler::fill(std::span<const float> logits) {
  std::vector<Candidate>& candidates = scratch_->candidates_;
  candidates.clear();
  for (size_t i = 0; i < logits.size(); ++i) {
    candidates.push_back({logits[i], static_cast<int32_t>(i)});
  }
}

void Sampler::penalise_repeats(std::span<const int32_t> recent) {
  const float penalty = static_cast<float>(options_.repeat_penalty);
  for (size_t i = 0; i < recent.size(); ++i) {
    // Each token is penalised once, however often it appears.
    if (std::find(recent.begin(), recent.begin() + static_cast<std::ptrdiff_t>(i), recent[i]) !=
        recent.begin() + static_cast<std::ptrdiff_t>(i)) {
      continue;
    }
    float& logit = scratch_->candidates_[static_cast<size_t>(recent[i])].logit;
    logit = logit > 0 ? logit / penalty : logit * penalty;
  }
}

void Sampler::penalise_generated(std::span<const int32_t> generated) {
  if (options_.presence_penalty == 0 && options_.frequency_penalty == 0) return;
  std::vector<double>& counts = scratch_->weights_;  // not in use before the draw
  counts.assign(scratch_->candidates_.size(), 0);
  for (const int32_t token : generated) ++counts[static_cast<size_t>(token)];
  for (const int32_t token : generated) {
    double& count = counts[static_cast<size_t>(token)];
    if (count == 0) continue;  // done
    float& logit = scratch_->candidates_[static_cast<size_t>(token)].logit;
    logit = static_cast<float>(logit - options_.presence_penalty -
                               options_.frequency_penalty * count);
    count = 0;
  }
}

void Sampler::add_bias() {
  for (const auto [token, bias] : options_.logit_bias) {
    HR_CHECK(static_cast<size_t>(token) < scratch_->candidates_.size(),
             "a bias beyond the vocabulary");
    float& logit = scratch_->candidates_[static_cast<size_t>(token)].logit;
    logit = bias <= -100 ? kBanned : logit + bias;
  }
}

// The k largest, in descending order, ties by id.
void Sampler::keep_top_k(size_t k) {
  std::vector<Candidate>& candidates = scratch_->candidates_;
  const auto before = [](const Candidate& a, const Candidate& b) {
    return a.logit != b.logit ? a.logit > b.logit : a.id < b.id;
  };
  const auto end = candidates.begin() + static_cast<std::ptrdiff_t>(k);
  std::partial_sort(candidates.begin(), end, candidates.end(), before);
  candidates.resize(k);
}

int32_t Sampler::draw() {
  const std::vector<Candidate>& candidates = scratch_->candidates_;
  std::vector<double>& weights = scratch_->weights_;
  const uint32_t random = next_random();
  if (candidates[0].logit == kBanned) return candidates[0].id;  // all are
  weights.clear();
  double sum = 0;
  for (const Candidate& c : candidates) {
    weights.push_back(
        std::exp(static_cast<double>(c.logit - candidates[0].logit) / options_.temperature));
    sum += weights.back();
  }
  // top-p: the shortest head that holds that share; min-p: a share of the best one's weight.
  double kept = 0;
  size_t count = 0;
  while (count < weights.size()) {
    if (count > 0 && (kept >= options_.top_p * sum || weights[count] < options_.min_p)) break;
    kept += weights[count++];
  }
  double at = random / 4294967296.0 * kept;
  for (size_t i = 0; i < count; ++i) {
    at -= weights[i];
    if (at < 0) return candidates[i].id;
  }
  return candidates[count - 1].id;
}

int32_t Sampler::sample(std::span<const float> logits, std::span<const int32_t> history,
                        size_t generated) {
  if (options_.greedy()) return static_cast<int32_t>(argmax(logits));
  fill(logits);
  const size_t last = std::min(history.size(), static_cast<size_t>(options_.repeat_last));
  penalise_repeats(history.last(last));
  penalise_generated(history.last(generated));
  add_bias();
  size_t k = scratch_->candidates_.size();
  if (options_.temperature == 0) k = 1;
  if (options_.top_k > 0) k = std::min(k, static_cast<size_t>(options_.top_k));
  keep_top_k(k);
  return options_.temperature == 0 ? scratch_->candidates_[0].id : draw();
}

double log_softmax(std::span<const float> logits, int32_t token, int most,
                   std::vector<Logprob>* alternatives) {
  const double top = logits[argmax(logits)];
  double sum = 0;
  for (const float logit : logits) sum += std::exp(logit - top);
  const double log_sum = top + std::log(sum);
  if (alternatives != nullptr) alternatives->clear();
  const size_t room = std::min(static_cast<size_t>(std::max(most, 0)), logits.size());
  if (room > 0) {
    std::vector<Logprob>& best = *alternatives;
    best.reserve(room);
    for (size_t i = 0; i < logits.size(); ++i) {
      const double value = logits[i];
      if (best.size() == room && value <= best.back().value) continue;
      if (best.size() == room) best.pop_back();
      const auto at = std::upper_bound(best.begin(), best.end(), value,
                                       [](double v, const Logprob& b) { return v > b.value; });
      best.insert(at, {static_cast<int32_t>(i), value});
    }
    for (Logprob& b : best) b.value -= log_sum;
  }
  return logits[static_cast<size_t>(token)] - log_sum;
}

}  // namespace headrace
