// Sampling: from the logits of one position to the next token.
//
// Order of the steps, as most engines apply them: repetition penalty, temperature, top-k, top-p,
// min-p, draw. Temperature 0 is greedy: the largest logit, the smallest id among equals.
// Deterministic for a seed: PCG32 (O'Neill, "PCG: A Family of Simple Fast Space-Efficient
// Statistically Good Algorithms for Random Number Generation", 2014), no library distribution.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "headrace/base/status.h"

namespace headrace {

struct SamplingOptions {
  double temperature = 0;       // 0: greedy
  int top_k = 0;                // 0: all
  double top_p = 1;             // 1: all
  double min_p = 0;             // 0: all
  double repeat_penalty = 1;    // 1: none (Keskar et al., CTRL, 2019)
  int repeat_last = 64;         // tokens that the penalty looks back at
  uint64_t seed = 0;
};

// kUsage, naming the option, when one is out of range.
Status check(const SamplingOptions& options);

class Sampler {
 public:
  // `vocab` logits will be given each time; all memory is taken here.
  Sampler(const SamplingOptions& options, int64_t vocab);

  // The next token after `history` (the newest last). Logits: [vocab].
  int32_t sample(std::span<const float> logits, std::span<const int32_t> history);

 private:
  struct Candidate {
    float logit;
    int32_t id;
  };
  uint32_t next_random();
  void keep_top_k(size_t k);
  int32_t draw();

  SamplingOptions options_;
  uint64_t state_;
  std::vector<Candidate> candidates_;
  std::vector<double> weights_;
};

}  // namespace headrace
