#include "headrace/session/batch_session.h"

#include <algorithm>
#include <utility>

#include "headrace/session/open_tiers.h"

namespace headrace {
namespace {

// More than there are groups of staging: a transfer never waits for a ticket.
constexpr int kBlockTickets = 64;

// Where the Program has a state tensor in memory, for good.
Result<Bytes> offset_of(const Program& p, const std::string& name) {
  for (const Residency& r : p.residencies) {
    if (!r.tensor.valid() || r.tier != kDevice || r.begin != kEntry || r.end != p.exit()) continue;
    if (p.graph->at(r.tensor).name == name && r.range.begin == 0) return r.offset;
  }
  return error(Code::kUsage, "program '%s' does not keep '%s' in memory", p.name.c_str(),
               name.c_str());
}

Executor::Moved sum(const Executor::Moved& a, const Executor::Moved& b) {
  return {a.loaded + b.loaded,
          a.gathered + b.gathered,
          a.stored + b.stored,
          a.load_wait_ns + b.load_wait_ns,
          a.kv_loaded + b.kv_loaded,
          a.kv_stored + b.kv_stored,
          a.kv_wait_ns + b.kv_wait_ns};
}

// All of it is committed now: what the process holds does not grow days later, when more sequences
// than ever run at once. A system that has not got it ends this process (or another) now, not then.
Result<std::unique_ptr<Arena>> arena_of(Bytes bytes, ThreadPool& pool) {
  HR_ASSIGN(Arena arena, Arena::create(bytes));
  pool.for_range(bytes, 2 * kMiB,
                 [&](Bytes begin, Bytes end, int) { arena.touch(begin, end - begin); });
  return std::make_unique<Arena>(std::move(arena));
}

}  // namespace

BatchSession::BatchSession(const Model& model, BatchPlan plan, const std::atomic<bool>* cancel)
    : model_(model), plan_(std::move(plan)), cancel_(cancel) {}

BatchSession::~BatchSession() {
  // These wait for transfers into the arenas; then tiers and arenas may go.
  cache_.reset();
  step_.reset();
  bridge_.reset();
  executor_.reset();
}

Result<std::unique_ptr<BatchSession>> BatchSession::start(const Model& model, BatchPlan plan,
                                                          const std::atomic<bool>* cancel,
                                                          const WrapTier& wrap_weights,
                                                          const WrapTier& wrap_blocks) {
  std::unique_ptr<BatchSession> s(new BatchSession(model, std::move(plan), cancel));
  s->wrap_weights_ = wrap_weights;
  const int threads = s->plan_.options.threads;
  {
    // Not the session's: that one pins this thread, and the tier's threads would be pinned with it.
    ThreadPool unpinned(threads, false);
    HR_ASSIGN(s->arena_, arena_of(s->plan_.arena_bytes, unpinned));
  }
  HR_TRY(s->open_weights_tier());
  s->pool_ = std::make_unique<ThreadPool>(threads);
  if (s->pool_->size() < threads) {
    return error(Code::kIo, "the system started only %d of %d threads; choose fewer (--threads)",
                 s->pool_->size(), threads);
  }
  HR_TRY(s->open_cache(wrap_blocks));
  s->trace_.records.reserve(s->plan_.step.instrs.size() + s->plan_.step.residencies.size());
  HR_TRY(s->begin());
  return s;
}

Status BatchSession::open_weights_tier() {
  HR_ASSIGN(std::unique_ptr<FileTier> files, open_weights(model_, arena_.get()));
  files_ = files.get();
  described_ = files->describe();
  weights_ = std::move(files);
  if (wrap_weights_) {
    HR_ASSIGN(weights_, wrap_weights_(std::move(weights_)));
  }
  return {};
}

Status BatchSession::open_cache(const WrapTier& wrap) {
  BlockCacheOptions o = block_cache_sizes(model_.config, plan_);
  const Program& p = plan_.step;
  const auto find = [&](const char* kind, size_t layer, int64_t items, KvPlane* plane) -> Status {
    HR_ASSIGN(const Bytes offset, offset_of(p, text_of("kv.%s.%zu", kind, layer)));
    plane->memory = arena_->at(offset, items * plane->item_bytes);
    return {};
  };
  for (size_t layer = 0; layer < o.pools.size(); ++layer) {
    HR_TRY(find("pool", layer, o.device_blocks, &o.pools[layer]));
    HR_TRY(find("tails", layer, o.places, &o.tails[layer]));
  }
  planes_ = o.pools;
  // A block stays free for each of a few sequences, so that the next step need not wait for a
  // store; never so many that one sequence would not fit.
  o.high_free = std::min<int32_t>(2 * o.places, o.device_blocks / 8);
  o.low_free = o.high_free / 2;
  o.start = chain_start(0, plan_.options.kv_format);  // of one model alone
  if (plan_.staging_bytes > 0) {
    HR_ASSIGN(staging_, arena_of(plan_.staging_bytes, *pool_));
    o.staging = staging_->at(0, plan_.staging_bytes);
    HR_ASSIGN(blocks_tier_, open_kv_file(plan_.options.kv_folder, plan_.kv_disk_bytes,
                                         kBlockTickets, staging_.get()));
    if (wrap) {
      HR_ASSIGN(blocks_tier_, wrap(std::move(blocks_tier_)));
    }
  }
  HR_ASSIGN(cache_, BlockCache::create(std::move(o), blocks_tier_.get()));
  return {};
}

Status BatchSession::begin() {
  std::vector<Tier*> tiers = {nullptr, weights_.get()};
  executor_ = std::make_unique<Executor>(*arena_, std::move(tiers), *pool_);
  last_ = nullptr;
  HR_ASSIGN(Program bridge, plan_bridge(plan_.step, {}));
  HR_ASSIGN(bridge_, executor_->prepare(std::move(bridge)));
  return {};
}

Result<Prepared*> BatchSession::prepared() {
  if (last_ == nullptr) return bridge_.get();
  if (step_ == nullptr) {
    HR_ASSIGN(step_, executor_->prepare(plan_.step));
  }
  return step_.get();
}

Status BatchSession::recover() {
  if (!failed()) return {};
  if (files_ != nullptr) HR_TRY(files_->check_unchanged());
  step_.reset();
  bridge_.reset();
  last_program_ = &plan_.step;
  executor_.reset();
  files_ = nullptr;
  weights_.reset();
  moved_before_ = moved_;
  HR_TRY(open_weights_tier());
  return begin();
}

bool BatchSession::steady() const {
  return last_program_ != nullptr && last_program_->name == plan_.step.name &&
         last_program_->instrs.size() == plan_.step.instrs.size();
}

Status BatchSession::check_files() const {
  if (files_ != nullptr) return files_->check_unchanged();
  return error(Code::kIo, "the weights are not open: recover() has failed");
}

Status BatchSession::check(std::span<const Part> parts) const {
  const BatchOptions& o = plan_.options;
  int64_t rows = 0, outputs = 0;
  for (const Part& part : parts) {
    const auto n = static_cast<int64_t>(part.tokens.size());
    rows += n;
    outputs += part.outputs;
    if (part.outputs < 0 || part.outputs > n) {
      return error(Code::kUsage, "logits of the last %lld of %lld rows are wanted",
                   static_cast<long long>(part.outputs), static_cast<long long>(n));
    }
    const int64_t length = cache_->length(part.sequence);
    if (length + n > o.context) {
      return error(Code::kUsage, "%lld tokens after position %lld exceed the context of %lld",
                   static_cast<long long>(n), static_cast<long long>(length),
                   static_cast<long long>(o.context));
    }
    for (int32_t t : part.tokens) {
      if (t >= 0 && t < model_.config.vocab) continue;
      return error(Code::kUsage, "token %d is outside the vocabulary of %lld", t,
                   static_cast<long long>(model_.config.vocab));
    }
  }
  const int64_t most = o.places * (1 + o.speculate);
  if (rows > 0 && rows <= o.step_rows && outputs <= most) return {};
  return error(Code::kUsage, "a step of %lld rows with logits of %lld: at most %lld and %lld",
               static_cast<long long>(rows), static_cast<long long>(outputs),
               static_cast<long long>(o.step_rows), static_cast<long long>(most));
}

Result<std::span<const float>> BatchSession::step(std::span<Part> parts) {
  if (failed()) {
    return error(Code::kUsage, "a step has failed, and the session has not recovered from it");
  }
  HR_TRY(check(parts));
  runs_.clear();
  for (const Part& part : parts) runs_.push_back({part.sequence, part.tokens});
  HR_TRY(cache_->reserve(runs_, &rows_));
  int32_t row = 0;
  for (size_t i = 0; i < parts.size(); ++i) {
    parts[i].status = runs_[i].status;
    parts[i].sound = runs_[i].sound;
    if (!parts[i].status.ok()) continue;
    row += static_cast<int32_t>(parts[i].tokens.size());
    for (int64_t k = parts[i].outputs; k > 0; --k) {
      rows_.output_rows.push_back(row - static_cast<int32_t>(k));
    }
  }
  if (row == 0) {  // no part has its blocks
    cache_->commit();
    return std::span<const float>();
  }
  const Status status = run();
  if (!status.ok()) {
    cache_->abandon(true);
    return status;
  }
  cache_->commit();
  cache_->maintain();
  const auto outputs = static_cast<int64_t>(rows_.output_rows.size());
  return executor_->output(*last_, "logits")
      .first(static_cast<size_t>(outputs * model_.config.vocab));
}

Status BatchSession::run() {
  HR_ASSIGN(Prepared* next, prepared());
  last_program_ = &Executor::program_of(*next);
  const Status status = executor_->run(*next, rows_, &trace_, cancel_);
  moved_ = sum(moved_before_, executor_->moved());
  HR_TRY(status);
  if (next == step_.get()) bridge_.reset();
  last_ = next;
  return {};
}

std::span<std::byte> BatchSession::pool(int64_t layer, int32_t block) const {
  const KvPlane& plane = planes_[static_cast<size_t>(layer)];
  return plane.memory.subspan(static_cast<size_t>(block * plane.item_bytes),
                              static_cast<size_t>(plane.item_bytes));
}

Status BatchSession::read_block(KvSequence s, int64_t g, int64_t layer, std::span<std::byte> out) {
  if (g < 0 || (g + 1) * plan_.options.block_tokens > cache_->length(s)) {
    return error(Code::kUsage, "sequence %d has no whole block %lld", s.value,
                 static_cast<long long>(g));
  }
  if (layer < 0 || layer >= model_.config.layers ||
      static_cast<Bytes>(out.size()) != planes_[0].item_bytes) {
    return error(Code::kUsage, "%zu bytes of layer %lld of a block", out.size(),
                 static_cast<long long>(layer));
  }
  HR_TRY(cache_->fetch(s, g));
  const std::span<const std::byte> part = pool(layer, cache_->device_block(s, g));
  std::copy(part.begin(), part.end(), out.begin());
  return {};
}

Status BatchSession::read_block(KvSequence s, int64_t g, std::span<std::byte> out) {
  if (static_cast<Bytes>(out.size()) != plan_.block_bytes) {
    return error(Code::kUsage, "%zu bytes for a block of %lld", out.size(),
                 static_cast<long long>(plan_.block_bytes));
  }
  const auto width = static_cast<size_t>(planes_[0].item_bytes);
  for (size_t layer = 0; layer < planes_.size(); ++layer) {
    HR_TRY(read_block(s, g, static_cast<int64_t>(layer), out.subspan(layer * width, width)));
  }
  return {};
}

Status BatchSession::append_block(KvSequence s, std::span<const int32_t> tokens,
                                  const std::function<Status(const BlockPart& part)>& fill) {
  const int64_t width = plan_.options.block_tokens, length = cache_->length(s);
  if (static_cast<int64_t>(tokens.size()) != width || length < 0 || length % width != 0 ||
      length + width > plan_.options.context) {
    return error(Code::kUsage, "a block of %zu tokens after %lld positions of sequence %d",
                 tokens.size(), static_cast<long long>(length), s.value);
  }
  KvStepRun run{s, tokens};
  StepRows rows;
  HR_TRY(cache_->reserve({&run, 1}, &rows));
  Status status = run.status;
  if (status.ok()) {
    const int64_t at = cache_->place(s) * plan_.blocks_a_sequence + length / width;
    const int32_t block = rows.blocks[static_cast<size_t>(at)];
    status = fill([&](int64_t layer) { return pool(layer, block); });
  }
  status.ok() ? cache_->commit() : cache_->abandon(false);
  return status;
}

}  // namespace headrace
