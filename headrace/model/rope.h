// Rotary position embedding: the frequencies that a model's header describes.
//
// Sources: Su et al., "RoFormer" (arXiv:2104.09864) for the base frequencies; Chen et
// al., "Extending Context Window ... via Position Interpolation" (arXiv:2306.15595) for
// linear scaling; Peng et al., "YaRN" (arXiv:2309.00071), sections 3.2 to 3.4, for
// NTK-by-parts with its attention temperature; Grattafiori et al., "The Llama 3 Herd of
// Models" (arXiv:2407.21783) and the Llama 3.1 release for the wavelength-banded scaling.
#pragma once

#include <cstdint>
#include <vector>

#include "headrace/base/status.h"

namespace headrace {

enum class RopeScaling : uint8_t { kNone, kLinear, kLlama3, kYarn };
const char* name_of(RopeScaling scaling);

struct RopeConfig {
  double base = 10000;
  RopeScaling scaling = RopeScaling::kNone;
  double factor = 1;            // context extension; >= 1 in practice, > 0 always
  double original_context = 0;  // positions before extension (llama3, yarn)
  double low_freq_factor = 1;   // llama3
  double high_freq_factor = 4;  // llama3
  double beta_fast = 32;        // yarn: rotations above which a pair is left alone
  double beta_slow = 1;         // yarn: rotations below which it is interpolated
  double attention_factor = 0;  // yarn: mscale; 0 means 0.1 ln(factor) + 1
  // What each pair's frequency is divided by, [head_dim / 2]; empty: nothing. It is how
  // GGUF files say llama3 scaling (tensor rope_freqs.weight).
  std::vector<float> divisors;
  bool operator==(const RopeConfig&) const = default;
};

// Radians a position of each pair, [head_dim / 2]. kBadFile when the parameters make no
// sense (base <= 1, factor <= 0, bands of width 0, divisors of another length, a context
// of 0 where the scaling needs one). Precondition: head_dim is even and > 0.
Result<std::vector<float>> inverse_frequencies(const RopeConfig& rope, int64_t head_dim);
// What cosines and sines are multiplied by; 1 but for YaRN.
double rope_mscale(const RopeConfig& rope);

}  // namespace headrace
