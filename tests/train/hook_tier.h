// HookTier: any tier, with a look at every transfer before it starts, and a count of what is under
// way. For tests.
#pragma once

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <utility>

#include "headrace/tier/tier.h"

namespace headrace::test {

struct TransferLog {
  int64_t started = 0;  // transfers, loads and stores together
  Bytes in_flight = 0, most_in_flight = 0;
  int64_t tickets = 0, most_tickets = 0;
  std::function<void(int64_t number, bool store)> before;  // number: from 1
};

class HookTier final : public Tier {
 public:
  // `log` is borrowed; several tiers may share it.
  HookTier(std::unique_ptr<Tier> inner, TransferLog* log) : inner_(std::move(inner)), log_(log) {}

  const TierDescription& describe() const override { return inner_->describe(); }
  TierCounters counters() const override { return inner_->counters(); }
  Result<Ticket> load(const TierExtent& from, std::span<std::byte> to) override {
    begin(false);
    return keep(inner_->load(from, to), from.bytes);
  }
  Result<Ticket> store(std::span<const std::byte> from, const TierExtent& to) override {
    begin(true);
    return keep(inner_->store(from, to), to.bytes);
  }
  void poll() override { inner_->poll(); }
  bool done(Ticket ticket) override { return inner_->done(ticket); }
  Status wait(Ticket ticket) override {
    const auto at = under_way_.find(ticket.value);
    if (at != under_way_.end()) {
      log_->in_flight -= at->second;
      --log_->tickets;
      under_way_.erase(at);
    }
    return inner_->wait(ticket);
  }

 private:
  void begin(bool store) {
    ++log_->started;
    if (log_->before) log_->before(log_->started, store);
  }
  Result<Ticket> keep(Result<Ticket> ticket, Bytes bytes) {
    if (!ticket.ok() || ticket->value == 0) return ticket;
    under_way_[ticket->value] = bytes;
    log_->most_in_flight = std::max(log_->most_in_flight, log_->in_flight += bytes);
    log_->most_tickets = std::max(log_->most_tickets, ++log_->tickets);
    return ticket;
  }

  std::unique_ptr<Tier> inner_;
  TransferLog* log_;
  std::map<uint64_t, Bytes> under_way_;
};

}  // namespace headrace::test
