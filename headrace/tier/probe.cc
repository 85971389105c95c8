#include "headrace/tier/probe.h"

#include <algorithm>
#include <vector>

#include "headrace/tier/arena.h"
#include "headrace/tier/clock.h"

namespace headrace {
namespace {

constexpr Bytes kLeastFile = 64 * kKiB;

// Reads [0, bytes) in chunks through the ring `arena`; the nanoseconds that took.
Result<Nanos> time_sequential(Tier& tier, Bytes bytes, Bytes chunk, const Arena& arena) {
  const size_t slots = static_cast<size_t>(arena.bytes() / chunk);
  std::vector<Ticket> tickets(slots);
  const Nanos begin = real_clock().now();
  size_t slot = 0;
  for (Bytes at = 0; at < bytes; at += chunk, slot = (slot + 1) % slots) {
    HR_TRY(tier.wait(tickets[slot]));
    const Bytes n = std::min(chunk, bytes - at);
    const auto to = arena.at(static_cast<Bytes>(slot) * chunk, n);
    HR_ASSIGN(tickets[slot], tier.load({0, at, n}, to));
  }
  for (const Ticket ticket : tickets) HR_TRY(tier.wait(ticket));
  return real_clock().now() - begin;
}

Result<Nanos> median_latency(Tier& tier, Bytes pages, int reads, const Arena& arena) {
  std::vector<Nanos> times;
  times.reserve(static_cast<size_t>(reads));
  uint64_t random = 12345;
  for (int i = 0; i < reads; ++i) {
    random = random * 6364136223846793005ull + 1442695040888963407ull;
    const Bytes page = static_cast<Bytes>((random >> 33) % static_cast<uint64_t>(pages));
    const Nanos begin = real_clock().now();
    HR_ASSIGN(const Ticket ticket,
              tier.load({0, page * kPage, kPage}, arena.at(0, kPage)));
    HR_TRY(tier.wait(ticket));
    times.push_back(real_clock().now() - begin);
  }
  std::nth_element(times.begin(), times.begin() + reads / 2, times.end());
  return times[static_cast<size_t>(reads / 2)];
}

}  // namespace

Result<DiskRate> measure_read_rate(const std::string& path, const ProbeOptions& options) {
  if (options.bytes < kLeastFile || options.latency_reads < 1)
    return error(Code::kUsage, "probe of %lld bytes and %d small reads",
                 static_cast<long long>(options.bytes), options.latency_reads);
  // Twice the depth: waiting for the oldest chunk must not leave the queue short.
  const Bytes ring = 2 * options.tier.queue_depth * options.tier.chunk_bytes;
  HR_ASSIGN(Arena arena, Arena::create(std::max(ring, kPage)));
  arena.touch(0, arena.bytes());
  FileTierOptions tier_options = options.tier;
  tier_options.access = FileAccess::kRead;
  tier_options.max_tickets =
      std::max(tier_options.max_tickets, 2 * tier_options.queue_depth);
  HR_ASSIGN(auto tier, open_file_tier({path}, &arena, tier_options));
  const Bytes size = tier->object_bytes(0);
  if (size < kLeastFile)
    return error(Code::kUsage, "%s: %lld bytes are too few to measure a disk with",
                 path.c_str(), static_cast<long long>(size));

  DiskRate rate;
  rate.bytes = round_down(std::min(size, options.bytes), kPage);
  HR_ASSIGN(rate.latency_ns,
            median_latency(*tier, size / kPage, options.latency_reads, arena));
  HR_ASSIGN(const Nanos ns,
            time_sequential(*tier, rate.bytes, options.tier.chunk_bytes, arena));
  rate.bytes_per_s = static_cast<double>(rate.bytes) * 1e9 / static_cast<double>(ns);
  rate.method = tier->describe().method;
  rate.notice = tier->describe().notice;
  return rate;
}

}  // namespace headrace
