// Sampling: from the logits of one position to the next token.
//
// Order of the steps: repetition penalty (on the raw logits, whose sign it looks at); presence and
// frequency penalties and the bias (differences, so their order does not matter); temperature,
// top-k, top-p, min-p, draw. Temperature 0 is greedy: the largest logit, the smallest id among
// equals.
// Deterministic for a seed: PCG32 (O'Neill, "PCG: A Family of Simple Fast Space-Efficient
// Statistically Good Algorithms for Random Number Generation", 2014), no library distribution.
//
// Vocabulary
//   history    all tokens before the one that is drawn, the newest last: prompt and answer
//   generated  the part of the history that the model itself wrote in this answer: its last tokens
//
// Promises
//   1. A token that is drawn takes exactly one number of the generator, a greedy one none: saving
//      random_state() before and setting it again repeats the draw.
//   2. What a Sampler returns depends on its options, its random state and the arguments alone, not
//      on the scratch or on who used it before.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "headrace/base/status.h"
#include "headrace/base/types.h"

namespace headrace {

struct LogitBias {
  int32_t token = 0;
  float bias = 0;               // added to its logit; -100: the token is never drawn
  bool operator==(const LogitBias&) const = default;
};

struct SamplingOptions {
  double temperature = 0;       // 0: greedy
  int top_k = 0;                // 0: all
  double top_p = 1;             // 1: all; 0: the most probable one
  double min_p = 0;             // 0: all
  double repeat_penalty = 1;    // 1: none (Keskar et al., CTRL, 2019)
  int repeat_last = 64;         // tokens of the history that this penalty looks back at
  uint64_t seed = 0;
  // As OpenAI's API defines them, over what was generated (the prompt is not counted): off the
  // logit of each token that was, and off it again for each time that it was. -2 to 2, 0: none.
  double presence_penalty = 0;
  double frequency_penalty = 0;
  std::vector<LogitBias> logit_bias;  // by token, ascending, each once

  // True when each token is simply the largest raw logit.
  bool greedy() const {
    return temperature == 0 && repeat_penalty == 1 && presence_penalty == 0 &&
           frequency_penalty == 0 && logit_bias.empty();
  }
};

// kUsage, naming the option, when one is out of range. `vocab`: tokens that there are.
Status check(const SamplingOptions& options, int64_t vocab = INT32_MAX);

// Memory that the samplers of one thread share, all taken here: kBytesPerToken for each of `vocab`
// tokens, and nothing later. Holds nothing between two calls.
class SamplerScratch {
 public:
  static constexpr Bytes kBytesPerToken = 12;
  explicit SamplerScratch(int64_t vocab);

 private:
  friend class Sampler;
  struct Candidate {
    float logit;
    int32_t id;
  };
  // Extends what is in order at the front (descending, ties by id) to at least `count` candidates.
  void order(size_t count);

  std::vector<Candidate> candidates_;
  std::vector<int32_t> counts_;  // by token, of what was generated
  size_t ordered_ = 0;
};

// One thread at a time. Movable.
class Sampler {
 public:
  // With a scratch of its own, unless the options are greedy. `options` passed
  // check(options, vocab); `vocab` logits will be given each time.
  Sampler(SamplingOptions options, int64_t vocab);
  // Borrows `scratch`, which has room for all logits ever given; the sampler itself is a few dozen
  // bytes and the bias.
  Sampler(SamplingOptions options, SamplerScratch* scratch);

  // The next token after `history`, whose last `generated` tokens are the answer so far. Finite
  // logits: [vocab]. When all tokens are banned: the smallest id.
  int32_t sample(std::span<const float> logits, std::span<const int32_t> history,
                 size_t generated = 0);

  // All that a Sampler remembers from one token to the next.
  uint64_t random_state() const { return state_; }
  void set_random_state(uint64_t state) { state_ = state; }
  const SamplingOptions& options() const { return options_; }

 private:
  using Candidate = SamplerScratch::Candidate;
  uint32_t next_random();
  void fill(std::span<const float> logits);
  void penalise_repeats(std::span<const int32_t> recent);
  void penalise_generated(std::span<const int32_t> generated);
  void add_bias();
  int32_t draw();

  SamplingOptions options_;
  uint64_t state_;
  std::unique_ptr<SamplerScratch> own_;
  SamplerScratch* scratch_;
};

struct Logprob {
  int32_t token = 0;
  double value = 0;  // natural logarithm of the softmax of the raw logits
};

// The logarithm of the probability of `token` by the softmax of the raw, finite `logits` [vocab]
// (temperature 1, no penalty, no bias), and in *alternatives the `most` most probable tokens,
// descending, ties by the smaller id. Sums in double, in the order of ids: the same on every run.
// Allocates `most` entries of *alternatives (kept between calls) and nothing else. `alternatives`
// may be null when `most` is 0.
double log_softmax(std::span<const float> logits, int32_t token, int most,
                   std::vector<Logprob>* alternatives);

}  // namespace headrace
