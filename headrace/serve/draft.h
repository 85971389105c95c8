// Drafts: tokens that are guessed to follow, so that one pass over the weights checks several at
// once.
//
// Vocabulary
//   draft       up to k guessed tokens; their rows ride in the step beside the row that is due
//   accepted    the guesses that were what the model's own sampling said, up to the first that was
//               not
//   acceptance  of a choice: how likely the next guess is right, a running estimate
//
// Promises
//   1. A draft changes no answer: tokens are sampled one by one from the logits of their rows, as
//      they would have been alone, and what follows a wrong guess is thrown away. This is
//      speculative decoding (Leviathan, Kalman and Matias, ICML 2023) with a deterministic draft,
//      for which its rule of acceptance is the same as comparing samples; equal for greedy and for
//      seeded sampling.
//   2. Drafts end where they do not pay: how many rows are checked is what is predicted to give the
//      most tokens a second, often none.
// Not thread-safe.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "headrace/serve/measured_times.h"
#include "headrace/serve/scheduler.h"
#include "headrace/session/batch_session.h"

namespace headrace {

// One choice that a draft is wanted for.
struct DraftAsk {
  int32_t choice = -1;              // names it from call to call
  std::span<const int32_t> tokens;  // prompt and answer so far, all of them
  int64_t most = 0;
  std::vector<int32_t> draft;       // the answer: at most `most` tokens
};

class Drafter {
 public:
  virtual ~Drafter() = default;
  // Fills each ask's draft; short or empty where nothing can be guessed. Never fails: what goes
  // wrong is a draft that is not there.
  virtual void propose(std::span<DraftAsk> asks) = 0;
  // The choice has ended, or left memory.
  virtual void forget(int32_t choice) = 0;
  // Time of one more drafted token for each of so many choices.
  virtual Nanos token_ns(int64_t choices) const = 0;
};

// What followed the longest earlier occurrence of the last tokens, of equals the latest; at least
// kLeast tokens alike (prompt lookup: Saxena, 2023). Good where answers repeat their prompt. Costs
// a scan.
class PromptLookup : public Drafter {
 public:
  static constexpr int64_t kLeast = 2, kLongest = 16;
  void propose(std::span<DraftAsk> asks) override;
  void forget(int32_t) override {}
  Nanos token_ns(int64_t) const override { return 0; }
};

// A smaller model with the same vocabulary, in a BatchSession of its own that follows the same
// texts, as many as have room in its blocks, and says greedily what it would say.
class DraftModel : public Drafter {
 public:
  // Takes the session. `model` is borrowed, `target` is only looked at. kUnsupported, with both
  // numbers or the first token that differs: another vocabulary.
  static Result<std::unique_ptr<DraftModel>> open(const Model& target, const Model& model,
                                                  std::unique_ptr<BatchSession> session);
  void propose(std::span<DraftAsk> asks) override;
  void forget(int32_t choice) override;
  Nanos token_ns(int64_t choices) const override { return times_.at(choices); }
  // Steps that failed since the start: each cost its drafts.
  int64_t failures() const { return failures_; }

 private:
  struct Follower {
    KvSequence sequence;
    std::vector<int32_t> held;  // tokens that the sequence has
  };
  struct Writing {
    DraftAsk* ask;
    Follower* follower;
    std::vector<int32_t> rows;  // of its next step
    bool whole = false;         // they are all it has not read
  };
  static constexpr int kPause = 256;  // calls without drafts after a failure

  DraftModel(std::unique_ptr<BatchSession> session, int64_t vocab)
      : session_(std::move(session)), times_(session_->plan()), vocab_(vocab) {}
  Follower* follow(const DraftAsk& ask);
  void cut(Follower* follower, int64_t positions);
  bool advance(std::vector<Writing>* writing);
  void give_up();
  bool follows(const DraftAsk& ask) const;
  int64_t blocks_of(size_t tokens) const;

  std::unique_ptr<BatchSession> session_;
  MeasuredTimes times_;  // of its steps
  const int64_t vocab_;
  std::map<int32_t, Follower> followers_;  // by choice
  int pause_ = 0;
  int64_t failures_ = 0;
};

// The plan of a draft model's session beside one that is planned with `target`: as many places, as
// long contexts, `share` bytes more than the process holds now. Errors of plan_batch; kDoesNotFit
// speaks of all that the process holds.
Result<BatchPlan> plan_draft(const Model& model, const BatchOptions& target, Bytes share);
// What that session takes beside what the process held then: for beside_bytes of the target's
// options, before either session is started.
Bytes draft_memory(const BatchPlan& plan);

// Running estimate of how likely a guess is right: counts that fade, around a prior. Fades back to
// the prior while nothing is drafted, so that a choice whose text has changed is tried again.
class Acceptance {
 public:
  double estimate() const { return (hits_ + kPrior * kWeight) / (tries_ + kWeight); }
  // `accepted` of `drafted` guesses were right; the one after them, if any, was wrong.
  void add(int64_t drafted, int64_t accepted);
  void skip();  // a token without a draft

 private:
  static constexpr double kPrior = 0.5, kWeight = 2, kFade = 0.9, kForget = 0.98;
  double hits_ = 0, tries_ = 0;
};

// How many guesses of each choice are checked: the numbers that make the most expected tokens a
// second.
struct DraftBid {
  int64_t most = 0;        // guesses that there are, or may be asked for
  double acceptance = 0;   // in [0, 1)
};
// `rows`: of the step without drafts. `token_ns`: as Drafter's; room: rows that drafts may take.
// Guess j of a choice is reached with probability acceptance^j, so the best sets take guesses in
// the order of that; all of their sizes are compared.
std::vector<int64_t> choose_drafts(std::span<const DraftBid> bids, int64_t rows, int64_t room,
                                   const StepTimes& times,
                                   const std::function<Nanos(int64_t)>& token_ns);

// Guesses that may follow position `length` (which the row that is due takes): wrong ones can only
// be taken back exactly within the tile that is being filled.
int64_t draft_room(int64_t length);

}  // namespace headrace
