// MappedTier: a tier whose objects are memory that this process can address. The host
// tier and the remote tier are mapped tiers; they differ in where the memory comes from.
//
// Objects lie in one mapping, in order, each on a 4 KiB boundary. Transfers are memcpy on
// a thread of the tier (or inline, see MappedOptions), first come first served.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "headrace/base/status.h"
#include "headrace/base/types.h"
#include "headrace/tier/copy_queue.h"
#include "headrace/tier/tier.h"

namespace headrace {

struct MappedOptions {
  int max_tickets = 256;  // unfinished transfers; one more waits for the oldest
  // Copies on a thread of the tier. Without it they run in poll(), done() and wait().
  bool worker = true;
};

// Owns a mapping of `bytes` bytes.
class Mapping {
 public:
  Mapping() = default;
  Mapping(void* base, Bytes bytes)
      : base_(static_cast<std::byte*>(base)), bytes_(bytes) {}
  Mapping(Mapping&& other) noexcept;
  Mapping& operator=(Mapping&& other) noexcept;
  ~Mapping();
  std::byte* base() const { return base_; }
  Bytes bytes() const { return bytes_; }

 private:
  std::byte* base_ = nullptr;
  Bytes bytes_ = 0;
};

class MappedTier final : public Tier {
 public:
  // `mapping` holds the objects, laid out as layout() says.
  static Result<std::unique_ptr<MappedTier>> create(Mapping mapping,
                                                    const std::vector<Bytes>& objects,
                                                    const MappedOptions& options,
                                                    TierDescription description);
  // The bytes of mapping that objects of these sizes need; kUsage when one is negative or
  // the sum overflows.
  static Result<Bytes> layout(const std::vector<Bytes>& objects);

  const TierDescription& describe() const override { return description_; }
  TierCounters counters() const override { return counters_; }
  Result<Ticket> load(const TierExtent& from, std::span<std::byte> to) override;
  Result<Ticket> store(std::span<const std::byte> from, const TierExtent& to) override;
  void poll() override { queue_->poll(); }
  bool done(Ticket ticket) override;
  Status wait(Ticket ticket) override;

  // The memory of an extent itself: no copy, valid while the tier lives. A transfer that
  // is in flight may still write to it. kUsage when the extent is not inside an object.
  Result<std::span<std::byte>> direct(const TierExtent& extent) const;

 private:
  MappedTier(Mapping mapping, std::unique_ptr<CopyQueue> queue,
             TierDescription description)
      : mapping_(std::move(mapping)),
        description_(std::move(description)),
        queue_(std::move(queue)) {}
  Result<std::span<std::byte>> checked(const TierExtent& extent, size_t memory) const;

  Mapping mapping_;
  std::vector<std::span<std::byte>> objects_;
  TierDescription description_;
  TierCounters counters_;
  // Last: it finishes its copies before the mapping goes.
  std::unique_ptr<CopyQueue> queue_;
};

}  // namespace headrace
