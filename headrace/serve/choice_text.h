// ChoiceText: what one choice says: draws its tokens, and keeps back what is not certain text yet.
//
// Promises
//   1. Tokens are drawn with seed + number of the choice; they depend on the job and the logits
//      alone.
//   2. What is emitted is of tokens whose text is all out, in order; together that is every token
//      of the answer but those in which a stop string lies.
// Not thread-safe.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "headrace/model/tokenizer.h"
#include "headrace/serve/engine.h"
#include "headrace/serve/stop_text.h"

namespace headrace {

class ChoiceText {
 public:
  // Borrows all of it. `job` has been checked.
  ChoiceText(const Job& job, int number, const Tokenizer& tokenizer, SamplerScratch* scratch);

  // Draws the token after `*tokens` (the prompt and what was said so far) from `logits` [vocab] and
  // appends it, unless it ends the text. How the choice ends with it, if it does. kBadFile: logits
  // that are not finite; nothing has changed then.
  Result<std::optional<Finish>> take(std::span<const float> logits, std::vector<int32_t>* tokens);

  int64_t said() const { return said_; }  // tokens of the answer so far
  // What became certain since the last call; valid until the next take(). False: nothing.
  bool emit(Emitted* out);

 private:
  const Job& job_;
  const int number_;
  const Tokenizer& tokenizer_;
  Sampler sampler_;
  StopText stop_;
  int64_t said_ = 0;
  int64_t emitted_ = 0;  // tokens
  std::string text_;     // certain, not emitted
  // Of tokens from `emitted_` on; the first `shown_` are in the Emitted that was given out last.
  std::vector<int32_t> tokens_;
  std::vector<Logprob> chosen_;
  std::vector<std::vector<Logprob>> alternatives_;
  size_t shown_ = 0;
  bool given_ = false;   // text_ and those are in it
  void forget_shown();
};

}  // namespace headrace
