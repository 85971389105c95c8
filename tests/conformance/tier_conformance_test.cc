// One suite for every tier: each test is a promise of headrace/tier/tier.h.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "headrace/tier/arena.h"
#include "headrace/tier/checksum_tier.h"
#include "headrace/tier/emulated_tier.h"
#include "headrace/tier/fault_tier.h"
#include "headrace/tier/file_tier.h"
#include "headrace/tier/host_tier.h"
#include "headrace/tier/remote_tier.h"
#include "tests/conformance/allocation_counter.h"
#include "tests/tier/tier_testing.h"

namespace headrace {
namespace {

using testing_tier::fill;
using testing_tier::first_difference;
using testing_tier::TempFolder;

constexpr int kObjects = 3;
constexpr Bytes kObjectBytes = 1 * kMiB;

// A tier under test with all it needs, destroyed in the right order.
struct Subject {
  std::unique_ptr<TempFolder> folder;
  ManualClock clock;
  std::unique_ptr<Arena> arena;
  std::unique_ptr<Tier> tier;
};

struct Kind {
  const char* name;
  std::function<std::unique_ptr<Tier>(Subject&)> make;
  // Slots of the ticket table of the subject.
  int max_tickets = 256;
};

void PrintTo(const Kind& kind, std::ostream* out) { *out << kind.name; }

template <typename T>
std::unique_ptr<Tier> need(Result<std::unique_ptr<T>> made) {
  EXPECT_TRUE(made.ok()) << made.status().message();
  return made.ok() ? std::unique_ptr<Tier>(std::move(made).value()) : nullptr;
}

std::unique_ptr<Tier> file(Subject& s, const FileTierOptions& base,
                           const std::string& under = HEADRACE_BINARY_DIR) {
  s.folder = std::make_unique<TempFolder>(under);
  FileTierOptions options = base;
  options.access = FileAccess::kScratch;
  options.scratch_bytes = kObjectBytes;
  std::vector<std::string> paths;
  for (int i = 0; i < kObjects; ++i)
    paths.push_back(s.folder->file("o" + std::to_string(i)));
  return need(open_file_tier(paths, s.arena.get(), options));
}

FileTierOptions method(FileMethod m) {
  FileTierOptions options;
  options.method = m;
  return options;
}

FileTierOptions tiny(FileMethod m) {
  FileTierOptions options = method(m);
  options.queue_depth = 1;
  options.chunk_bytes = kPage;
  options.max_tickets = 2;
  options.pool_threads = 1;
  return options;
}

std::unique_ptr<Tier> host(int max_tickets = 256, bool worker = true) {
  return need(
      open_host_tier(std::vector<Bytes>(kObjects, kObjectBytes), {max_tickets, worker}));
}

std::unique_ptr<Tier> remote(Subject& s) {
  s.folder = std::make_unique<TempFolder>("/dev/shm");
  RemotePool pool;
  pool.kind = PoolKind::kScratchFile;
  pool.path = s.folder->file("pool");
  return need(open_remote_tier(pool, std::vector<Bytes>(kObjects, kObjectBytes)));
}

std::unique_ptr<Tier> emulated(std::unique_ptr<Tier> inner, Clock& clock, bool duplex,
                               int max_tickets = 256) {
  const LinkModel model = {2e9, 20'000, duplex};
  return need(open_emulated_tier(
      std::move(inner), std::make_shared<EmulatedLink>(model, clock), max_tickets));
}

std::unique_ptr<Tier> held(std::unique_ptr<Tier> inner, int max_tickets = 256) {
  FaultPlan plan;
  plan.delay_polls = 2;
  plan.reorder_polls = 5;
  plan.max_tickets = max_tickets;
  return make_fault_tier(std::move(inner), plan);
}

std::unique_ptr<Tier> checked(std::unique_ptr<Tier> inner, int max_tickets = 256) {
  return make_checksum_tier(std::move(inner), std::vector<Bytes>(kObjects, kObjectBytes),
                            max_tickets);
}

const Kind kKinds[] = {
    {"FileBest", [](Subject& s) { return file(s, {}); }},
    {"FilePreadDirect",
     [](Subject& s) { return file(s, method(FileMethod::kPreadDirect)); }},
    {"FilePreadBuffered",
     [](Subject& s) { return file(s, method(FileMethod::kPreadBuffered)); }},
    {"FileUnregistered",
     [](Subject& s) {
       FileTierOptions options;
       options.register_buffers = false;
       return file(s, options);
     }},
    {"FileTiny", [](Subject& s) { return file(s, tiny(FileMethod::kBest)); }, 2},
    {"FilePoolTiny", [](Subject& s) { return file(s, tiny(FileMethod::kPreadBuffered)); },
     2},
    {"FileInRam", [](Subject& s) { return file(s, {}, "/dev/shm"); }},
    {"Host", [](Subject&) { return host(); }},
    {"HostInline", [](Subject&) { return host(256, false); }},
    {"HostTiny", [](Subject&) { return host(1); }, 1},
    {"Remote", [](Subject& s) { return remote(s); }},
    {"EmulatedManualClock",
     [](Subject& s) { return emulated(host(256, false), s.clock, false); }},
    {"EmulatedRealClock", [](Subject&) { return emulated(host(), real_clock(), true); }},
    {"EmulatedTiny", [](Subject& s) { return emulated(host(1), s.clock, true, 2); }, 2},
    {"EmulatedFile", [](Subject& s) { return emulated(file(s, {}), s.clock, true); }},
    {"CheckedHost", [](Subject&) { return checked(host()); }},
    {"CheckedFile", [](Subject& s) { return checked(file(s, {})); }},
    {"CheckedTiny", [](Subject&) { return checked(host(2), 2); }, 2},
    {"CheckedHeldBack", [](Subject&) { return checked(held(host())); }},
    {"HeldBackHost", [](Subject&) { return held(host()); }},
    {"HeldBackFile", [](Subject& s) { return held(file(s, {})); }},
    {"HeldBackTiny", [](Subject& s) { return held(file(s, tiny(FileMethod::kBest)), 2); },
     2},
};

class TierConformance : public testing::TestWithParam<Kind> {
 protected:
  void SetUp() override {
    auto arena = Arena::create(kObjects * kObjectBytes * 2);
    ASSERT_TRUE(arena.ok());
    subject_.arena = std::make_unique<Arena>(std::move(*arena));
    subject_.tier = GetParam().make(subject_);
    ASSERT_NE(subject_.tier, nullptr);
  }
  void TearDown() override { subject_.tier.reset(); }

  Tier& tier() { return *subject_.tier; }
  std::span<std::byte> memory(Bytes at, Bytes n) { return subject_.arena->at(at, n); }
  Ticket load(int object, Bytes offset, std::span<std::byte> to) {
    auto t = tier().load({object, offset, static_cast<Bytes>(to.size())}, to);
    EXPECT_TRUE(t.ok()) << t.status().message();
    return t.ok() ? *t : Ticket{};
  }
  Ticket store(std::span<const std::byte> from, int object, Bytes offset) {
    auto t = tier().store(from, {object, offset, static_cast<Bytes>(from.size())});
    EXPECT_TRUE(t.ok()) << t.status().message();
    return t.ok() ? *t : Ticket{};
  }
  void wait_ok(Ticket ticket) {
    const Status status = tier().wait(ticket);
    EXPECT_TRUE(status.ok()) << status.message();
  }
  // Object `i` holds pattern `i` + base.
  void fill_objects(uint64_t base) {
    for (int i = 0; i < kObjects; ++i) {
      fill(memory(0, kObjectBytes), base + static_cast<uint64_t>(i));
      wait_ok(store(memory(0, kObjectBytes), i, 0));
    }
  }

  Subject subject_;
};

TEST_P(TierConformance, SaysWhatItIs) {
  const TierDescription& about = tier().describe();
  EXPECT_FALSE(about.kind.empty());
  EXPECT_FALSE(about.method.empty());
  EXPECT_GE(about.alignment, 1);
  EXPECT_EQ(about.alignment & (about.alignment - 1), 0);
  EXPECT_LE(about.alignment, kPage);
  EXPECT_GT(about.memory_bytes, 0);
}

TEST_P(TierConformance, WhatWasStoredIsWhatIsLoaded) {
  fill_objects(10);
  for (int i = 0; i < kObjects; ++i) {
    std::fill(memory(0, kObjectBytes).begin(), memory(0, kObjectBytes).end(),
              std::byte{1});
    wait_ok(load(i, 0, memory(0, kObjectBytes)));
    EXPECT_EQ(first_difference(memory(0, kObjectBytes), 10 + static_cast<uint64_t>(i)),
              -1);
  }
}

TEST_P(TierConformance, RandomExtentsRoundTripAndTouchNothingElse) {
  fill_objects(0);
  std::vector<std::vector<std::byte>> truth(kObjects);
  for (int i = 0; i < kObjects; ++i) {
    truth[static_cast<size_t>(i)].resize(static_cast<size_t>(kObjectBytes));
    fill(truth[static_cast<size_t>(i)], static_cast<uint64_t>(i));
  }
  std::mt19937_64 random(7);
  const Bytes unit = tier().describe().alignment;
  const Bytes most = 200 * kKiB / unit;
  for (int round = 0; round < 150; ++round) {
    const int object = static_cast<int>(random() % kObjects);
    const Bytes n =
        (1 + static_cast<Bytes>(random() % static_cast<uint64_t>(most))) * unit;
    const Bytes places = (kObjectBytes - n) / unit + 1;
    const Bytes offset =
        static_cast<Bytes>(random() % static_cast<uint64_t>(places)) * unit;
    auto& object_truth = truth[static_cast<size_t>(object)];
    const auto expected =
        std::span(object_truth)
            .subspan(static_cast<size_t>(offset), static_cast<size_t>(n));
    if (random() % 2 == 0) {
      fill(memory(kPage, n), 1000 + static_cast<uint64_t>(round));
      std::copy_n(memory(kPage, n).begin(), n, expected.begin());
      wait_ok(store(memory(kPage, n), object, offset));
    } else {
      const auto to = memory(0, n + 2 * kPage);
      std::fill(to.begin(), to.end(), std::byte{0x77});
      wait_ok(load(object, offset, to.subspan(kPage, static_cast<size_t>(n))));
      ASSERT_TRUE(std::equal(expected.begin(), expected.end(), to.begin() + kPage));
      ASSERT_EQ(to[kPage - 1], std::byte{0x77});
      ASSERT_EQ(to[static_cast<size_t>(kPage + n)], std::byte{0x77});
    }
  }
}

TEST_P(TierConformance, ManyTicketsAreInFlightAndWaitedForInAnyOrder) {
  fill_objects(20);
  const int count = std::min(GetParam().max_tickets, 128);
  const Bytes n = 4 * kPage;
  std::mt19937_64 random(3);
  for (int round = 0; round < 5; ++round) {
    std::vector<std::pair<int, Ticket>> tickets;
    for (int i = 0; i < count; ++i)
      tickets.emplace_back(i, load(i % kObjects, (i % 64) * n, memory(i * n, n)));
    std::shuffle(tickets.begin(), tickets.end(), random);
    for (const auto& [i, ticket] : tickets) {
      wait_ok(ticket);
      ASSERT_EQ(first_difference(memory(i * n, n),
                                 20 + static_cast<uint64_t>(i % kObjects), (i % 64) * n),
                -1);
    }
  }
}

TEST_P(TierConformance, MoreTicketsThanItHasSlotsNeverDeadlock) {
  fill_objects(30);
  const int count = 2 * GetParam().max_tickets + 3;
  std::vector<Ticket> tickets;
  for (int i = 0; i < count; ++i)
    tickets.push_back(load(i % kObjects, 0, memory(i * kPage, kPage)));
  EXPECT_LE(tier().counters().loads, count);
  for (int i = count; i-- > 0;) {
    wait_ok(tickets[static_cast<size_t>(i)]);
    EXPECT_EQ(first_difference(memory(i * kPage, kPage),
                               30 + static_cast<uint64_t>(i % kObjects)),
              -1)
        << "transfer " << i << " of " << count;
  }
  EXPECT_EQ(tier().counters().loads, count);
}

TEST_P(TierConformance, DoneComesTrueByAskingAloneAndThenWaitIsOk) {
  fill_objects(40);
  const Ticket ticket = load(1, 0, memory(0, kObjectBytes));
  while (!tier().done(ticket)) {
    subject_.clock.advance(1000);
    std::this_thread::yield();
  }
  EXPECT_EQ(first_difference(memory(0, kObjectBytes), 41), -1);
  wait_ok(ticket);
}

TEST_P(TierConformance, PollingAloneFinishesWhatWasSubmitted) {
  fill_objects(50);
  std::vector<Ticket> tickets;
  const int count = std::min(GetParam().max_tickets, 8);
  for (int i = 0; i < count; ++i)
    tickets.push_back(load(2, i * 16 * kPage, memory(i * 16 * kPage, 16 * kPage)));
  for (const Ticket ticket : tickets) {
    while (!tier().done(ticket)) {
      tier().poll();
      subject_.clock.advance(1000);
      std::this_thread::yield();
    }
  }
  EXPECT_EQ(first_difference(memory(0, count * 16 * kPage), 52), -1);
  for (const Ticket ticket : tickets) wait_ok(ticket);
}

TEST_P(TierConformance, NothingToMoveIsNothingToWaitFor) {
  const Ticket ticket = load(0, 0, {});
  EXPECT_EQ(ticket.value, 0u);
  EXPECT_TRUE(tier().done(ticket));
  wait_ok(ticket);
  wait_ok(store({}, 0, 0));
  wait_ok(Ticket{});
  EXPECT_EQ(tier().counters().loads, 0);
}

// Refusals may come from load() itself or, from tiers that hold transfers back, from
// wait().
Status outcome(Tier& tier, Result<Ticket> ticket) {
  return ticket.ok() ? tier.wait(*ticket) : ticket.status();
}

TEST_P(TierConformance, RefusesExtentsOutsideItsObjectsWithTheNumbers) {
  const auto bad = [&](int object, Bytes offset, Bytes n) {
    const Status loaded = outcome(
        tier(), tier().load({object, offset, n}, memory(0, std::max(n, Bytes{0}))));
    const Status stored = outcome(
        tier(), tier().store(memory(0, std::max(n, Bytes{0})), {object, offset, n}));
    EXPECT_FALSE(loaded.ok()) << object << " " << offset << " " << n;
    EXPECT_FALSE(stored.ok()) << object << " " << offset << " " << n;
    EXPECT_THAT(loaded.message(), testing::ContainsRegex("[0-9]"));
  };
  bad(kObjects, 0, kPage);
  bad(-1, 0, kPage);
  bad(0, kObjectBytes, kPage);
  bad(0, kObjectBytes - kPage, 2 * kPage);
  bad(0, -kPage, kPage);
  bad(0, INT64_MAX - kPage + 1, kPage);
  fill_objects(60);
  wait_ok(load(0, kObjectBytes - kPage, memory(0, kPage)));
}

TEST_P(TierConformance, RefusesMemoryOfAnotherSizeThanTheExtent) {
  EXPECT_EQ(outcome(tier(), tier().load({0, 0, 2 * kPage}, memory(0, kPage))).code(),
            Code::kUsage);
  EXPECT_EQ(outcome(tier(), tier().store(memory(0, 2 * kPage), {0, 0, kPage})).code(),
            Code::kUsage);
}

TEST_P(TierConformance, ARefusedTransferDoesNotTouchItsNeighbours) {
  fill_objects(70);
  const Ticket before = load(0, 0, memory(0, 64 * kPage));
  EXPECT_FALSE(
      outcome(tier(), tier().load({0, kObjectBytes, kPage}, memory(100 * kPage, kPage)))
          .ok());
  const Ticket after = load(1, 0, memory(64 * kPage, 64 * kPage));
  wait_ok(after);
  wait_ok(before);
  EXPECT_EQ(first_difference(memory(0, 64 * kPage), 70), -1);
  EXPECT_EQ(first_difference(memory(64 * kPage, 64 * kPage), 71), -1);
}

TEST_P(TierConformance, NoWriteArrivesAfterItsDestruction) {
  fill_objects(80);
  const int count = std::min(GetParam().max_tickets, 6);
  for (int i = 0; i < count; ++i)
    (void)load(i % kObjects, 0, memory(i * 64 * kPage, 64 * kPage));
  subject_.tier.reset();
  const auto all = memory(0, count * 64 * kPage);
  std::fill(all.begin(), all.end(), std::byte{0x33});
  std::this_thread::yield();
  for (std::byte b : all) ASSERT_EQ(b, std::byte{0x33});
  subject_.arena.reset();  // and its memory may go at once
}

TEST_P(TierConformance, IsDestroyedWithStoresInFlight) {
  fill(memory(0, kObjectBytes), 90);
  const int count = std::min(GetParam().max_tickets, 4);
  for (int i = 0; i < count; ++i) (void)store(memory(0, kObjectBytes), i % kObjects, 0);
  subject_.tier.reset();
  subject_.arena.reset();
}

TEST_P(TierConformance, CountsTransfersAndBytes) {
  const TierCounters before = tier().counters();
  wait_ok(store(memory(0, 8 * kPage), 0, 0));
  wait_ok(load(0, kPage, memory(0, 2 * kPage)));
  wait_ok(load(0, 0, memory(0, kPage)));
  const TierCounters after = tier().counters();
  EXPECT_EQ(after.stores - before.stores, 1);
  EXPECT_EQ(after.loads - before.loads, 2);
  EXPECT_EQ(after.stored_bytes - before.stored_bytes, 8 * kPage);
  EXPECT_EQ(after.loaded_bytes - before.loaded_bytes, 3 * kPage);
}

TEST_P(TierConformance, AllocatesNothingWhileItWorks) {
  fill_objects(100);
  const int count = std::min(GetParam().max_tickets, 32);
  std::vector<Ticket> tickets(static_cast<size_t>(count));
  const int64_t before = allocations_so_far();
  int64_t failures = 0;
  for (int round = 0; round < 3; ++round) {
    for (int i = 0; i < count; ++i) {
      const auto part = memory(i * 4 * kPage, 4 * kPage);
      auto ticket = i % 3 == 0 ? tier().store(part, {0, i * 4 * kPage, 4 * kPage})
                               : tier().load({1, i * 4 * kPage, 4 * kPage}, part);
      failures += !ticket.ok();
      tickets[static_cast<size_t>(i)] = *ticket;
    }
    tier().poll();
    for (const Ticket ticket : tickets) failures += !tier().wait(ticket).ok();
  }
  EXPECT_EQ(allocations_so_far() - before, 0);
  EXPECT_EQ(failures, 0);
}

INSTANTIATE_TEST_SUITE_P(Every, TierConformance, testing::ValuesIn(kKinds),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace headrace
