#include "headrace/session/session.h"

#include <algorithm>

#include "headrace/sim/simulate.h"

namespace headrace {

Session::Session(const Model& model, SessionPlan plan, const std::atomic<bool>* cancel)
    : model_(model),
      plan_(std::move(plan)),
      cancel_(cancel),
      monitor_(plan_.options.machine.tiers[1].load_bytes_per_s) {}

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
  // Registering would fault in and pin the whole arena before the first load, and cost kernel memory
  // for every page of it: 0.4 s of the time to the first token of a 1.1 GB model, for 3 ms of CPU a
  // gigabyte read (decision 0003).
  options.register_buffers = false;
  HR_ASSIGN(s->tier_, open_file_tier(model.file.paths, s->arena_.get(), options));
  if (s->tier_->describe().memory_bytes > kTransferMemory) {
    return error(Code::kDoesNotFit, "%s takes %lld bytes of buffers, %lld are reserved",
                 s->tier_->describe().method.c_str(),
                 static_cast<long long>(s->tier_->describe().memory_bytes),
                 static_cast<long long>(kTransferMemory));
  }
  s->pool_ = std::make_unique<ThreadPool>(s->plan_.options.threads);
  if (s->pool_->size() < s->plan_.options.threads) {
    return error(Code::kIo, "the system started only %d of %d threads; choose fewer (--threads)",
                 s->pool_->size(), s->plan_.options.threads);
  }
  s->executor_ = std::make_unique<Executor>(
      *s->arena_, std::vector<Tier*>{nullptr, s->tier_.get()}, *s->pool_);
  size_t longest = 0;
  for (const Program* p : {&s->plan_.decode, &s->plan_.prefill, &s->plan_.prefill_body}) {
    longest = std::max(longest, p->instrs.size() + p->residencies.size());
  }
  s->trace_.records.reserve(longest);  // a bridge adds at most a load for each residency
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
  // A prefill that gives logits is the last of its prompt: it loads nothing for a next cycle.
  const bool last = phase == Phase::kPrefill;
  if (phase_ == phase && !last) {
    HR_ASSIGN(slot, executor_->prepare(target));
    return slot.get();
  }
  HR_ASSIGN(Program bridge,
            plan_bridge(target, state_, last ? Ending::kStop : Ending::kCycle));
  HR_ASSIGN(slot, executor_->prepare(std::move(bridge)));
  return slot.get();
}

// Takes the measured rate for granted; keeps the running plan unless a new one is 5 % faster.
Status Session::plan_again(double link_bytes_per_s) {
  constexpr double kGain = 0.95;
  Machine& machine = plan_.options.machine;
  machine.tiers[1].load_bytes_per_s = link_bytes_per_s;
  PlanRequest request;
  request.name = "decode";
  request.graph = plan_.decode.graph;
  request.machine = &machine;
  request.arena_bytes = plan_.arena_bytes;
  request.cost = plan_.decode_cost;
  HR_ASSIGN(Program better, plan_cyclic(request));
  plan_.decode.tiers[1].load_bytes_per_s = link_bytes_per_s;
  const Nanos now = simulate(plan_.decode).total_ns;
  if (static_cast<double>(simulate(better).total_ns) > kGain * static_cast<double>(now)) return {};
  std::erase_if(programs_, [](const auto& entry) {
    const auto [from, to] = entry.first;
    return from == Phase::kDecode || to == Phase::kDecode || from == Phase::kLeft;
  });
  phase_ = Phase::kLeft;
  last_ = nullptr;  // until the next step, which follows at once
  plan_.decode = std::move(better);
  ++replans_;
  return {};
}

Status Session::run(Phase phase, std::span<const int32_t> tokens) {
  if (phase == Phase::kDecode && phase_ == Phase::kDecode && new_rate_ > 0) {
    HR_TRY(plan_again(std::exchange(new_rate_, 0)));
  }
  const bool steady = phase == Phase::kDecode && phase_ == phase;
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
  const bool same = prepared == last_;
  last_ = prepared;
  HR_TRY(executor_->run(*prepared, rows_, &trace_, cancel_));
  if (!same) state_ = exit_state(Executor::program_of(*prepared));
  // The way in from nothing is gone once.
  std::erase_if(programs_, [&](const auto& entry) {
    return entry.first.first == Phase::kStart && entry.second.get() != prepared;
  });
  if (steady) {
    const auto rate = monitor_.add(trace_.loaded_bytes, trace_.total_ns, trace_.stall_ns);
    if (rate) new_rate_ = *rate;
  }
  position_ += n;
  phase_ = phase;
  return {};
}

void Session::rewind(int64_t position) {
  HR_CHECK(position >= 0 && position <= position_, "a session rewinds to where it has been");
  position_ = position;
}

Result<std::span<const float>> Session::append(std::span<const int32_t> tokens) {
  if (tokens.empty()) return error(Code::kUsage, "there are no tokens to append");
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
    if (on_step_) on_step_(at + last_rows);
  }
  const std::span<const float> all = executor_->output(*last_, "logits");
  const int64_t rows = plan_.options.all_logits ? last_rows : 1;
  return all.first(static_cast<size_t>(rows * model_.config.vocab));
}

}  // namespace headrace
