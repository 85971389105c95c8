#include "headrace/session/sampling.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "headrace/kernel/row_ops.h"

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

// Sum of e^exponent(i), i < count, to 2 ulp of f32 each.
template <typename Exponent>
double sum_exp(size_t count, Exponent exponent) {
  float some[1024];
  double sum = 0;
  for (size_t i = 0; i < count; i += std::size(some)) {
    const size_t n = std::min(std::size(some), count - i);
    for (size_t j = 0; j < n; ++j) some[j] = static_cast<float>(exponent(i + j));
    sum += row_ops().sum_exp(some, static_cast<int64_t>(n));
  }
  return sum;
}

// Of candidates in the order of ids (or descending): the first of the largest.
constexpr auto kLargest = [](const auto& candidates) {
  auto best = candidates.front();
  for (const auto& c : candidates) {
    if (c.logit > best.logit) best = c;
  }
  return best;
};

constexpr auto kBefore = [](const auto& a, const auto& b) {
  return a.logit != b.logit ? a.logit > b.logit : a.id < b.id;
};

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
  if (!(o.top_p >= 0 && o.top_p <= 1)) return error(Code::kUsage, "top-p must be in [0, 1]");
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
  static_assert(sizeof(Candidate) + sizeof(int32_t) == kBytesPerToken);
  candidates_.reserve(static_cast<size_t>(vocab));
  counts_.reserve(static_cast<size_t>(vocab));
}

// Mostly the first few are asked for. After that eight times as many each time, so that all of them
// cost little more than one sort.
void SamplerScratch::order(size_t count) {
  if (count <= ordered_) return;
  constexpr size_t kFew = 64;
  const size_t end = std::min(candidates_.size(), std::max({count, kFew, ordered_ * 8}));
  const auto from = candidates_.begin() + static_cast<std::ptrdiff_t>(ordered_);
  const auto to = candidates_.begin() + static_cast<std::ptrdiff_t>(end);
  if (end - ordered_ <= kFew) {
    std::partial_sort(from, to, candidates_.end(), kBefore);
  } else {
    if (to != candidates_.end()) std::nth_element(from, to, candidates_.end(), kBefore);
    std::sort(from, to, kBefore);
  }
  ordered_ = end;
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
  candidates.resize(logits.size());
  for (size_t i = 0; i < logits.size(); ++i) {
    candidates[i] = {logits[i], static_cast<int32_t>(i)};
  }
  scratch_->ordered_ = 0;
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
  std::vector<int32_t>& counts = scratch_->counts_;
  counts.assign(scratch_->candidates_.size(), 0);
  for (const int32_t token : generated) ++counts[static_cast<size_t>(token)];
  for (const int32_t token : generated) {
    int32_t& count = counts[static_cast<size_t>(token)];
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

int32_t Sampler::draw() {
  std::vector<Candidate>& candidates = scratch_->candidates_;
  const double random = next_random() / 4294967296.0;
  const size_t k = static_cast<size_t>(options_.top_k);
  if (k > 0 && k < candidates.size()) {
    scratch_->order(k);
    candidates.resize(k);
  }
  const float best = kLargest(candidates).logit;
  if (best == kBanned) return candidates[0].id;  // all are
  const auto exponent = [&](size_t i) {
    return static_cast<double>(candidates[i].logit - best) / options_.temperature;
  };
  const auto weight = [&](size_t i) { return std::exp(exponent(i)); };
  const double sum = sum_exp(candidates.size(), exponent);
  // top-p: the shortest head that holds that share; min-p: a share of the best one's weight, 1.
  double kept = 0;
  size_t count = 0;
  if (options_.top_p == 1 && options_.min_p == 0) {
    kept = sum;
    count = candidates.size();
  }
  for (; count < candidates.size(); ++count) {
    scratch_->order(count + 1);
    const double w = weight(count);
    if (count > 0 && (kept >= options_.top_p * sum || w < options_.min_p)) break;
    kept += w;
  }
  double at = random * kept;
  for (size_t i = 0; i + 1 < count; ++i) {
    scratch_->order(i + 1);
    at -= weight(i);
    if (at < 0) return candidates[i].id;
  }
  scratch_->order(count);
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
  return options_.temperature > 0 ? draw() : kLargest(scratch_->candidates_).id;
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
