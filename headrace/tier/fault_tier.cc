#include "headrace/tier/fault_tier.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "headrace/tier/ticket_table.h"

namespace headrace {
namespace {

enum class Stage { kHeld, kStarted, kEnded };

struct Held {
  Stage stage = Stage::kHeld;
  bool store = false;
  bool doomed = false;
  int polls_left = 0;
  TierExtent extent;
  std::byte* data = nullptr;
  Ticket inner;
  Status status;
};

class FaultTier final : public Tier {
 public:
  FaultTier(std::unique_ptr<Tier> inner, const FaultPlan& plan)
      : inner_(std::move(inner)),
        plan_(plan),
        random_(plan.seed * 2 + 1),
        table_(std::max(plan.max_tickets, 1)) {
    description_ = inner_->describe();
    description_.method += ", faults injected";
    description_.memory_bytes += table_.memory_bytes();
  }
  ~FaultTier() override {
    for (uint64_t t = oldest(); t <= table_.last(); ++t)
      if (Held* held = table_.find(t); held != nullptr) start(*held);
  }

  const TierDescription& describe() const override { return description_; }
  TierCounters counters() const override { return inner_->counters(); }
  Result<Ticket> load(const TierExtent& from, std::span<std::byte> to) override {
    return hold(false, from, to);
  }
  Result<Ticket> store(std::span<const std::byte> from, const TierExtent& to) override {
    // Only read from: Held keeps one pointer for both directions.
    return hold(true, to, {const_cast<std::byte*>(from.data()), from.size()});
  }
  void poll() override {
    for (uint64_t t = oldest(); t <= table_.last(); ++t) {
      Held* held = table_.find(t);
      if (held != nullptr && held->stage == Stage::kHeld && --held->polls_left < 0)
        start(*held);
    }
    inner_->poll();
  }
  bool done(Ticket ticket) override {
    poll();
    const Held* held = table_.find(ticket.value);
    if (held == nullptr || held->stage == Stage::kEnded) return true;
    return held->stage == Stage::kStarted && inner_->done(held->inner);
  }
  Status wait(Ticket ticket) override {
    Held* held = table_.find(ticket.value);
    if (held == nullptr) return Status();
    if (plan_.reorder_polls > 0) start_some_younger(ticket.value);
    end(*held);
    Status status = std::move(held->status);
    table_.release(ticket.value);
    return status;
  }

 private:
  uint64_t oldest() const {
    const auto size = static_cast<uint64_t>(table_.size());
    return table_.last() > size ? table_.last() - size + 1 : 1;
  }
  // Numbers in [0, n): a linear congruential generator (Knuth, TAOCP 2, 3.3.4).
  uint64_t random(uint64_t n) {
    random_ = random_ * 6364136223846793005ull + 1442695040888963407ull;
    return (random_ >> 33) % n;
  }

  Result<Ticket> hold(bool store, const TierExtent& extent, std::span<std::byte> memory) {
    if (extent.bytes != static_cast<Bytes>(memory.size()))
      return error(Code::kUsage, "object %d: extent of %lld bytes for %zu of memory",
                   extent.object, static_cast<long long>(extent.bytes), memory.size());
    if (extent.bytes == 0) return Ticket{};
    if (Held* old = table_.displaced(); old != nullptr) {
      end(*old);
      HR_TRY(old->status);
    }
    ++transfers_;
    const bool doomed =
        plan_.fail_at > 0 &&
        (plan_.fail_for_ever ? transfers_ >= plan_.fail_at : transfers_ == plan_.fail_at);
    if (doomed && plan_.fail_at_submit) return failure(store, extent);
    if (plan_.poison && !store) std::memset(memory.data(), 0xff, memory.size());
    Held& held = table_.take();
    held.store = store;
    held.doomed = doomed;
    held.extent = extent;
    held.data = memory.data();
    held.polls_left = plan_.delay_polls;
    if (plan_.reorder_polls > 0)
      held.polls_left +=
          static_cast<int>(random(static_cast<uint64_t>(plan_.reorder_polls) + 1));
    return Ticket{table_.last()};
  }

  Status failure(bool store, const TierExtent& extent) const {
    return error(
        Code::kIo, "injected: object %d: %s of %lld bytes at %lld: %s (errno %d)",
        extent.object, store ? "write" : "read", static_cast<long long>(extent.bytes),
        static_cast<long long>(extent.offset), std::strerror(plan_.error_number),
        plan_.error_number);
  }

  void start(Held& held) {
    if (held.stage != Stage::kHeld) return;
    const std::span<std::byte> memory(held.data, static_cast<size_t>(held.extent.bytes));
    if (held.doomed) {
      held.status = failure(held.store, held.extent);
      held.stage = Stage::kEnded;
      return;
    }
    auto ticket = held.store ? inner_->store(memory, held.extent)
                             : inner_->load(held.extent, memory);
    held.stage = ticket.ok() ? Stage::kStarted : Stage::kEnded;
    if (ticket.ok())
      held.inner = *ticket;
    else
      held.status = ticket.status();
  }
  void end(Held& held) {
    start(held);
    if (held.stage == Stage::kStarted) held.status = inner_->wait(held.inner);
    held.stage = Stage::kEnded;
  }
  void start_some_younger(uint64_t ticket) {
    for (uint64_t t = table_.last(); t > ticket; --t) {
      Held* held = table_.find(t);
      if (held != nullptr && random(2) == 0) start(*held);
    }
  }

  std::unique_ptr<Tier> inner_;
  FaultPlan plan_;
  uint64_t random_;
  int64_t transfers_ = 0;
  TierDescription description_;
  TicketTable<Held> table_;
};

}  // namespace

std::unique_ptr<Tier> make_fault_tier(std::unique_ptr<Tier> inner,
                                      const FaultPlan& plan) {
  return std::make_unique<FaultTier>(std::move(inner), plan);
}

}  // namespace headrace
