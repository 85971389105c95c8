#include "headrace/tier/checksum_tier.h"

#define XXH_INLINE_ALL  // no library to map: what is mapped counts against small budgets
#include <xxhash.h>

#include <algorithm>
#include <bit>
#include <utility>

#include "headrace/tier/ticket_table.h"

namespace headrace {
namespace {

struct Pending {
  bool ended = false;
  bool checked = false;     // a load of which every whole page has a checksum
  uint64_t expected = 0;    // of all of them, as they were when the load began
  TierExtent extent;
  const std::byte* data = nullptr;
  Ticket inner;
  Status status;
};

// The whole pages of an extent: numbers [first, end) of the object.
struct Pages {
  Bytes first = 0, end = 0;
};
Pages pages_of(const TierExtent& e) {
  const Bytes first = round_up(e.offset, kPage) / kPage;
  return {first, std::max(first, (e.offset + e.bytes) / kPage)};
}

// Never 0, which stands for "no checksum".
uint64_t sum_of(const std::byte* page) {
  return XXH3_64bits(page, static_cast<size_t>(kPage)) | 1;
}

// Depends on the order of the pages.
uint64_t mix(uint64_t sums, uint64_t sum) { return std::rotl(sums, 7) * 0x9e3779b97f4a7c15u ^ sum; }

class ChecksumTier final : public Tier {
 public:
  ChecksumTier(std::unique_ptr<Tier> inner, const std::vector<Bytes>& objects, int max_tickets)
      : inner_(std::move(inner)), table_(max_tickets), sums_(objects.size()) {
    description_ = inner_->describe();
    description_.method += ", checksums";
    description_.memory_bytes += table_.memory_bytes();
    for (size_t i = 0; i < objects.size(); ++i) {
      sums_[i].resize(static_cast<size_t>(round_up(objects[i], kPage) / kPage));
      description_.memory_bytes += checksum_memory(objects[i]);
    }
  }

  const TierDescription& describe() const override { return description_; }
  TierCounters counters() const override { return inner_->counters(); }

  Result<Ticket> load(const TierExtent& from, std::span<std::byte> to) override {
    Pending p;
    p.extent = from;
    p.data = to.data();
    p.checked = expect(from, &p.expected);
    HR_TRY(make_room());
    HR_ASSIGN(p.inner, inner_->load(from, to));
    return keep(std::move(p));
  }

  Result<Ticket> store(std::span<const std::byte> from, const TierExtent& to) override {
    HR_TRY(make_room());
    Pending p;
    p.extent = to;
    HR_ASSIGN(p.inner, inner_->store(from, to));
    if (static_cast<Bytes>(from.size()) == to.bytes) note(from.data(), to);
    return keep(std::move(p));
  }

  void poll() override { inner_->poll(); }
  bool done(Ticket ticket) override {
    const Pending* p = table_.find(ticket.value);
    return p == nullptr || p->ended || inner_->done(p->inner);
  }
  Status wait(Ticket ticket) override {
    Pending* p = table_.find(ticket.value);
    if (p == nullptr) return {};
    end(*p);
    Status status = std::move(p->status);
    table_.release(ticket.value);
    return status;
  }

 private:
  Status make_room() {
    Pending* old = table_.displaced();
    if (old == nullptr) return {};
    end(*old);
    return old->status;
  }

  Ticket keep(Pending p) {
    if (p.inner.value == 0) return {};
    table_.take() = std::move(p);
    return {table_.last()};
  }

  std::vector<uint64_t>* sums(const TierExtent& e) {
    const auto object = static_cast<size_t>(e.object);
    if (e.object < 0 || object >= sums_.size() || e.offset < 0 || e.bytes < 0) return nullptr;
    const Bytes size = static_cast<Bytes>(sums_[object].size()) * kPage;
    return e.bytes <= size && e.offset <= size - e.bytes ? &sums_[object] : nullptr;
  }

  bool expect(const TierExtent& e, uint64_t* expected) {
    const std::vector<uint64_t>* known = sums(e);
    if (known == nullptr) return false;
    const Pages pages = pages_of(e);
    for (Bytes i = pages.first; i < pages.end; ++i) {
      const uint64_t sum = (*known)[static_cast<size_t>(i)];
      if (sum == 0) return false;
      *expected = mix(*expected, sum);
    }
    return pages.first < pages.end;
  }

  // Pages at the ends that are covered in part lose their checksum.
  void note(const std::byte* data, const TierExtent& e) {
    std::vector<uint64_t>* known = sums(e);
    if (known == nullptr || e.bytes == 0) return;
    const Pages pages = pages_of(e);
    (*known)[static_cast<size_t>(e.offset / kPage)] = 0;
    (*known)[static_cast<size_t>((e.offset + e.bytes - 1) / kPage)] = 0;
    for (Bytes i = pages.first; i < pages.end; ++i) {
      (*known)[static_cast<size_t>(i)] = sum_of(data + (i * kPage - e.offset));
    }
  }

  void end(Pending& p) {
    if (p.ended) return;
    p.ended = true;
    p.status = inner_->wait(p.inner);
    if (!p.status.ok() || !p.checked) return;
    const Pages pages = pages_of(p.extent);
    uint64_t found = 0;
    for (Bytes i = pages.first; i < pages.end; ++i) {
      found = mix(found, sum_of(p.data + (i * kPage - p.extent.offset)));
    }
    if (found == p.expected) return;
    p.status = error(Code::kIo,
                     "object %d: %lld bytes at %lld are not those that were stored there: the "
                     "checksum differs",
                     p.extent.object, static_cast<long long>(p.extent.bytes),
                     static_cast<long long>(p.extent.offset));
  }

  std::unique_ptr<Tier> inner_;
  TierDescription description_;
  TicketTable<Pending> table_;
  std::vector<std::vector<uint64_t>> sums_;  // by object, by page; 0: none
};

}  // namespace

std::unique_ptr<Tier> make_checksum_tier(std::unique_ptr<Tier> inner,
                                         const std::vector<Bytes>& objects, int max_tickets) {
  return std::make_unique<ChecksumTier>(std::move(inner), objects, max_tickets);
}

Bytes checksum_memory(Bytes bytes) {
  return round_up(bytes, kPage) / kPage * static_cast<Bytes>(sizeof(uint64_t));
}

}  // namespace headrace
