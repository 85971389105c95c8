#include "headrace/train/engine.h"

#include <unistd.h>

#include <atomic>

#include "headrace/tier/checksum_tier.h"
#include "headrace/tier/file_tier.h"
#include "headrace/tier/host_tier.h"

namespace headrace {
namespace {

// Ops take tens of milliseconds and nobody polls meanwhile: at 4 GB/s, 128 MiB in the system keep the
// disk busy for 34 ms.
constexpr int kQueueDepth = 32;
constexpr Bytes kChunk = 4 * kMiB;
constexpr int kMostTickets = 1024;

FileTierOptions file_options() {
  FileTierOptions o;
  o.queue_depth = kQueueDepth;
  o.chunk_bytes = kChunk;
  o.max_tickets = kMostTickets;
  o.register_buffers = false;  // decision 0003
  return o;
}

// Several engines, and several processes, may be in one folder.
std::string scratch_path(const std::string& folder) {
  static std::atomic<int> count{0};
  return text_of("%s/.headrace-scratch-%d-%d", folder.c_str(), static_cast<int>(::getpid()),
                 count.fetch_add(1));
}

Result<std::unique_ptr<Tier>> open_tier(const EngineOptions::TierPlace& place, Bytes bytes,
                                        Arena* arena) {
  FileTierOptions o = file_options();
  if (!place.frozen_file.empty()) {
    HR_ASSIGN(std::unique_ptr<FileTier> tier, open_file_tier({place.frozen_file}, arena, o));
    return std::unique_ptr<Tier>(std::move(tier));
  }
  const Bytes size = std::max(bytes, kPage);
  if (place.folder.empty()) {
    HR_ASSIGN(std::unique_ptr<MappedTier> tier, open_host_tier({size}));
    return std::unique_ptr<Tier>(std::move(tier));
  }
  o.access = FileAccess::kScratch;
  o.scratch_bytes = size;
  auto tier = open_file_tier({scratch_path(place.folder)}, arena, o);
  if (!tier.ok()) return tier.status().within("scratch of " + human_bytes(size));
  return std::unique_ptr<Tier>(std::move(tier).value());
}

}  // namespace

TrainEngine::~TrainEngine() {
  // The executor waits for transfers into the arena; then the tiers and the arena may go.
  prepared_.reset();
  executor_.reset();
  tiers_.clear();
}

Result<std::unique_ptr<TrainEngine>> TrainEngine::start(Program program,
                                                        const EngineOptions& options) {
  HR_CHECK(options.tiers.size() == program.tiers.size(), "a place for each tier");
  std::unique_ptr<TrainEngine> e(new TrainEngine);
  HR_ASSIGN(Arena arena, Arena::create(program.arena_bytes));
  e->arena_ = std::make_shared<Arena>(std::move(arena));
  const std::vector<Bytes> bytes = copy_bytes(program);
  ExecutorOptions o;
  o.poison_freed = options.paranoid;
  o.caller_computes = options.caller_computes;
  o.copies.resize(program.tiers.size());
  std::vector<Tier*> tiers = {nullptr};
  e->tiers_.resize(1);
  for (size_t t = 1; t < program.tiers.size(); ++t) {
    const EngineOptions::TierPlace& place = options.tiers[t];
    HR_ASSIGN(std::unique_ptr<Tier> tier, open_tier(place, bytes[t], e->arena_.get()));
    if (options.paranoid && place.frozen_file.empty()) {
      tier = make_checksum_tier(std::move(tier), {std::max(bytes[t], kPage)}, kMostTickets);
    }
    if (options.wrap) tier = options.wrap(std::move(tier), t);
    if (place.frozen_file.empty()) o.copies[t] = {0, 0, std::max(bytes[t], kPage)};
    tiers.push_back(tier.get());
    e->tiers_.push_back(std::move(tier));
  }
  // A caller that computes has threads of its own, which would inherit where it is pinned to.
  e->pool_ = std::make_unique<ThreadPool>(options.threads, !options.caller_computes);
  if (e->pool_->size() < options.threads) {
    return error(Code::kIo, "the system started only %d of %d threads; choose fewer (--threads)",
                 e->pool_->size(), options.threads);
  }
  e->executor_ = std::make_unique<Executor>(*e->arena_, tiers, *e->pool_, std::move(o));
  HR_ASSIGN(e->prepared_, e->executor_->prepare(std::move(program)));
  return e;
}

Status TrainEngine::run(const StepRows& rows, Trace* trace) {
  return executor_->run(*prepared_, rows, trace);
}

Status TrainEngine::write(std::string_view name, Bytes begin, std::span<const std::byte> bytes) {
  return executor_->write_state(*prepared_, name, bytes, begin);
}

Status TrainEngine::read(std::string_view name, Bytes begin, std::span<std::byte> out) {
  return executor_->read_state(*prepared_, name, out, begin);
}

std::span<const float> TrainEngine::output(std::string_view name) const {
  return executor_->output(*prepared_, name);
}

std::vector<TierCounters> TrainEngine::counters() const {
  std::vector<TierCounters> out(tiers_.size());
  for (size_t t = 1; t < tiers_.size(); ++t) out[t] = tiers_[t]->counters();
  return out;
}

}  // namespace headrace
