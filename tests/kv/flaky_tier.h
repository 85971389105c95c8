// A tier of a disk that fails and forgets now and then.
#pragma once

#include <algorithm>
#include <map>
#include <memory>
#include <utility>

#include "headrace/base/split_mix.h"
#include "headrace/tier/tier.h"

namespace headrace::testing {

// Fails every so many transfers, and flips a bit of every so many loads.
struct Flaky {
  int fail_one_in = 0, flip_one_in = 0;
  bool fail_stores = false, flip = false;  // all of them
};

class FlakyTier final : public Tier {
 public:
  FlakyTier(std::unique_ptr<Tier> inner, const Flaky* flaky, uint64_t seed = 11)
      : inner_(std::move(inner)), flaky_(flaky), random_(seed) {}
  const TierDescription& describe() const override { return inner_->describe(); }
  TierCounters counters() const override { return inner_->counters(); }
  Result<Ticket> load(const TierExtent& from, std::span<std::byte> to) override {
    if (hit(flaky_->fail_one_in)) return error(Code::kIo, "injected: load");
    HR_ASSIGN(Ticket t, inner_->load(from, to));
    if (flaky_->flip || hit(flaky_->flip_one_in)) {
      flips_[t.value] = &to[random_.next() % std::min<size_t>(to.size(), 1536)];
    }
    return t;
  }
  Result<Ticket> store(std::span<const std::byte> from, const TierExtent& to) override {
    if (flaky_->fail_stores || hit(flaky_->fail_one_in))
      return error(Code::kIo, "injected: store");
    return inner_->store(from, to);
  }
  void poll() override { inner_->poll(); }
  bool done(Ticket t) override { return inner_->done(t); }
  Status wait(Ticket t) override {
    HR_TRY(inner_->wait(t));
    if (auto it = flips_.find(t.value); it != flips_.end()) {
      *it->second ^= std::byte{16};
      flips_.erase(it);
    }
    return {};
  }

 private:
  bool hit(int one_in) { return one_in > 0 && random_.below(static_cast<uint64_t>(one_in)) == 0; }
  std::unique_ptr<Tier> inner_;
  const Flaky* flaky_;
  SplitMix random_;
  std::map<uint64_t, std::byte*> flips_;
};

}  // namespace headrace::testing
