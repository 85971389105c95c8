// Engine: jobs of many clients on one BatchSession, by one thread that does nothing else.
//
// Vocabulary
//   job      a prompt and the n answers to it
//   choice   one of these answers: a sequence. Choices share the blocks of their prompt.
//   worst    blocks that a choice takes when its answer is as long as it may be; known before it
//            starts
//   turn     what the thread does again and again: admit, choose parts, step, sample, emit
//
// Promises
//   1. Admission by memory: a choice starts when its worst fits beside that of what runs, or can be
//      made to fit by preempting what has a lower priority. What can never fit is refused at once
//      with numbers; what does not fit now waits; the queue is bounded (busy).
//   2. What was admitted ends: by its own stop, its client, or an error that it is told. It may be
//      preempted to disk and resumed; its text does not change by that.
//   3. A choice's text depends on its job alone: prompt, options, seed. Not on speculation, on what
//      ran beside, or on faults that were recovered from.
//   4. Each event is called on the engine's thread, in order; on_end exactly once for each job that
//      was accepted, also on drain and destruction.
//   5. Fairness: among equal priorities, running choices advance together, one token a turn at
//      least where their step has room; prompts are read in the order of arrival, the shortest one
//      beside the first, in chunks that leave the time of a step with decode rows below `stretch`
//      times that without, by the times of the last steps.
//   6. A failed step (I/O) costs the jobs in it one retry; failing again, they end with its error
//      and the engine goes on with the others.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "headrace/serve/draft.h"
#include "headrace/serve/metrics.h"
#include "headrace/session/batch_session.h"
#include "headrace/session/sampling.h"

namespace headrace {

using JobId = Id<struct JobTag>;

enum class Finish { kStop, kLength, kCancelled, kError };

// Newly certain text of a choice, and the tokens whose text is all out with it: stop strings are
// never in it, nor half characters. Logprobs are there when the job asked for them.
struct Emitted {
  int choice = 0;
  std::string_view text;
  std::span<const int32_t> tokens;
  std::span<const Logprob> chosen;                   // one a token
  std::span<const std::vector<Logprob>> alternatives;  // descending
};

struct JobUsage {
  int64_t prompt_tokens = 0;
  int64_t cached_tokens = 0;     // of them, not computed: shared blocks, prefix store
  int64_t completion_tokens = 0; // of all choices
  int64_t drafted = 0, accepted = 0;
  Nanos queued_ns = 0, first_token_ns = 0, total_ns = 0;
};

struct JobEvents {
  // False: the client is gone; the job is cancelled.
  std::function<bool(const Emitted&)> on_text;
  std::function<void(int choice, Finish)> on_choice_end;
  std::function<void(const JobUsage&, const Status&)> on_end;
};

struct Job {
  std::vector<int32_t> prompt;  // at least one token
  int n = 1;
  SamplingOptions sampling;     // choice i draws with seed + i
  int64_t max_tokens = 256;     // of each choice
  std::vector<std::string> stop;
  int logprobs = -1;            // alternatives; -1: no logprobs
  bool ignore_end = false;
  int priority = 0;
  JobEvents events;
};

// Why a job was not accepted.
struct Refusal {
  enum class Kind { kNone, kNever, kBusy, kDraining } kind = Kind::kNone;
  Status status;               // with the numbers
  double retry_after_s = 0;    // kBusy: when there should be room, from the last steps and answers
};

struct EngineOptions {
  int queue_jobs = 256;        // that may wait
  double stretch = 2.5;        // see promise 5
  bool measure = true;         // false: by predicted times alone, which makes the same steps again
  std::string prefix_folder;   // empty: no prefix store
  Bytes prefix_limit = 0;
  int64_t speculate = 0;       // most drafted tokens a choice a turn; 0: none
};

class Engine {
 public:
  // Takes the session; starts the thread. `model` is borrowed. `drafter`: who guesses, with
  // options.speculate above 0; null: PromptLookup. kUsage: an option out of range, or more drafted
  // tokens than the plan has rows for; errors of BatchPrefix::open.
  static Result<std::unique_ptr<Engine>> start(const Model& model,
                                               std::unique_ptr<BatchSession> session,
                                               const EngineOptions& options,
                                               std::unique_ptr<Drafter> drafter = nullptr);
  ~Engine();  // cancels what runs, ends the thread
  // Any thread. Invalid id: refused, see `why` (not null).
  JobId submit(Job job, Refusal* why);
  // Any thread; returns at once. on_end follows, unless it has been.
  void cancel(JobId id);
  // Accepts nothing more; returns when all accepted jobs have ended.
  void drain();
  // Accepts nothing more; what was accepted ends with kCancelled and `why`, as soon as the step
  // that runs has. Any thread; returns at once.
  void stop(const std::string& why);
  // Any thread: a copy as of the last turn.
  EngineMetrics metrics() const;
  // Any thread. The plan does not change while the engine lives.
  const BatchPlan& plan() const;
  // Chrome trace JSON of the last step, for /timeline; empty before the second (the first one loads
  // what stays). Any thread.
  std::string last_timeline() const;
  // Most tokens (prompt + answer) that a job may have.
  int64_t context() const;

 private:
  class Impl;
  explicit Engine(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace headrace
