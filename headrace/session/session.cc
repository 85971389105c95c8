#include "headrace/session/session.h"

#include <algorithm>
#include <cstring>
#include <memory>

#include "headrace/kernel/select_kv.h"
#include "headrace/session/kv_choice.h"
#include "headrace/session/open_tiers.h"
#include "headrace/sim/simulate.h"
#include "headrace/tier/checksum_tier.h"

namespace headrace {
namespace {

constexpr int kKvTickets = 256;
constexpr int64_t kStepsBetweenChecks = 64;

std::string keys_name(int64_t layer) {
  return text_of("kv.keys.%lld.0", static_cast<long long>(layer));
}

}  // namespace

Session::Session(const Model& model, SessionPlan plan, const std::atomic<bool>* cancel)
    : model_(model),
      plan_(std::move(plan)),
      cancel_(cancel),
      monitor_(plan_.options.machine.tiers[1].load_bytes_per_s) {}

Session::~Session() {
  // The executor waits for transfers into the arena; then the tier and the arena may go.
  programs_.clear();
  executor_.reset();
  scratch_.reset();
  tier_.reset();
}

// The copies of KV, whose bytes are checked when they come back.
Status Session::open_scratch(const WrapTier& wrap) {
  HR_ASSIGN(scratch_, open_kv_file(plan_.options.kv_folder, plan_.kv_disk_bytes, kKvTickets,
                                   arena_.get()));
  if (wrap) {
    HR_ASSIGN(scratch_, wrap(std::move(scratch_)));
  }
  scratch_ = make_checksum_tier(std::move(scratch_), {std::max(kPage, plan_.kv_disk_bytes)},
                                kKvTickets, pool_.get());
  return {};
}

// Where slots lie that stay in memory, by layer and segment; -1: not there.
void Session::look_at_places() {
  slot_offsets_.clear();
  for (int64_t segments : layer_segments_) {
    slot_offsets_.emplace_back(static_cast<size_t>(segments), Bytes{-1});
  }
  for (const Residency& r : plan_.decode.residencies) {
    if (r.tier != kDevice || !r.tensor.valid() || r.begin != kEntry) continue;
    const KvSlot& slot = plan_.decode.graph->at(r.tensor).slot;
    if (slot.layer < 0 || r.end != plan_.decode.exit()) continue;
    slot_offsets_[static_cast<size_t>(slot.layer)][static_cast<size_t>(slot.segment)] = r.offset;
  }
}

// A tile is first written when it is sealed, in all layers by the same step: the kernel would find
// (and clear) a huge page for each of them then, 3 ms a layer. The 64 steps before that share it.
void Session::commit_tile_ahead() {
  const ModelConfig& c = model_.config;
  const Bytes bytes = kv_tile_bytes(plan_.options.kv_format, c.kv_heads, c.head_dim);
  const int64_t tile = position_ / kKvTile, step = position_ % kKvTile;
  const int64_t end = (step + 1) * c.layers / kKvTile;
  for (int64_t layer = step * c.layers / kKvTile; layer < end; ++layer) {
    const auto& offsets = slot_offsets_[static_cast<size_t>(layer)];
    if (offsets.empty()) continue;
    const Bytes offset = offsets[static_cast<size_t>(tile / slot_tiles_) % offsets.size()];
    if (offset >= 0) arena_->touch(offset + tile % slot_tiles_ * bytes, bytes);
  }
}

void Session::look_at_kv() {
  layer_segments_.assign(static_cast<size_t>(model_.config.layers), 0);
  for (const Tensor& t : plan_.decode.graph->tensors) {
    if (t.slot.layer < 0) continue;
    slot_tiles_ = t.rows;
    ++layer_segments_[static_cast<size_t>(t.slot.layer)];
  }
  for (int64_t layer = 0; layer < model_.config.layers; ++layer) {
    const int64_t tiles = layer_segments_[static_cast<size_t>(layer)] * slot_tiles_;
    if (tiles * kKvTile < plan_.context) window_tiles_ = tiles;
  }
  look_at_places();
  bounded_.assign(static_cast<size_t>(model_.config.layers), 0);
  bounds_.assign(static_cast<size_t>(model_.config.layers), {});
  if (plan_.options.sparse_tokens == 0) return;
  selected_ = std::max(kLeastSegments, plan_.options.sparse_tokens / (slot_tiles_ * kKvTile));
  const int64_t cols = key_bounds_cols(model_.config.kv_heads, model_.config.head_dim);
  for (int64_t layer = 0; layer < model_.config.layers; ++layer) {
    if (model_.config.is_local(layer)) continue;
    bounds_[static_cast<size_t>(layer)].resize(static_cast<size_t>(cols));
  }
}

Result<std::unique_ptr<Session>> Session::start(const Model& model, SessionPlan plan,
                                                const std::atomic<bool>* cancel,
                                                const WrapTier& wrap_scratch) {
  std::unique_ptr<Session> s(new Session(model, std::move(plan), cancel));
  HR_ASSIGN(Arena arena, Arena::create(s->plan_.arena_bytes));
  s->arena_ = std::make_unique<Arena>(std::move(arena));
  HR_ASSIGN(s->tier_, open_weights(model, s->arena_.get()));
  s->pool_ = std::make_unique<ThreadPool>(s->plan_.options.threads);
  if (s->pool_->size() < s->plan_.options.threads) {
    return error(Code::kIo, "the system started only %d of %d threads; choose fewer (--threads)",
                 s->pool_->size(), s->plan_.options.threads);
  }
  std::vector<Tier*> tiers = {nullptr, s->tier_.get()};
  ExecutorOptions execute;
  if (s->plan_.kv_streamed) {
    HR_TRY(s->open_scratch(wrap_scratch));
    tiers.push_back(s->scratch_.get());
    execute.copies.resize(tiers.size());
    execute.copies[kScratchTier.index()] = {0, 0, std::max(kPage, s->plan_.kv_disk_bytes)};
  }
  s->executor_ =
      std::make_unique<Executor>(*s->arena_, std::move(tiers), *s->pool_, std::move(execute));
  s->look_at_kv();
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
  if (plan_.kv_streamed) request.kv_tier = kScratchTier;
  HR_ASSIGN(Program better, plan_cyclic(request));
  plan_.decode.tiers[1].load_bytes_per_s = link_bytes_per_s;
  const StepRows rows = typical_rows(*request.graph, position_);
  const SimOptions as_now{.tiers = {}, .rows = &rows};
  const Nanos now = simulate(plan_.decode, as_now).total_ns;
  if (static_cast<double>(simulate(better, as_now).total_ns) >
      kGain * static_cast<double>(now)) {
    return {};
  }
  std::erase_if(programs_, [](const auto& entry) {
    const auto [from, to] = entry.first;
    return from == Phase::kDecode || to == Phase::kDecode || from == Phase::kLeft;
  });
  phase_ = Phase::kLeft;
  last_ = nullptr;  // until the next step, which follows at once
  plan_.decode = std::move(better);
  look_at_places();
  ++replans_;
  return {};
}

Status Session::run(Phase phase, std::span<const int32_t> tokens, bool of_prompt) {
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
  const bool selects = selected_ > 0 && phase == Phase::kDecode &&
                       position_ / (slot_tiles_ * kKvTile) >= selected_;
  const bool check = selects && !of_prompt && ++sparse_steps_ % kStepsBetweenChecks == 0;
  rows_.dense = of_prompt || check;
  const bool same = prepared == last_;
  last_ = prepared;
  HR_TRY(executor_->run(*prepared, rows_, &trace_, cancel_));
  if (check) HR_TRY(measure_recall());
  if (!same) state_ = exit_state(Executor::program_of(*prepared));
  // The way in from nothing is gone once.
  std::erase_if(programs_, [&](const auto& entry) {
    return entry.first.first == Phase::kStart && entry.second.get() != prepared;
  });
  if (steady) {
    const auto rate = monitor_.add(trace_.loaded_bytes, trace_.total_ns, trace_.stall_ns);
    if (rate) new_rate_ = *rate;
  }
  if (phase == Phase::kDecode) commit_tile_ahead();
  position_ += n;
  // A tile just sealed stays in the tails until the next one begins.
  tail_tile_ = (position_ - 1) / kKvTile;
  sealed_ = std::max(sealed_, position_ / kKvTile);
  phase_ = phase;
  return {};
}

Status Session::measure_recall() {
  const int64_t cols = key_bounds_cols(model_.config.kv_heads, model_.config.head_dim);
  double sum = 0;
  int64_t layers = 0;
  for (int64_t layer = 0; layer < model_.config.layers; ++layer) {
    if (bounds_[static_cast<size_t>(layer)].empty()) continue;
    float share = 0;
    HR_TRY(executor_->read_state(*last_, keys_name(layer),
                                 std::as_writable_bytes(std::span(&share, 1)),
                                 layer_segments_[static_cast<size_t>(layer)] * cols * 4));
    sum += static_cast<double>(share);
    ++layers;
  }
  recall_sum_ += sum / static_cast<double>(layers);
  ++checks_;
  return {};
}

Session::SparseRecall Session::sparse_recall() const {
  SparseRecall out;
  if (selected_ == 0) return out;
  out.selected = selected_;
  out.segments = *std::max_element(layer_segments_.begin(), layer_segments_.end());
  out.checks = checks_;
  if (checks_ > 0) out.recall = recall_sum_ / static_cast<double>(checks_);
  return out;
}

int64_t Session::rewind(int64_t position) {
  HR_CHECK(position >= 0 && position <= position_, "a session rewinds to where it has been");
  if (position == position_) return position_;
  const bool exact = position / kKvTile == tail_tile_;
  position_ = exact ? position : round_down(position, kKvTile);
  const int64_t seen = std::max<int64_t>(0, position_ - model_.config.window + 1) / kKvTile;
  if (!holds_kv(seen)) reset();
  return position_;
}

bool Session::holds_kv(int64_t tile) const {
  return tile >= 0 && (window_tiles_ == 0 || tile >= sealed_ - window_tiles_);
}

Result<Prepared*> Session::holder() {
  return last_ != nullptr ? last_ : prepared_for(Phase::kDecode);
}

template <typename Fn>
Status Session::for_slots(int64_t layer, int64_t begin, int64_t end, size_t bytes, Fn fn) const {
  const ModelConfig& c = model_.config;
  const Bytes tile = kv_tile_bytes(plan_.options.kv_format, c.kv_heads, c.head_dim);
  if (layer < 0 || layer >= c.layers || begin < 0 || begin >= end ||
      end * kKvTile > round_up(plan_.context, kKvTile) ||
      bytes != static_cast<size_t>((end - begin) * tile)) {
    return error(Code::kUsage, "%zu bytes for tiles [%lld, %lld) of layer %lld", bytes,
                 static_cast<long long>(begin), static_cast<long long>(end),
                 static_cast<long long>(layer));
  }
  const int64_t segments = layer_segments_[static_cast<size_t>(layer)];
  for (int64_t at = begin; at < end;) {
    const int64_t in_slot = at % slot_tiles_;
    const int64_t count = std::min(end - at, slot_tiles_ - in_slot);
    const std::string name =
        text_of("kv.%lld.0.%lld", static_cast<long long>(layer),
                static_cast<long long>(at / slot_tiles_ % segments));
    HR_TRY(fn(name, in_slot * tile, (at - begin) * tile, count * tile));
    at += count;
  }
  return {};
}

Status Session::read_kv(int64_t layer, int64_t begin, int64_t end, std::span<std::byte> out) {
  if (end * kKvTile > position_ || !holds_kv(begin) || last_ == nullptr) {
    return error(Code::kUsage, "tiles [%lld, %lld) are not all there: %lld positions were read",
                 static_cast<long long>(begin), static_cast<long long>(end),
                 static_cast<long long>(position_));
  }
  return for_slots(layer, begin, end, out.size(),
                   [&](const std::string& name, Bytes from, Bytes at, Bytes bytes) {
                     return executor_->read_state(
                         *last_, name,
                         out.subspan(static_cast<size_t>(at), static_cast<size_t>(bytes)), from);
                   });
}

// As the steps that sealed these tiles did.
Status Session::bound_keys(Prepared& to, int64_t layer, int64_t begin, int64_t end,
                           std::span<const std::byte> bytes) {
  const ModelConfig& c = model_.config;
  if (selected_ == 0 || layer < 0 || layer >= c.layers) return {};
  std::vector<float>& row = bounds_[static_cast<size_t>(layer)];
  if (row.empty()) return {};
  int64_t& next = bounded_[static_cast<size_t>(layer)];
  const Bytes part = kv_tile_bytes(plan_.options.kv_format, 1, c.head_dim) / 2;
  const Bytes tile = 2 * part * c.kv_heads;
  if ((begin != next && begin != 0) || bytes.size() != static_cast<size_t>((end - begin) * tile)) {
    return error(Code::kUsage, "where KV is selected from, tiles are written in order: %lld, not %lld",
                 static_cast<long long>(next), static_cast<long long>(begin));
  }
  const int64_t d = padded_head_dim(c.head_dim);
  std::vector<float> scratch(static_cast<size_t>(kKvTile * d));
  std::vector<std::byte> aligned(static_cast<size_t>(part + kLine));
  for (int64_t t = begin; t < end; ++t) {
    for (int64_t g = 0; g < c.kv_heads; ++g) {
      void* at = aligned.data();
      size_t room = aligned.size();
      std::align(static_cast<size_t>(kLine), static_cast<size_t>(part), at, room);
      std::memcpy(at, bytes.data() + (t - begin) * tile + 2 * g * part, static_cast<size_t>(part));
      add_key_bounds(plan_.options.kv_format, static_cast<const std::byte*>(at), c.head_dim,
                     t % slot_tiles_ == 0, row.data() + 2 * g * d, scratch.data());
    }
    next = t + 1;
    if (next % slot_tiles_ != 0 && next != end) continue;
    const auto size = static_cast<Bytes>(row.size() * sizeof(float));
    HR_TRY(executor_->write_state(to, keys_name(layer), std::as_bytes(std::span(row)),
                                  t / slot_tiles_ * size));
  }
  return {};
}

Status Session::write_kv(int64_t layer, int64_t begin, int64_t end,
                         std::span<const std::byte> bytes) {
  HR_CHECK(position_ == 0, "KV of another session is written at the beginning");
  HR_ASSIGN(Prepared* to, holder());
  HR_TRY(bound_keys(*to, layer, begin, end, bytes));
  return for_slots(layer, begin, end, bytes.size(),
                   [&](const std::string& name, Bytes from, Bytes at, Bytes count) {
                     return executor_->write_state(
                         *to, name,
                         bytes.subspan(static_cast<size_t>(at), static_cast<size_t>(count)), from);
                   });
}

Status Session::set_position(int64_t position) {
  HR_CHECK(position_ == 0 && position >= 0 && position % kKvTile == 0,
           "a past that was written ends with a tile");
  if (position >= plan_.context) {
    return error(Code::kUsage, "%lld positions leave no room in a context of %lld",
                 static_cast<long long>(position), static_cast<long long>(plan_.context));
  }
  position_ = position;
  sealed_ = position / kKvTile;
  tail_tile_ = sealed_;  // empty
  return {};
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
    HR_TRY(run(phase, tokens.subspan(static_cast<size_t>(at), static_cast<size_t>(last_rows)),
               left > last_rows));
    if (on_step_) on_step_(at + last_rows);
  }
  const std::span<const float> all = executor_->output(*last_, "logits");
  const int64_t rows = plan_.options.all_logits ? last_rows : 1;
  return all.first(static_cast<size_t>(rows * model_.config.vocab));
}

}  // namespace headrace
