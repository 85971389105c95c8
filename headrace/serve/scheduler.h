// Scheduler: who is in memory, and what the next step does. Decisions alone: no threads, no clock,
// no session; a snapshot goes in, a decision comes out.
//
// Vocabulary
//   choice    one answer to a job: a sequence of its own. Choices of a job share whole blocks of
//             the prompt.
//   worst     blocks that a choice takes when its answer is as long as it may be
//   promised  blocks that the running choices may come to need, what they share counted once
//   unread    tokens of a choice that its sequence does not hold yet: 1 while it decodes, more
//             while its prompt is read, or read again after a fault
//
// Promises
//   1. Never more than `blocks` are promised, never more than `places` choices run: each running
//      choice can go on to its end whatever the others do, so there is no deadlock.
//   2. Order: larger priority first, then earlier arrival, then lower number. Nothing overtakes, so
//      nothing starves behind its equals; what was preempted arrived earlier and goes first.
//   3. Only what has a lower priority than the one that needs the room is preempted: the lowest
//      first, of equals the youngest, and none whose room is not needed. Never more on disk than
//      fits there.
//   4. Every running choice that decodes is in every step with one row. Prompts are read in the
//      order of 2, but for half of the rows, which go to the shortest one of the same priority: a
//      question need not wait for a book, nor the book for questions. All within step_rows and,
//      beside rows that decode, within `stretch` times the time of a step without prompts; one row
//      at least.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "headrace/base/types.h"

namespace headrace {

// Expected time of a step of so many rows; never falls as rows grow.
using StepTimes = std::function<Nanos(int64_t rows)>;

struct ScheduleLimits {
  int64_t places = 1;
  int64_t blocks = 1;
  int64_t disk_blocks = 0;     // room for what is preempted; 0: nothing is
  int64_t disk_sequences = 0;  // that may be preempted at once
  int64_t step_rows = 1;       // at least `places`
  double stretch = 2.5;
};

// A choice, as far as decisions need it. `id` is the caller's; `job` says which share blocks.
struct ChoiceView {
  int32_t id = -1;
  int32_t job = -1;
  int priority = 0;
  int64_t arrival = 0;    // of its job; unlike any other job's
  int number = 0;         // in its job
  int64_t worst = 1;
  int64_t shared = 0;     // of them, whole blocks of the prompt
  int64_t unread = 1;     // of a running one
  bool on_disk = false;   // is preempted, or was: its blocks may have copies there
};

// Larger priority, then earlier arrival, then lower number.
bool goes_before(const ChoiceView& a, const ChoiceView& b);
int64_t promised_blocks(std::span<const ChoiceView> running);

// To be done in this order. An empty one: nothing changes.
struct Placement {
  std::vector<int32_t> preempt;  // running ones that go to disk
  std::vector<int32_t> start;    // queued ones that get a place: begun, or resumed
};
// `queued`: waiting and preempted choices, in any order. Precondition: what runs is within the
// limits.
Placement place_choices(const ScheduleLimits& limits, std::span<const ChoiceView> running,
                        std::span<const ChoiceView> queued);

// Rows of the next step: the next `rows` unread tokens of a choice.
struct Share {
  int32_t id = -1;
  int64_t rows = 0;
};
// `running` in any order; `drafted`: rows that are in the step besides, with those that decode.
// Preconditions: decoding and drafted rows fit in step_rows.
std::vector<Share> share_step(const ScheduleLimits& limits, std::span<const ChoiceView> running,
                              int64_t drafted, const StepTimes& times);

// Tokens that an answer goes on for which has said so many of at most `most`, where answers had
// `typical` of late (negative: not known). One that is longer than that goes on for half of it.
int64_t expected_left(int64_t said, int64_t most, double typical);

}  // namespace headrace
