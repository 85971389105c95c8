// EngineCore: what an Engine does, turn by turn, without its thread: jobs, their choices, and the
// session. See engine.h for words and promises.
//
// States of a choice
//   waiting    has no sequence; its place in the queue is its job's
//   running    has a place; reads (more than one token unread) or decodes (one)
//   preempted  on disk
// What a choice knows is its tokens, prompt and answer; its sequence holds the first of them. All
// that happens to a sequence (a step that failed, blocks that did not come back) makes it shorter,
// and what is unread is read again: there is no other way to recover. Not thread-safe. Calls
// events.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "headrace/serve/choice_text.h"
#include "headrace/serve/draft.h"
#include "headrace/serve/engine.h"
#include "headrace/serve/measured_times.h"
#include "headrace/serve/scheduler.h"
#include "headrace/session/batch_prefix.h"

namespace headrace {

class EngineCore {
 public:
  static Result<std::unique_ptr<EngineCore>> create(const Model& model,
                                                    std::unique_ptr<BatchSession> session,
                                                    const EngineOptions& options,
                                                    std::unique_ptr<Drafter> drafter);

  // Ok when such a job can run at all.
  static Status check(const Job& job, const Model& model, const BatchPlan& plan);
  // `job` is checked, `id` larger than any before; `arrived` is when it was submitted.
  void accept(JobId id, Job job, Nanos arrived);
  // Ends it with kCancelled and this text; nothing where it has ended.
  void cancel(JobId id, const std::string& why);
  void cancel_all(const std::string& why);
  // One turn: places, drafts, a step, what was said. Ends at least one job or computes at least one
  // row in two turns. Nothing without jobs.
  void turn();

  int64_t jobs() const { return static_cast<int64_t>(jobs_.size()); }
  int64_t waiting() const;
  // When a running choice should have ended, at the pace and the length of the last ones.
  double seconds_to_room() const;
  const RecentSteps& recent() const { return recent_; }
  EngineMetrics metrics() const;
  const BatchSession& session() const { return *session_; }
  // The last step was one as all to come: its trace is worth showing.
  bool traced() const { return counts_.steps > 0 && session_->steady(); }

 private:
  struct Work {  // a job
    Job job;
    Nanos arrived = 0, began = -1, first = -1;
    int open = 0;         // choices that have not ended
    int strikes = 0;      // failed steps in a row
    bool read = false;    // a choice has read the prompt: the others may begin
    bool gone = false;    // its client
    int64_t worst = 0, shared = 0;
    JobUsage usage;
  };
  struct Choice {
    int32_t job = -1;
    int number = 0;
    KvSequence sequence;
    bool running = false, on_disk = false, looked_up = false;
    std::vector<int32_t> tokens;
    std::vector<int32_t> draft;  // of this turn
    std::unique_ptr<ChoiceText> text;
    Acceptance acceptance;
    int64_t kept = 0;  // blocks that the prefix store was given
    int64_t to_come = 0;  // blocks that it gives back, before anything is read
    Nanos said_at = 0;
  };
  // Rows of a choice in the step.
  struct Row {
    int32_t choice = -1;
    std::vector<int32_t> tokens;
    int64_t outputs = 0;
  };

  EngineCore(const Model& model, std::unique_ptr<BatchSession> session,
             const EngineOptions& options, std::unique_ptr<Drafter> drafter);
  int64_t unread(const Choice& c) const;
  bool reads(const Choice& c) const { return c.running && unread(c) > 1; }
  std::vector<ChoiceView> views(bool running) const;
  Nanos step_ns(int64_t rows) const { return times_.at(rows); }

  // Places (engine_places.cc).
  void place();
  bool preempt(Choice* c);
  void start(int32_t id);
  Status resume(Choice* c);
  Status begin(Choice* c);
  const Choice* sibling(const Choice& c) const;
  bool look_up(Choice* c);
  void restore();
  void restore(Choice* c);
  void count_known(Choice* c);

  // Turns.
  bool ready();
  Status files();
  int64_t draft();
  std::vector<Share> share(int64_t drafted);
  int32_t waiting(const std::vector<Share>& shares) const;
  std::vector<Row> rows(const std::vector<Share>& shares) const;
  void after(const std::vector<Row>& rows, std::span<const BatchSession::Part> parts,
             std::span<const float> logits);
  void speak(int32_t id, std::span<const float> logits);
  int64_t draw(Choice* c, std::span<const float> logits, std::optional<Finish>* end,
               Status* status);
  void count_tokens(Work* w, Choice* c, int64_t tokens);
  void keep(Choice* c);
  void failed(const std::vector<Row>& rows, const Status& why);
  void strike(int32_t job, const Status& why);

  // Ends.
  void close(int32_t id, Choice* c);
  void end_choice(int32_t id, Finish finish);
  void end_job(int32_t job, const Status& why);

  const Model& model_;
  std::unique_ptr<BatchSession> session_;
  const EngineOptions options_;
  std::unique_ptr<Drafter> drafter_;     // null: no drafts
  std::unique_ptr<BatchPrefix> prefix_;  // null: no store
  ScheduleLimits limits_;
  MeasuredTimes times_;  // of turns that took a step: with sampling, without places and drafts
  SamplerScratch scratch_;
  std::map<int32_t, Work> jobs_;
  std::map<int32_t, Choice> choices_;
  int32_t next_choice_ = 0;
  double typical_answer_ = -1;  // tokens, of the last ones that ended by themselves; negative: none
  int disk_wait_ = 0;   // turns in which nothing is preempted, after the disk has failed
  bool alone_ = false;  // the next step is of one choice: that of all was refused
  Nanos restore_until_ = 0;  // of this turn
  Nanos files_seen_ = 0;  // when they were as they should be
  RecentSteps recent_;
  EngineMetrics counts_;
  std::vector<MemoryUse> memory_;  // what does not change
};

}  // namespace headrace
