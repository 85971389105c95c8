#include "headrace/session/session.h"

#include <algorithm>

namespace headrace {

Session::Session(const Model& model, SessionPlan plan, const std::atomic<bool>* cancel)
    : model_(model), plan_(std::move(plan)), cancel_(cancel) {}

Session::~Session() {
  // The executor waits for transfers into the arena; then the tier and the arena may go.
  programs_.clear();
  executor_.reset();
  tier_.reset();
}

Result<std::unique_ptr<Session>> Session::start(const Model& model, SessionPlan plan,
                                                const std::atomic<bool>* cancel) {
  std::unique_ptr<Session> s(new Session(model, std::move(plan), cancel));
  HR_ASSIGN(Arena arena, Arena::create(s->plan_.arena_bytes));
  s->arena_ = std::make_unique<Arena>(std::move(arena));
  FileTierOptions options;
  options.max_tickets = 1024;
  HR_ASSIGN(s->tier_, open_file_tier(model.file.paths, s->arena_.get(), options));
  s->pool_ = std::make_unique<ThreadPool>(s->plan_.options.threads);
  s->executor_ = std::make_unique<Executor>(
      *s->arena_, std::vector<Tier*>{nullptr, s->tier_.get()}, *s->pool_);
  s->trace_.records.reserve(s->plan_.decode.instrs.size());
  return s;
}

const Program& Session::program(Phase phase) const {
  switch (phase) {
    case Phase::kPrefillBody: return plan_.prefill_body;
    case Phase::kPrefill: return plan_.prefill;
    default: return plan_.decode;
  }
}

Result<Prepared*> Session::prepared_for(Phase phase) {
  PreparedPtr& slot = programs_[{phase_, phase}];
  if (slot != nullptr) return slot.get();
  const Program& target = program(phase);
  if (phase_ == phase) {
    HR_ASSIGN(slot, executor_->prepare(target));
    return slot.get();
  }
  std::vector<Placed> state;
  if (phase_ != Phase::kStart) state = exit_state(program(phase_));
  HR_ASSIGN(Program bridge, plan_bridge(target, state));
  HR_ASSIGN(slot, executor_->prepare(std::move(bridge)));
  return slot.get();
}

Status Session::run(Phase phase, std::span<const int32_t> tokens) {
  HR_ASSIGN(Prepared* prepared, prepared_for(phase));
  const int64_t n = static_cast<int64_t>(tokens.size());
  rows_.tokens.assign(tokens.begin(), tokens.end());
  rows_.sequences.assign(tokens.size(), 0);
  rows_.positions.clear();
  rows_.output_rows.clear();
  for (int64_t i = 0; i < n; ++i) {
    rows_.positions.push_back(static_cast<int32_t>(position_ + i));
    const bool wanted = phase != Phase::kPrefillBody && (plan_.options.all_logits || i == n - 1);
    if (wanted) {
      rows_.output_rows.push_back(static_cast<int32_t>(i));
    }
  }
  HR_TRY(executor_->run(*prepared, rows_, &trace_, cancel_));
  position_ += n;
  phase_ = phase;
  last_ = prepared;
  return {};
}

Result<std::span<const float>> Session::append(std::span<const int32_t> tokens) {
  HR_CHECK(!tokens.empty(), "something to append");
  const int64_t n = static_cast<int64_t>(tokens.size());
  if (position_ + n > plan_.context) {
    return error(Code::kUsage, "%lld tokens after position %lld exceed the context of %lld",
                 static_cast<long long>(n), static_cast<long long>(position_),
                 static_cast<long long>(plan_.context));
  }
  for (int32_t t : tokens) {
    if (t < 0 || t >= model_.config.vocab) {
      return error(Code::kUsage, "token %d is outside the vocabulary of %lld", t,
                   static_cast<long long>(model_.config.vocab));
    }
  }
  int64_t last_rows = 1;
  for (int64_t at = 0; at < n; at += last_rows) {
    const int64_t left = n - at;
    const bool decode = left == 1 || plan_.chunk == 1;
    const bool body = left > plan_.chunk && plan_.prefill_body.graph != nullptr;
    last_rows = decode ? 1 : std::min(left, plan_.chunk);
    const Phase phase =
        decode ? Phase::kDecode : body ? Phase::kPrefillBody : Phase::kPrefill;
    HR_TRY(run(phase, tokens.subspan(static_cast<size_t>(at), static_cast<size_t>(last_rows))));
  }
  const std::span<const float> all = executor_->output(*last_, "logits");
  const int64_t rows = plan_.options.all_logits ? last_rows : 1;
  return all.first(static_cast<size_t>(rows * model_.config.vocab));
}

}  // namespace headrace
