#include "headrace/tier/emulated_tier.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "headrace/tier/ticket_table.h"

namespace headrace {
namespace {

double rate_of(const LinkModel& model, bool store) {
  return store && model.store_bytes_per_s != 0 ? model.store_bytes_per_s : model.bytes_per_s;
}

struct Booked {
  Ticket inner;
  Nanos ready_at = 0;
  bool ended = false;  // the inner ticket has been waited for; `status` is its result
  Status status;
};

class EmulatedTier final : public Tier {
 public:
  EmulatedTier(std::unique_ptr<Tier> inner, std::shared_ptr<EmulatedLink> link,
               int tickets)
      : inner_(std::move(inner)), link_(std::move(link)), table_(tickets) {
    const LinkModel& model = link_->model();
    description_ = inner_->describe();
    description_.kind = "emulated";
    description_.method = text_of(
        "%s/s, stores %s/s, %lld ns, %s, over %s (%s)",
        human_bytes(static_cast<Bytes>(rate_of(model, false))).c_str(),
        human_bytes(static_cast<Bytes>(rate_of(model, true))).c_str(),
        static_cast<long long>(model.latency_ns), model.duplex ? "duplex" : "shared",
        inner_->describe().kind.c_str(), inner_->describe().method.c_str());
    description_.memory_bytes += table_.memory_bytes();
  }

  const TierDescription& describe() const override { return description_; }
  TierCounters counters() const override { return inner_->counters(); }

  Result<Ticket> load(const TierExtent& from, std::span<std::byte> to) override {
    HR_TRY(make_room());
    HR_ASSIGN(const Ticket inner, inner_->load(from, to));
    return book(inner, from.bytes, false);
  }
  Result<Ticket> store(std::span<const std::byte> from, const TierExtent& to) override {
    HR_TRY(make_room());
    HR_ASSIGN(const Ticket inner, inner_->store(from, to));
    return book(inner, to.bytes, true);
  }
  void poll() override { inner_->poll(); }
  bool done(Ticket ticket) override {
    inner_->poll();
    const Booked* booked = table_.find(ticket.value);
    if (booked == nullptr || booked->ended) return true;
    return link_->clock().now() >= booked->ready_at && inner_->done(booked->inner);
  }
  Status wait(Ticket ticket) override {
    Booked* booked = table_.find(ticket.value);
    if (booked == nullptr) return Status();
    end(*booked);
    Status status = std::move(booked->status);
    table_.release(ticket.value);
    return status;
  }

 private:
  void end(Booked& booked) {
    if (booked.ended) return;
    booked.status = inner_->wait(booked.inner);
    booked.ended = true;
    link_->clock().sleep_until(booked.ready_at);
  }
  Status make_room() {
    Booked* old = table_.displaced();
    if (old == nullptr) return Status();
    end(*old);
    return old->status;
  }
  Ticket book(Ticket inner, Bytes bytes, bool store) {
    if (inner.value == 0) return inner;  // nothing moves
    Booked& booked = table_.take();
    booked.inner = inner;
    booked.ready_at = link_->book(bytes, store);
    return Ticket{table_.last()};
  }

  std::unique_ptr<Tier> inner_;
  std::shared_ptr<EmulatedLink> link_;
  TierDescription description_;
  TicketTable<Booked> table_;
};

}  // namespace

Nanos EmulatedLink::book(Bytes bytes, bool store) {
  Nanos& free_at = free_at_[store && model_.duplex ? 1 : 0];
  const double ns = std::ceil(static_cast<double>(bytes) / rate_of(model_, store) * 1e9);
  free_at = std::max(free_at, clock_->now()) + static_cast<Nanos>(ns);
  return free_at + model_.latency_ns;
}

Result<std::unique_ptr<Tier>> open_emulated_tier(std::unique_ptr<Tier> inner,
                                                 std::shared_ptr<EmulatedLink> link,
                                                 int max_tickets) {
  const LinkModel& model = link->model();
  const double load = rate_of(model, false), store = rate_of(model, true);
  if (!(load > 0) || !std::isfinite(load) || !(store > 0) || !std::isfinite(store) ||
      model.latency_ns < 0)
    return error(Code::kUsage, "emulated link of %g bytes/s, stores %g bytes/s, and %lld ns", load,
                 store, static_cast<long long>(model.latency_ns));
  if (max_tickets < 1)
    return error(Code::kUsage, "emulated tier: %d tickets", max_tickets);
  return std::unique_ptr<Tier>(
      std::make_unique<EmulatedTier>(std::move(inner), std::move(link), max_tickets));
}

}  // namespace headrace
