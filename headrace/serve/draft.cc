#include "headrace/serve/draft.h"

#include <algorithm>
#include <string>
#include <utility>

#include "headrace/base/system.h"
#include "headrace/base/system_memory.h"

namespace headrace {
namespace {

// How many tokens before `end` are those before the end of `tokens`, at most
// PromptLookup::kLongest.
int64_t alike(std::span<const int32_t> tokens, int64_t end) {
  const int64_t last = static_cast<int64_t>(tokens.size());
  int64_t n = 0;
  while (n < PromptLookup::kLongest && n < end &&
         tokens[static_cast<size_t>(end - 1 - n)] == tokens[static_cast<size_t>(last - 1 - n)])
    ++n;
  return n;
}

int32_t likeliest(std::span<const float> logits) {
  return static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

}  // namespace

// --- Prompt lookup.

void PromptLookup::propose(std::span<DraftAsk> asks) {
  for (DraftAsk& ask : asks) {
    ask.draft.clear();
    const int64_t size = static_cast<int64_t>(ask.tokens.size());
    int64_t best = 0, from = 0;
    for (int64_t end = size - 1; end >= kLeast && best < kLongest && ask.most > 0; --end) {
      const int64_t n = alike(ask.tokens, end);
      if (n <= best) continue;
      best = n;
      from = end;
    }
    if (best < kLeast) continue;
    // A text that repeats itself goes on into what was drafted.
    for (int64_t i = 0; i < ask.most; ++i) {
      const int64_t at = from + i;
      ask.draft.push_back(at < size ? ask.tokens[static_cast<size_t>(at)]
                                    : ask.draft[static_cast<size_t>(at - size)]);
    }
  }
}

// --- A draft model.

Result<std::unique_ptr<DraftModel>> DraftModel::open(const Model& target, const Model& model,
                                                     std::unique_ptr<BatchSession> session) {
  const Tokenizer &a = target.tokenizer, &b = model.tokenizer;
  if (a.size() != b.size() || target.config.vocab < model.config.vocab)
    return error(Code::kUnsupported,
                 "the draft model has another vocabulary: %d tokens and %lld logits, the model %d "
                 "and %lld", b.size(), static_cast<long long>(model.config.vocab), a.size(),
                 static_cast<long long>(target.config.vocab));
  for (int32_t i = 0; i < a.size(); ++i) {
    if (a.text(i) == b.text(i)) continue;
    return error(Code::kUnsupported,
                 "the draft model has another vocabulary: token %d is '%s', the model's '%s'", i,
                 std::string(b.text(i)).c_str(), std::string(a.text(i)).c_str());
  }
  return std::unique_ptr<DraftModel>(new DraftModel(std::move(session), model.config.vocab));
}

// The follower of a choice, cut to what it holds of the choice's tokens but the last; null when the
// session has no place for one.
DraftModel::Follower* DraftModel::follow(const DraftAsk& ask) {
  const auto known = ask.tokens.first(ask.tokens.size() - 1);
  auto it = followers_.find(ask.choice);
  if (it == followers_.end()) {
    const auto sequence = session_->open();
    if (!sequence.ok()) return nullptr;
    it = followers_.insert({ask.choice, {*sequence, {}}}).first;
    if (const auto there = session_->adopt(*sequence, known); there.ok())
      it->second.held.assign(known.begin(), known.begin() + *there);
  }
  Follower& f = it->second;
  const size_t most = std::min(f.held.size(), known.size());
  const auto differs =
      std::mismatch(f.held.begin(), f.held.begin() + static_cast<std::ptrdiff_t>(most),
                    known.begin()).first;
  cut(&f, differs - f.held.begin());
  return &f;
}

void DraftModel::cut(Follower* f, int64_t positions) {
  if (positions == static_cast<int64_t>(f->held.size())) return;
  const auto kept = session_->truncate(f->sequence, positions);
  HR_CHECK(kept.ok(), "a follower's sequence is open");
  f->held.resize(static_cast<size_t>(*kept));
}

void DraftModel::propose(std::span<DraftAsk> asks) {
  for (DraftAsk& ask : asks) ask.draft.clear();
  if (pause_ > 0) {
    --pause_;
    return;
  }
  if (session_->failed() && !session_->recover().ok()) return give_up();
  int64_t blocks = 0;  // that followers hold, or will after this
  for (const auto& [choice, f] : followers_) blocks += blocks_of(f.held.size());
  std::vector<Writing> writing;
  for (DraftAsk& ask : asks) {
    if (!follows(ask)) continue;
    const auto it = followers_.find(ask.choice);
    if (it != followers_.end()) blocks -= blocks_of(it->second.held.size());
    const int64_t wanted = blocks_of(ask.tokens.size() + static_cast<size_t>(ask.most));
    if (blocks + wanted > session_->plan().options.blocks) {  // those before it are followed
      forget(ask.choice);
      continue;
    }
    blocks += wanted;
    if (Follower* f = follow(ask)) writing.push_back({&ask, f, {}});
  }
  while (!writing.empty()) {
    if (!advance(&writing)) return give_up();
  }
}

int64_t DraftModel::blocks_of(size_t tokens) const {
  return session_->plan().blocks_of(static_cast<int64_t>(tokens));
}

bool DraftModel::follows(const DraftAsk& ask) const {
  const auto size = static_cast<int64_t>(ask.tokens.size());
  return ask.most > 0 && size > 0 && size + ask.most <= session_->plan().options.context;
}

// One step: what each follower has not read of its choice's tokens and draft, as far as rows go.
// Where that is all of it the draft grows by a token; what is done is taken off the list. False:
// the step failed.
bool DraftModel::advance(std::vector<Writing>* writing) {
  std::vector<BatchSession::Part> parts;
  int64_t room = session_->plan().options.step_rows;
  for (Writing& w : *writing) {
    const std::span<const int32_t> tokens = w.ask->tokens;
    w.rows.clear();
    for (size_t i = w.follower->held.size(); i < tokens.size() + w.ask->draft.size(); ++i)
      w.rows.push_back(i < tokens.size() ? tokens[i] : w.ask->draft[i - tokens.size()]);
    w.whole = static_cast<int64_t>(w.rows.size()) <= room;
    if (!w.whole) w.rows.resize(static_cast<size_t>(room));
    room -= static_cast<int64_t>(w.rows.size());
    if (!w.rows.empty()) parts.push_back({w.follower->sequence, w.rows, w.whole ? 1 : 0});
  }
  const Nanos begin = monotonic_ns();
  auto logits = session_->step(parts);
  if (!logits.ok()) return false;
  const int64_t rows = session_->plan().options.step_rows - room;
  if (session_->steady()) times_.add(rows, monotonic_ns() - begin);
  const size_t vocab = static_cast<size_t>(vocab_);
  size_t part = 0, row = 0;
  for (Writing& w : *writing) {
    if (w.rows.empty()) continue;
    const BatchSession::Part& p = parts[part++];
    if (!p.status.ok()) {
      cut(w.follower, p.sound);
      w.whole = false;
      continue;
    }
    w.follower->held.insert(w.follower->held.end(), w.rows.begin(), w.rows.end());
    if (w.whole) w.ask->draft.push_back(likeliest(logits->subspan(row++ * vocab, vocab)));
  }
  std::erase_if(*writing, [](const Writing& w) {
    return !w.whole || static_cast<int64_t>(w.ask->draft.size()) >= w.ask->most;
  });
  return true;
}

// After a step that failed: nobody's sequence is as it was noted, and what failed will not be
// better at once.
void DraftModel::give_up() {
  ++failures_;
  pause_ = kPause;
  for (auto& [choice, f] : followers_) (void)session_->close(f.sequence);
  followers_.clear();
}

void DraftModel::forget(int32_t choice) {
  const auto it = followers_.find(choice);
  if (it == followers_.end()) return;
  (void)session_->close(it->second.sequence);
  followers_.erase(it);
}

Result<BatchPlan> plan_draft(const Model& model, const BatchOptions& target, Bytes share) {
  BatchOptions o = target;
  o.memory_bytes = round_up(process_memory().rss, kMiB) + share;
  o.speculate = o.beside_bytes = o.kv_disk_bytes = 0;
  o.kv_folder.clear();
  o.blocks = 0;
  return plan_batch(model, o);
}

Bytes draft_memory(const BatchPlan& plan) {
  // The first item is what the process held.
  return plan.ledger.reserved() - plan.ledger.items().front().bytes;
}

// --- What pays.

void Acceptance::add(int64_t drafted, int64_t accepted) {
  hits_ = hits_ * kFade + static_cast<double>(accepted);
  tries_ = tries_ * kFade + static_cast<double>(accepted + (accepted < drafted ? 1 : 0));
}

void Acceptance::skip() {
  hits_ *= kForget;
  tries_ *= kForget;
}

std::vector<int64_t> choose_drafts(std::span<const DraftBid> bids, int64_t rows, int64_t room,
                                   const StepTimes& times,
                                   const std::function<Nanos(int64_t)>& token_ns) {
  struct Guess {
    double reached;
    size_t choice;
    int64_t depth;
  };
  std::vector<Guess> guesses;
  for (size_t i = 0; i < bids.size(); ++i) {
    double reached = 1;
    for (int64_t d = 0; d < bids[i].most; ++d)
      guesses.push_back({reached *= bids[i].acceptance, i, d});
  }
  std::stable_sort(guesses.begin(), guesses.end(),
                   [](const Guess& a, const Guess& b) { return a.reached > b.reached; });
  const size_t most = std::min(guesses.size(), static_cast<size_t>(std::max<int64_t>(room, 0)));
  std::vector<int64_t> drafting;  // choices by depth
  double tokens = static_cast<double>(bids.size());
  const auto rate = [&](size_t taken) {
    double ns = static_cast<double>(times(rows + static_cast<int64_t>(taken)));
    for (int64_t choices : drafting) ns += static_cast<double>(token_ns(choices));
    return tokens / ns;
  };
  double best = rate(0);
  size_t taken = 0;
  for (size_t i = 0; i < most; ++i) {
    const auto depth = static_cast<size_t>(guesses[i].depth);
    if (drafting.size() <= depth) drafting.resize(depth + 1);
    ++drafting[depth];
    tokens += guesses[i].reached;
    if (const double now = rate(i + 1); now > best) {
      best = now;
      taken = i + 1;
    }
  }
  std::vector<int64_t> out(bids.size());
  for (size_t i = 0; i < taken; ++i) ++out[guesses[i].choice];
  return out;
}

int64_t draft_room(int64_t length) {
  return std::max<int64_t>(0, kKvTile - 2 - length % kKvTile);
}

}  // namespace headrace
