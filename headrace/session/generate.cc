#include "headrace/session/generate.h"

#include <algorithm>
#include <chrono>

namespace headrace {
namespace {

Nanos now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

}  // namespace

Status generate(Session& session, const Tokenizer& tokenizer, std::span<const int32_t> prompt,
                const GenerateOptions& options, const OnToken& on_token, GenerateStats* stats) {
  HR_TRY(check(options.sampling));
  *stats = GenerateStats();
  stats->prompt_tokens = static_cast<int64_t>(prompt.size());
  const int64_t room = session.plan().context - session.position() -
                       static_cast<int64_t>(prompt.size());
  // A prompt beyond the context is refused by append().
  const int64_t most = std::max<int64_t>(room, 0) + 1;
  const int64_t wanted = options.max_tokens > 0 ? options.max_tokens : most;
  std::vector<int32_t> history(prompt.begin(), prompt.end());
  history.reserve(history.size() + static_cast<size_t>(std::min(wanted, most)));
  stats->tokens.reserve(static_cast<size_t>(std::min(wanted, most)));
  const Nanos start = now_ns();
  HR_ASSIGN(std::span<const float> logits, session.append(prompt));
  Sampler sampler(options.sampling, static_cast<int64_t>(logits.size()));
  stats->prefill_ns = now_ns() - start;
  for (int64_t n = 0; n < wanted; ++n) {
    const int32_t token = sampler.sample(logits, history);
    if (n == 0) stats->first_token_ns = now_ns() - start;
    stats->ended = tokenizer.is_end_of_generation(token) && !options.ignore_end;
    if (stats->ended) return {};
    history.push_back(token);
    stats->tokens.push_back(token);
    if (!on_token(token) || n + 1 == wanted) return {};
    const Executor::Moved before = session.moved();
    const Nanos begin = now_ns();
    HR_ASSIGN(logits, session.append(std::span<const int32_t>(&token, 1)));
    const Nanos took = now_ns() - begin;
    stats->decode_ns += took;
    if (n == 0) continue;
    const Executor::Moved& after = session.moved();
    ++stats->steady_steps;
    stats->steady_ns += took;
    stats->steady_wait_ns += after.load_wait_ns - before.load_wait_ns;
    stats->steady_loaded += after.loaded - before.loaded;
    stats->steady_gathered += after.gathered - before.gathered;
  }
  return {};
}

}  // namespace headrace
