#include "headrace/tier/checksum_tier.h"

#define XXH_INLINE_ALL  // no library to map: what is mapped counts against small budgets
#include <xxhash.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <utility>

#include "headrace/tier/ticket_table.h"

namespace headrace {
namespace {

struct Pending {
  bool ended = false;
  const std::byte* data = nullptr;  // where a load goes; null: a store
  TierExtent extent;
  Ticket inner;
  Status status;
};

// Pages that are worth the workers' waking up: 256 KiB, 16 us of one core.
constexpr Bytes kSharedPages = 64;

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

// Of the pages of one object; 0: none. Zero pages of the system, so that memory grows with what is
// stored, not with what could be.
class Sums {
 public:
  explicit Sums(Bytes bytes) : pages_(round_up(bytes, kPage) / kPage) {
    const auto n = static_cast<size_t>(std::max<Bytes>(pages_, 1));
    sums_.reset(static_cast<uint64_t*>(std::calloc(n, sizeof(uint64_t))));
    HR_CHECK(sums_ != nullptr, "no memory for checksums");
  }
  bool has(const TierExtent& e) const {
    return e.offset >= 0 && e.bytes >= 0 && e.bytes <= pages_ * kPage &&
           e.offset <= pages_ * kPage - e.bytes;
  }
  uint64_t& at(Bytes page) { return sums_.get()[page]; }

 private:
  struct Free {
    void operator()(uint64_t* p) const { std::free(p); }
  };
  Bytes pages_;
  std::unique_ptr<uint64_t, Free> sums_;
};

class ChecksumTier final : public Tier {
 public:
  ChecksumTier(std::unique_ptr<Tier> inner, const std::vector<Bytes>& objects, int max_tickets,
               ThreadPool* pool)
      : inner_(std::move(inner)), table_(max_tickets), pool_(pool) {
    description_ = inner_->describe();
    description_.method += ", checksums";
    description_.memory_bytes += table_.memory_bytes();
    for (Bytes bytes : objects) {
      sums_.emplace_back(bytes);
      description_.memory_bytes += checksum_memory(bytes);
    }
  }

  const TierDescription& describe() const override { return description_; }
  TierCounters counters() const override { return inner_->counters(); }

  Result<Ticket> load(const TierExtent& from, std::span<std::byte> to) override {
    Pending p;
    p.extent = from;
    p.data = to.data();
    HR_TRY(make_room());
    HR_ASSIGN(p.inner, inner_->load(from, to));
    return keep(std::move(p));
  }

  Result<Ticket> store(std::span<const std::byte> from, const TierExtent& to) override {
    HR_TRY(make_room());
    end_loads_of(to);
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

  Sums* sums(const TierExtent& e) {
    const auto object = static_cast<size_t>(e.object);
    if (e.object < 0 || object >= sums_.size()) return nullptr;
    return sums_[object].has(e) ? &sums_[object] : nullptr;
  }

  // A load that is still under way when its bytes are stored anew is compared with what it began
  // with: before that is forgotten. Steps never do it, so it may wait.
  void end_loads_of(const TierExtent& to) {
    table_.each([&](Pending& p) {
      const TierExtent& e = p.extent;
      const bool apart = e.object != to.object || e.offset >= to.offset + to.bytes ||
                         to.offset >= e.offset + e.bytes;
      if (p.data != nullptr && !apart) end(p);
    });
  }

  // Pages at the ends that are covered in part lose their checksum.
  void note(const std::byte* data, const TierExtent& e) {
    Sums* known = sums(e);
    if (known == nullptr || e.bytes == 0) return;
    const Pages pages = pages_of(e);
    known->at(e.offset / kPage) = 0;
    known->at((e.offset + e.bytes - 1) / kPage) = 0;
    share(pages, [&](Pages part) {
      for (Bytes i = part.first; i < part.end; ++i) {
        known->at(i) = sum_of(data + (i * kPage - e.offset));
      }
    });
  }

  // Calls f for parts of the pages, together all of them.
  template <typename F>
  void share(Pages pages, F f) {
    const Bytes count = pages.end - pages.first;
    if (pool_ == nullptr || count < kSharedPages) return f(pages);
    pool_->for_range(count, 1, [&](Bytes begin, Bytes end, int) {
      f({pages.first + begin, pages.first + end});
    });
  }

  // The first page whose bytes have another checksum than was noted; pages.end: none.
  Bytes first_changed(Pages pages, Sums& known, const Pending& p) {
    std::atomic<Bytes> first{pages.end};
    share(pages, [&](Pages part) {
      for (Bytes i = part.first; i < part.end; ++i) {
        const uint64_t sum = known.at(i);
        if (sum == 0 || sum == sum_of(p.data + (i * kPage - p.extent.offset))) continue;
        Bytes least = first.load();
        while (i < least && !first.compare_exchange_weak(least, i)) {
        }
        return;
      }
    });
    return first.load();
  }

  void end(Pending& p) {
    if (p.ended) return;
    p.ended = true;
    p.status = inner_->wait(p.inner);
    Sums* known = p.data == nullptr ? nullptr : sums(p.extent);
    if (!p.status.ok() || known == nullptr) return;
    const Pages pages = pages_of(p.extent);
    const Bytes changed = first_changed(pages, *known, p);
    if (changed == pages.end) return;
    p.status = error(Code::kIo,
                     "object %d: %lld bytes at %lld are not those that were stored there: the "
                     "checksum differs",
                     p.extent.object, static_cast<long long>(kPage),
                     static_cast<long long>(changed * kPage));
  }

  std::unique_ptr<Tier> inner_;
  TierDescription description_;
  TicketTable<Pending> table_;
  std::vector<Sums> sums_;  // by object
  ThreadPool* pool_;
};

}  // namespace

std::unique_ptr<Tier> make_checksum_tier(std::unique_ptr<Tier> inner,
                                         const std::vector<Bytes>& objects, int max_tickets,
                                         ThreadPool* pool) {
  return std::make_unique<ChecksumTier>(std::move(inner), objects, max_tickets, pool);
}

Bytes checksum_memory(Bytes bytes) {
  return round_up(bytes, kPage) / kPage * static_cast<Bytes>(sizeof(uint64_t));
}

}  // namespace headrace
