#include "headrace/tier/mapped_tier.h"

#include <sys/mman.h>

#include <utility>

namespace headrace {

Mapping::Mapping(Mapping&& other) noexcept
    : base_(std::exchange(other.base_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)) {}

Mapping& Mapping::operator=(Mapping&& other) noexcept {
  std::swap(base_, other.base_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

Mapping::~Mapping() {
  if (base_ != nullptr) munmap(base_, static_cast<size_t>(bytes_));
}

Result<Bytes> MappedTier::layout(const std::vector<Bytes>& objects) {
  constexpr Bytes kMost = Bytes{1} << 60;
  Bytes total = 0;
  for (size_t i = 0; i < objects.size(); ++i) {
    if (objects[i] < 0 || objects[i] > kMost - total)
      return error(Code::kUsage, "object %zu of %lld bytes", i,
                   static_cast<long long>(objects[i]));
    total += round_up(objects[i], kPage);
  }
  return total;
}

Result<std::unique_ptr<MappedTier>> MappedTier::create(Mapping mapping,
                                                       const std::vector<Bytes>& objects,
                                                       const MappedOptions& options,
                                                       TierDescription description) {
  HR_ASSIGN(const Bytes needed, layout(objects));
  HR_CHECK(needed <= mapping.bytes(), "the mapping is smaller than the objects");
  HR_ASSIGN(auto queue, CopyQueue::create(options.max_tickets, options.worker));
  description.memory_bytes += queue->memory_bytes();
  std::unique_ptr<MappedTier> tier(
      new MappedTier(std::move(mapping), std::move(queue), std::move(description)));
  Bytes at = 0;
  tier->objects_.reserve(objects.size());
  for (const Bytes bytes : objects) {
    tier->objects_.emplace_back(tier->mapping_.base() + at, static_cast<size_t>(bytes));
    at += round_up(bytes, kPage);
  }
  return tier;
}

Result<std::span<std::byte>> MappedTier::direct(const TierExtent& extent) const {
  const char* kind = description_.kind.c_str();
  if (extent.object < 0 || static_cast<size_t>(extent.object) >= objects_.size())
    return error(Code::kUsage, "%s tier: object %d of %zu", kind, extent.object,
                 objects_.size());
  const std::span<std::byte> object = objects_[static_cast<size_t>(extent.object)];
  const Bytes size = static_cast<Bytes>(object.size());
  if (extent.offset < 0 || extent.bytes < 0 || extent.bytes > size ||
      extent.offset > size - extent.bytes)
    return error(Code::kUsage, "%s tier: object %d: %lld bytes at %lld: it has only %lld",
                 kind, extent.object, static_cast<long long>(extent.bytes),
                 static_cast<long long>(extent.offset), static_cast<long long>(size));
  return object.subspan(static_cast<size_t>(extent.offset),
                        static_cast<size_t>(extent.bytes));
}

Result<std::span<std::byte>> MappedTier::checked(const TierExtent& extent,
                                                 size_t memory) const {
  if (extent.bytes != static_cast<Bytes>(memory))
    return error(Code::kUsage,
                 "%s tier: object %d: extent of %lld bytes for %zu of memory",
                 description_.kind.c_str(), extent.object,
                 static_cast<long long>(extent.bytes), memory);
  return direct(extent);
}

Result<Ticket> MappedTier::load(const TierExtent& from, std::span<std::byte> to) {
  HR_ASSIGN(const std::span<std::byte> object, checked(from, to.size()));
  if (object.empty()) return Ticket{};
  ++counters_.loads;
  counters_.loaded_bytes += from.bytes;
  return Ticket{queue_->push(to.data(), object.data(), from.bytes)};
}

Result<Ticket> MappedTier::store(std::span<const std::byte> from, const TierExtent& to) {
  HR_ASSIGN(const std::span<std::byte> object, checked(to, from.size()));
  if (object.empty()) return Ticket{};
  ++counters_.stores;
  counters_.stored_bytes += to.bytes;
  return Ticket{queue_->push(object.data(), from.data(), to.bytes)};
}

bool MappedTier::done(Ticket ticket) {
  queue_->poll();
  return queue_->done(ticket.value);
}

Status MappedTier::wait(Ticket ticket) {
  queue_->wait(ticket.value);
  return Status();
}

}  // namespace headrace
