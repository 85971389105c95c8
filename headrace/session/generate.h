// The generation loop: prompt in, tokens out, one callback a token.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "headrace/session/sampling.h"
#include "headrace/session/session.h"

namespace headrace {

struct GenerateOptions {
  int64_t max_tokens = 64;   // 0: until the context is full
  bool ignore_end = false;   // go on after an end-of-generation token
  SamplingOptions sampling;
  // What the session holds already, before `prompt`: the repeat penalty counts it too.
  // Borrowed for the call; may be empty.
  std::span<const int32_t> history;
};

// What was measured. "Steady" steps are decode steps after the first, which also moves
// the session from the prefill Program to the decode Program, and after the last swap to a
// new plan: its figures are not mixed with those of the plan before.
struct GenerateStats {
  int64_t prompt_tokens = 0;
  Nanos prefill_ns = 0;
  Nanos first_token_ns = 0;  // from the call of generate to the first token
  std::vector<int32_t> tokens;
  Nanos decode_ns = 0;       // all decode steps
  int64_t steady_steps = 0;
  Nanos steady_ns = 0;
  Nanos steady_wait_ns = 0;  // compute standing still for transfers
  Bytes steady_loaded = 0;
  Bytes steady_kv_loaded = 0;  // of that, KV
  Bytes steady_gathered = 0;
  // Of the steady steps that waited half of their time or more: there the link is nearly
  // always busy, and bytes / time is its rate.
  Bytes bound_loaded = 0;
  Nanos bound_ns = 0;
  bool ended = false;        // by an end-of-generation token
};

// kBadFile for logits with NaN or infinity: weights that hold such values make logits that mean
// nothing; better said than sampled.
Status check_finite(std::span<const float> logits);

// Called with each new token; returning false stops the loop.
using OnToken = std::function<bool(int32_t token)>;

// Appends `prompt` to the session and generates. `stats` is filled as far as it got, also
// when an error is returned (kUsage: sampling options or context; kCancelled; kBadFile:
// logits that are not finite; errors of the transfers).
Status generate(Session& session, const Tokenizer& tokenizer,
                std::span<const int32_t> prompt, const GenerateOptions& options,
                const OnToken& on_token, GenerateStats* stats);

}  // namespace headrace
