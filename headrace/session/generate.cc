#include "headrace/session/generate.h"

#include <algorithm>
#include <bit>

#include "headrace/base/system.h"

namespace headrace {
namespace {

// One decode step, by the session's counters before and after it.
void add_step(const Executor::Moved& before, const Executor::Moved& after, Nanos took,
              GenerateStats* stats) {
  const Nanos wait = after.load_wait_ns - before.load_wait_ns;
  const Bytes loaded = after.loaded - before.loaded;
  ++stats->steady_steps;
  stats->steady_ns += took;
  stats->steady_wait_ns += wait;
  stats->steady_loaded += loaded;
  stats->steady_kv_loaded += after.kv_loaded - before.kv_loaded;
  stats->steady_gathered += after.gathered - before.gathered;
  if (loaded == 0 || wait < took / 2) return;
  stats->bound_loaded += loaded;
  stats->bound_ns += took;
}

void forget_steps(GenerateStats* stats) {
  stats->steady_steps = 0;
  stats->steady_ns = stats->steady_wait_ns = stats->bound_ns = 0;
  stats->steady_loaded = stats->steady_kv_loaded = 0;
  stats->steady_gathered = stats->bound_loaded = 0;
}

}  // namespace

Status check_finite(std::span<const float> logits) {
  constexpr uint32_t kExponent = 0x7f800000;  // all ones: infinity or NaN (IEEE 754)
  bool bad = false;
  for (float x : logits) bad |= (std::bit_cast<uint32_t>(x) & kExponent) == kExponent;
  if (!bad) return {};
  return error(Code::kBadFile,
               "the logits are not finite: the model's weights hold NaN or infinity");
}

Status generate(Session& session, const Tokenizer& tokenizer,
                std::span<const int32_t> prompt, const GenerateOptions& options,
                const OnToken& on_token, GenerateStats* stats) {
  HR_TRY(check(options.sampling));
  *stats = GenerateStats();
  stats->prompt_tokens = static_cast<int64_t>(prompt.size());
  const int64_t room = session.plan().context - session.position() -
                       static_cast<int64_t>(prompt.size());
  // A prompt beyond the context is refused by append().
  const int64_t most = std::max<int64_t>(room, 0) + 1;
  const int64_t wanted = options.max_tokens > 0 ? options.max_tokens : most;
  std::vector<int32_t> history;
  history.reserve(options.history.size() + prompt.size() +
                  static_cast<size_t>(std::min(wanted, most)));
  history.assign(options.history.begin(), options.history.end());
  history.insert(history.end(), prompt.begin(), prompt.end());
  stats->tokens.reserve(static_cast<size_t>(std::min(wanted, most)));
  const Nanos start = monotonic_ns();
  HR_ASSIGN(std::span<const float> logits, session.append(prompt));
  Sampler sampler(options.sampling, static_cast<int64_t>(logits.size()));
  stats->prefill_ns = monotonic_ns() - start;
  for (int64_t n = 0; n < wanted; ++n) {
    HR_TRY(check_finite(logits));
    const int32_t token = sampler.sample(logits, history);
    if (n == 0) stats->first_token_ns = monotonic_ns() - start;
    stats->ended = tokenizer.is_end_of_generation(token) && !options.ignore_end;
    if (stats->ended) return {};
    history.push_back(token);
    stats->tokens.push_back(token);
    if (!on_token(token) || n + 1 == wanted) return {};
    const Executor::Moved before = session.moved();
    const int replans = session.replans();
    const Nanos begin = monotonic_ns();
    HR_ASSIGN(logits, session.append(std::span<const int32_t>(&token, 1)));
    const Nanos took = monotonic_ns() - begin;
    stats->decode_ns += took;
    if (session.replans() != replans) {
      forget_steps(stats);  // this one moved the session to its new plan
    } else if (n > 0) {
      add_step(before, session.moved(), took, stats);
    }
  }
  return {};
}

}  // namespace headrace
