#include "headrace/serve/choice_text.h"

#include <utility>

#include "headrace/session/generate.h"

namespace headrace {
namespace {

SamplingOptions of_choice(SamplingOptions options, int number) {
  options.seed += static_cast<uint64_t>(number);
  return options;
}

}  // namespace

ChoiceText::ChoiceText(const Job& job, int number, const Tokenizer& tokenizer,
                       SamplerScratch* scratch)
    : job_(job), number_(number), tokenizer_(tokenizer),
      sampler_(of_choice(job.sampling, number), scratch), stop_(job.stop) {}

Result<std::optional<Finish>> ChoiceText::take(std::span<const float> logits,
                                               std::vector<int32_t>* tokens) {
  HR_TRY(check_finite(logits));
  forget_shown();
  const int32_t token = sampler_.sample(logits, *tokens, static_cast<size_t>(said_));
  if (tokenizer_.is_end_of_generation(token) && !job_.ignore_end) {
    stop_.finish(&text_);
    return std::optional(Finish::kStop);
  }
  tokens->push_back(token);
  ++said_;
  tokens_.push_back(token);
  if (job_.logprobs >= 0) {
    auto& others = alternatives_.emplace_back();
    chosen_.push_back({token, log_softmax(logits, token, job_.logprobs, &others)});
  }
  if (stop_.push(tokenizer_.token_bytes(token, false), &text_)) return std::optional(Finish::kStop);
  if (said_ < job_.max_tokens) return std::optional<Finish>();
  stop_.finish(&text_);
  return std::optional(Finish::kLength);
}

bool ChoiceText::emit(Emitted* out) {
  forget_shown();
  shown_ = static_cast<size_t>(stop_.tokens_out() - emitted_);
  if (shown_ == 0 && text_.empty()) return false;
  out->choice = number_;
  out->text = text_;
  out->tokens = std::span(tokens_).first(shown_);
  out->chosen = {};
  out->alternatives = {};
  if (job_.logprobs >= 0) {
    out->chosen = std::span(chosen_).first(shown_);
    out->alternatives = std::span(alternatives_).first(shown_);
  }
  given_ = true;
  return true;
}

void ChoiceText::forget_shown() {
  if (!std::exchange(given_, false)) return;
  const auto end = static_cast<std::ptrdiff_t>(shown_);
  emitted_ += static_cast<int64_t>(std::exchange(shown_, 0));
  text_.clear();
  tokens_.erase(tokens_.begin(), tokens_.begin() + end);
  if (job_.logprobs < 0) return;
  chosen_.erase(chosen_.begin(), chosen_.begin() + end);
  alternatives_.erase(alternatives_.begin(), alternatives_.begin() + end);
}

}  // namespace headrace
