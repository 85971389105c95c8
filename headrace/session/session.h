// Session: a running model. Owns the arena, the tiers, the threads and the executor; knows which
// Program comes next and bridges from one to the other.
//
// Promises
//   1. Logits do not depend on the budget, the chunk, the number of threads or where bytes were.
//   2. After an error nothing more runs; every transfer has ended.
//   3. When the link turns out 20 % faster or slower than planned for 8 decode steps, and a new plan
//      is predicted to gain 5 %, the session swaps to it between two steps.
//   4. With SessionOptions::sparse_tokens promise 1 does not hold of decode steps: they attend
//      selected segments. Prompts are read exactly; every 64th decode step that leaves something out
//      is exact and measures what the others miss.
// Not thread-safe.
#pragma once

#include <algorithm>
#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "headrace/run/executor.h"
#include "headrace/session/rate_monitor.h"
#include "headrace/session/session_plan.h"
#include "headrace/tier/file_tier.h"
#include "headrace/tier/tier.h"

namespace headrace {

// Puts something around the tier that KV is copied to: a link of another speed, faults.
using WrapTier = std::function<Result<std::unique_ptr<Tier>>(std::unique_ptr<Tier>)>;

class Session {
 public:
  // Allocates what the plan reserved; with a plan that streams KV also a file in its folder, which
  // no name leads to any more. `model` and `cancel` (may be null) are borrowed. kIo names the folder
  // when the disk refuses the room.
  static Result<std::unique_ptr<Session>> start(const Model& model, SessionPlan plan,
                                                const std::atomic<bool>* cancel = nullptr,
                                                const WrapTier& wrap_scratch = nullptr);
  ~Session();

  // Appends tokens to the sequence and returns the logits that follow the last one, [vocab]
  // (with all_logits: of every row of the last chunk, [rows, vocab]); valid until the next call.
  // kUsage when the context is full, a token is outside the vocabulary, or there are none: nothing
  // has changed then.
  Result<std::span<const float>> append(std::span<const int32_t> tokens);

  // Forgets the sequence: the next append starts at position 0.
  void reset() {
    position_ = tail_tile_ = sealed_ = 0;
    std::fill(bounded_.begin(), bounded_.end(), 0);
  }
  // Forgets what is after `position`, or after the last place before it that is still known exactly:
  // any position of the tail's tile, else a multiple of 64; 0 where a layer with a window has lost
  // what is seen from there. Returns that place, from which the caller goes on. Precondition:
  // 0 <= position <= position().
  int64_t rewind(int64_t position);

  // KV of the sealed tiles [begin, end) of one layer, (end - begin) kv_tile_bytes. kUsage for tiles
  // that are not sealed, or that a window has passed.
  Status read_kv(int64_t layer, int64_t begin, int64_t end, std::span<std::byte> out);
  bool holds_kv(int64_t tile) const;  // of every layer
  // Precondition: position() is 0. What another session of this model and format has read; then
  // set_position() makes it the past: `position` is a multiple of 64, below the context, and all
  // tiles before it were written.
  Status write_kv(int64_t layer, int64_t begin, int64_t end, std::span<const std::byte> bytes);
  Status set_position(int64_t position);
  // What selecting segments left of attention, in exact steps: the softmax's weight that the
  // selected ones had, averaged over heads, layers and checks.
  struct SparseRecall {
    int64_t selected = 0, segments = 0;  // of the context; 0: nothing is selected
    int64_t checks = 0;                  // where there was more to attend than is selected
    double recall = 0;                   // 0 .. 1, of all checks
  };
  SparseRecall sparse_recall() const;

  // Ok until a step has failed; then nothing runs any more.
  Status failed() const { return executor_->failed(); }

  // Called within append after each step, with the tokens of this append that are done.
  void on_step(std::function<void(int64_t done)> callback) { on_step_ = std::move(callback); }
  // Positions in use.
  int64_t position() const { return position_; }

  const SessionPlan& plan() const { return plan_; }
  const Executor::Moved& moved() const { return executor_->moved(); }
  // How often the session has swapped to a new plan.
  int replans() const { return replans_; }
  // Method and notices of the tier that the weights come from.
  const TierDescription& tier() const { return tier_->describe(); }
  TierCounters tier_counters() const { return tier_->counters(); }
  // kIo when a model file was changed while the session ran.
  Status check_files() const { return tier_->check_unchanged(); }
  // Of the tier that KV is copied to; null: there is none.
  const Tier* scratch() const { return scratch_.get(); }
  // The last step's Program and Trace, also of a step that failed. Precondition: there was one.
  const Program& last_program() const { return Executor::program_of(*last_); }
  const Trace& last_trace() const { return trace_; }

 private:
  // The kind of the Program that ran last. kLeft: a decode Program that has been replaced since.
  enum class Phase { kStart, kLeft, kPrefillBody, kPrefill, kDecode };

  Session(const Model& model, SessionPlan plan, const std::atomic<bool>* cancel);
  Status run(Phase phase, std::span<const int32_t> tokens, bool of_prompt);
  Status measure_recall();
  Status bound_keys(Prepared& to, int64_t layer, int64_t begin, int64_t end,
                    std::span<const std::byte> bytes);
  Result<Prepared*> prepared_for(Phase phase);
  const Program& program(Phase phase) const;
  Status plan_again(double link_bytes_per_s);
  Status open_scratch(const WrapTier& wrap);
  // The Program that runs next, or ran last: what knows where KV is now.
  Result<Prepared*> holder();
  // Calls fn(tensor name, first byte in it, first byte of all, bytes) for each run of tiles in a slot.
  template <typename Fn>
  Status for_slots(int64_t layer, int64_t begin, int64_t end, size_t bytes, Fn fn) const;
  void look_at_kv();
  void look_at_places();
  void commit_tile_ahead();

  const Model& model_;
  SessionPlan plan_;
  const std::atomic<bool>* cancel_;
  std::unique_ptr<Arena> arena_;
  std::unique_ptr<FileTier> tier_;
  std::unique_ptr<Tier> scratch_;
  std::unique_ptr<ThreadPool> pool_;
  std::unique_ptr<Executor> executor_;
  std::map<std::pair<Phase, Phase>, PreparedPtr> programs_;  // (from, to)
  Phase phase_ = Phase::kStart;
  std::vector<Placed> state_;  // what the Program that ran last left on the device
  RateMonitor monitor_;
  double new_rate_ = 0;  // of the link, when it is time to plan again; else 0
  int replans_ = 0;
  int64_t position_ = 0;
  int64_t tail_tile_ = 0;  // which tile the tails hold
  int64_t sealed_ = 0;     // tiles that were sealed since the last reset: windows end there
  // How the slots are laid out, from the Graph.
  int64_t slot_tiles_ = 1;
  int64_t window_tiles_ = 0;             // that layers with a window hold; 0: as many as all others
  std::vector<int64_t> layer_segments_;  // by layer
  std::vector<std::vector<Bytes>> slot_offsets_;
  int64_t selected_ = 0;       // segments that a step selects; 0: it attends all
  int64_t sparse_steps_ = 0;
  int64_t checks_ = 0;
  double recall_sum_ = 0;
  // By layer, of KV that is written: the tile that comes next, the bounds of its segment's keys.
  std::vector<int64_t> bounded_;
  std::vector<std::vector<float>> bounds_;
  StepRows rows_;
  Trace trace_;
  Prepared* last_ = nullptr;
  std::function<void(int64_t)> on_step_;
};

}  // namespace headrace
