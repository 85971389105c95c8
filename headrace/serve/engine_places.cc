// EngineCore: who has a place, and where sequences begin.
#include <algorithm>
#include <limits>

#include "headrace/base/system.h"
#include "headrace/serve/engine_core.h"

namespace headrace {
namespace {

constexpr int kDiskWait = 64;  // turns

}  // namespace

std::vector<ChoiceView> EngineCore::views(bool running) const {
  std::vector<ChoiceView> out;
  for (const auto& [id, c] : choices_) {
    const Work& w = jobs_.at(c.job);
    // The others fork from, or adopt, what the first has read.
    if (c.running != running || (c.number > 0 && !w.read)) continue;
    ChoiceView v;
    v.id = id;
    v.job = c.job;
    v.priority = w.job.priority;
    v.arrival = c.job;
    v.number = c.number;
    v.worst = w.worst;
    v.shared = w.shared;
    v.unread = unread(c);
    v.on_disk = c.on_disk;
    out.push_back(v);
  }
  return out;
}

void EngineCore::place() {
  const auto queued = views(false);
  if (queued.empty()) return;
  ScheduleLimits limits = limits_;
  if (disk_wait_ > 0) {
    --disk_wait_;
    limits.disk_blocks = limits.disk_sequences = 0;
  }
  const Placement p = place_choices(limits, views(true), queued);
  for (int32_t id : p.preempt) {
    if (preempt(&choices_.at(id))) {
      if (drafter_ != nullptr) drafter_->forget(id);
      continue;
    }
    disk_wait_ = kDiskWait;
    return;
  }
  for (int32_t id : p.start)
    if (choices_.contains(id)) start(id);  // not when its job has ended with another's error
}

// False: it did not leave memory whole, and runs on.
bool EngineCore::preempt(Choice* c) {
  const Result<int64_t> stay = session_->preempt(c->sequence);
  if (!stay.ok()) return false;
  c->running = false;
  c->on_disk = true;
  if (*stay == 0) {
    counts_.preemptions += session_->length(c->sequence) > 0;  // else nothing was sent to disk
    return true;
  }
  c->running = session_->resume(c->sequence).ok();
  return false;
}

void EngineCore::start(int32_t id) {
  Choice& c = choices_.at(id);
  const Status status = c.on_disk ? resume(&c) : begin(&c);
  c.running = status.ok();
  if (!status.ok()) strike(c.job, status);
}

Status EngineCore::resume(Choice* c) {
  Status status = session_->resume(c->sequence);
  if (!status.ok()) {
    // Its tail did not come back: without it the rest is as good as ever.
    HR_TRY(session_->truncate(c->sequence, round_down(session_->length(c->sequence), kKvTile))
               .status());
    HR_TRY(session_->resume(c->sequence));
  }
  ++counts_.resumptions;
  (void)session_->prefetch(c->sequence);  // what does not come now comes with the step
  return {};
}

// Another choice of the job that has a sequence.
const EngineCore::Choice* EngineCore::sibling(const Choice& c) const {
  for (const auto& [id, other] : choices_)
    if (other.job == c.job && other.sequence.valid()) return &other;
  return nullptr;
}

Status EngineCore::begin(Choice* c) {
  Work& w = jobs_.at(c->job);
  const Choice* source = sibling(*c);
  // The last token of the prompt is read by each, for its logits.
  const auto prompt = static_cast<int64_t>(w.job.prompt.size());
  Result<KvSequence> sequence = source == nullptr ? session_->open()
                                                  : session_->fork(source->sequence, prompt - 1);
  if (!sequence.ok() && source != nullptr) sequence = session_->open();  // its tail did not come
  HR_TRY(sequence.status());
  c->sequence = *sequence;
  c->tokens = w.job.prompt;
  c->text = std::make_unique<ChoiceText>(w.job, c->number, model_.tokenizer, &scratch_);
  if (w.began >= 0) return {};
  w.began = monotonic_ns();
  w.usage.queued_ns = w.began - w.arrived;
  counts_.queue_wait.add(static_cast<double>(w.usage.queued_ns) * 1e-9);
  counts_.prompt_tokens += prompt;
  return {};
}

// Once, when the choice is about to read: what others have read since it came is there by then.
// True: it has less to read now.
bool EngineCore::look_up(Choice* c) {
  if (c->looked_up) return false;
  c->looked_up = true;
  if (session_->length(c->sequence) > 0) return false;
  const auto known = std::span<const int32_t>(c->tokens).first(c->tokens.size() - 1);
  (void)session_->adopt(c->sequence, known);  // refuses nothing that is empty
  if (prefix_ != nullptr) {
    const auto blocks = prefix_->look_up(c->sequence, c->tokens);
    c->to_come = blocks.ok() ? *blocks : 0;
  }
  if (c->to_come > 0) restore(c);
  else count_known(c);
  return c->to_come > 0 || session_->length(c->sequence) > 0;
}

// What it does not have to read.
void EngineCore::count_known(Choice* c) {
  const int64_t there = session_->length(c->sequence);
  if (c->number > 0) return;
  jobs_.at(c->job).usage.cached_tokens = there;
  counts_.cached_tokens += there;
}

// Blocks of a long prompt may take as long to come back as several steps: beside rows that decode
// they come a few a turn, within half of what `stretch` leaves. Without such rows all come.
void EngineCore::restore() {
  int64_t decoding = 0;
  for (const auto& [id, c] : choices_) decoding += c.running && unread(c) == 1;
  const double share = (options_.stretch - 1) / 2;
  restore_until_ = decoding == 0 ? std::numeric_limits<Nanos>::max()
                                 : monotonic_ns() + static_cast<Nanos>(
                                       share * static_cast<double>(step_ns(decoding)));
  for (auto& [id, c] : choices_)
    if (c.running && c.to_come > 0) restore(&c);
}

// One block at least.
void EngineCore::restore(Choice* c) {
  do {
    c->to_come = prefix_->restore_next(c->sequence, c->tokens);
  } while (c->to_come > 0 && monotonic_ns() < restore_until_);
  if (c->to_come == 0) count_known(c);
}

}  // namespace headrace
