// The file tier against a system that answers badly: short transfers, EINTR, EAGAIN, EIO,
// end of file, late and out of order; over each real backend.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "headrace/tier/file_tier.h"
#include "tests/tier/scripted_backend.h"
#include "tests/tier/tier_testing.h"

namespace headrace {
namespace {

using testing::HasSubstr;
using testing_tier::Answer;
using testing_tier::fill;
using testing_tier::first_difference;
using testing_tier::Script;
using testing_tier::ScriptedBackend;
using testing_tier::TempFolder;
using testing_tier::write_pattern_file;

constexpr Bytes kFileBytes = 256 * kKiB + 777;
constexpr Bytes kRounded = 260 * kKiB;
constexpr Bytes kChunk = 32 * kKiB;

class IoFault : public testing::TestWithParam<FileMethod> {
 protected:
  void SetUp() override {
    write_pattern_file(folder_.file("weights"), kFileBytes, 1);
    auto arena = Arena::create(4 * kMiB);
    ASSERT_TRUE(arena.ok());
    arena_ = std::make_unique<Arena>(std::move(*arena));
  }
  void open(Script script, uint64_t shuffle_seed = 0, int depth = 4,
            FileAccess access = FileAccess::kRead) {
    FileTierOptions options;
    options.method = GetParam();
    options.queue_depth = depth;
    options.chunk_bytes = kChunk;
    options.access = access;
    options.scratch_bytes = kRounded;
    options.wrap_backend = [&](std::unique_ptr<IoBackend> real) {
      auto made =
          std::make_unique<ScriptedBackend>(std::move(real), script, shuffle_seed);
      backend_ = made.get();
      return made;
    };
    const char* name = access == FileAccess::kScratch ? "scratch" : "weights";
    auto tier = open_file_tier({folder_.file(name)}, arena_.get(), options);
    ASSERT_TRUE(tier.ok()) << tier.status().message();
    tier_ = std::move(*tier);
  }
  Status load_all() {
    auto to = arena_->at(0, kRounded);
    fill(to, 999);
    HR_ASSIGN(const Ticket ticket, tier_->load({0, 0, kRounded}, to));
    return tier_->wait(ticket);
  }
  // The real bytes are there, and zeros behind the end of the file.
  void expect_all_loaded() {
    const auto got = arena_->at(0, kRounded);
    EXPECT_EQ(first_difference(got.first(static_cast<size_t>(kFileBytes)), 1), -1);
    for (Bytes i = kFileBytes; i < kRounded; ++i)
      ASSERT_EQ(got[static_cast<size_t>(i)], std::byte{0});
  }

  TempFolder folder_;
  std::unique_ptr<Arena> arena_;
  ScriptedBackend* backend_ = nullptr;
  std::unique_ptr<FileTier> tier_;
};

TEST_P(IoFault, ShortReadsOfAnyLengthAreContinued) {
  // The first answer to each chunk is short; lengths within a page, of pages and between.
  for (Bytes length : {Bytes{1}, Bytes{511}, Bytes{512}, kPage - 1, kPage, kPage + 1,
                       3 * kPage, kChunk - 1}) {
    int64_t shortened = 0;
    open([&](const IoRequest& r, int64_t) {
      if (r.bytes < kChunk) return Answer{};
      ++shortened;
      return shortened % 2 == 1 ? Answer{length} : Answer{};
    });
    const Status status = load_all();
    ASSERT_TRUE(status.ok()) << status.message() << ", length " << length;
    expect_all_loaded();
    EXPECT_GT(shortened, 0);
  }
}

TEST_P(IoFault, EveryReadMayStopAfterOnePage) {
  open([](const IoRequest&, int64_t) { return Answer{kPage}; });
  ASSERT_TRUE(load_all().ok());
  expect_all_loaded();
}

TEST_P(IoFault, EintrAndEagainAreRetried) {
  for (int number : {EINTR, EAGAIN}) {
    open([&](const IoRequest&, int64_t n) {
      return n % 5 != 4 ? Answer{-number} : Answer{};
    });
    const Status status = load_all();
    ASSERT_TRUE(status.ok()) << status.message();
    expect_all_loaded();
  }
}

TEST_P(IoFault, ADeviceThatNeverDeliversIsAnErrorAndNoHang) {
  for (int number : {EINTR, EAGAIN}) {
    open([&](const IoRequest&, int64_t) { return Answer{-number}; });
    const Status status = load_all();
    EXPECT_EQ(status.code(), Code::kIo);
    EXPECT_THAT(status.message(), HasSubstr("in a row"));
  }
}

TEST_P(IoFault, TheKthRequestFailingIsAnErrorThatNamesFileOffsetAndErrno) {
  const int64_t requests = kRounded / kChunk;  // the last page joins the last whole chunk
  for (int64_t k = 0; k < requests; ++k) {
    open([&](const IoRequest&, int64_t n) { return n == k ? Answer{-EIO} : Answer{}; });
    const Status status = load_all();
    ASSERT_EQ(status.code(), Code::kIo);
    EXPECT_THAT(status.message(), HasSubstr(folder_.file("weights")));
    EXPECT_THAT(status.message(), HasSubstr("at " + std::to_string(k * kChunk) + ":"));
    EXPECT_THAT(status.message(), HasSubstr("Input/output error (errno 5)"));
    // The tier lives on: the same load succeeds now.
    ASSERT_TRUE(load_all().ok());
    expect_all_loaded();
  }
}

TEST_P(IoFault, AnErrorIsOfItsTicketAlone) {
  // Everything in the second of three 64 KiB parts fails.
  open([](const IoRequest& r, int64_t) {
    return r.offset >= 64 * kKiB && r.offset < 128 * kKiB ? Answer{-EIO} : Answer{};
  });
  std::vector<Ticket> tickets;
  for (int i = 0; i < 3; ++i) {
    auto t =
        tier_->load({0, i * 64 * kKiB, 64 * kKiB}, arena_->at(i * 64 * kKiB, 64 * kKiB));
    ASSERT_TRUE(t.ok());
    tickets.push_back(*t);
  }
  EXPECT_TRUE(tier_->wait(tickets[2]).ok());
  EXPECT_EQ(tier_->wait(tickets[1]).code(), Code::kIo);
  EXPECT_TRUE(tier_->wait(tickets[0]).ok());
  EXPECT_EQ(first_difference(arena_->at(0, 64 * kKiB), 1), -1);
  EXPECT_EQ(first_difference(arena_->at(128 * kKiB, 64 * kKiB), 1, 128 * kKiB), -1);
}

TEST_P(IoFault, AFailureThatNobodyWaitedForRefusesTheTransferThatNeedsItsSlot) {
  FileTierOptions options;
  options.method = GetParam();
  options.max_tickets = 2;
  options.wrap_backend = [](std::unique_ptr<IoBackend> real) {
    return std::make_unique<ScriptedBackend>(
        std::move(real),
        [](const IoRequest&, int64_t n) { return n == 0 ? Answer{-EIO} : Answer{}; });
  };
  auto tier = open_file_tier({folder_.file("weights")}, arena_.get(), options);
  ASSERT_TRUE(tier.ok());
  auto failed = (*tier)->load({0, 0, kPage}, arena_->at(0, kPage));
  auto good = (*tier)->load({0, 0, kPage}, arena_->at(kPage, kPage));
  ASSERT_TRUE(failed.ok() && good.ok());
  EXPECT_EQ((*tier)->load({0, 0, kPage}, arena_->at(2 * kPage, kPage)).status().code(),
            Code::kIo);
  EXPECT_EQ((*tier)->wait(*failed).code(), Code::kIo);
  EXPECT_TRUE((*tier)->load({0, 0, kPage}, arena_->at(2 * kPage, kPage)).ok());
}

TEST_P(IoFault, EndOfFileBeforeTheEndIsAnError) {
  open([](const IoRequest& r, int64_t) {
    return r.offset == kChunk ? Answer{0} : Answer{};
  });
  const Status status = load_all();
  ASSERT_EQ(status.code(), Code::kIo);
  EXPECT_THAT(status.message(), HasSubstr("end of file"));
  EXPECT_THAT(status.message(), HasSubstr(std::to_string(kChunk)));
}

TEST_P(IoFault, CompletionsMayComeLateAndInAnyOrder) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    open([](const IoRequest&, int64_t) { return Answer{}; }, seed);
    ASSERT_TRUE(load_all().ok());
    expect_all_loaded();
  }
}

TEST_P(IoFault, NeverMoreRequestsInFlightThanTheDepth) {
  for (int depth : {1, 3, 8}) {
    open(
        [](const IoRequest&, int64_t n) { return n % 3 == 0 ? Answer{kPage} : Answer{}; },
        5, depth);
    ASSERT_TRUE(load_all().ok());
    EXPECT_LE(backend_->most_in_flight(), depth);
    EXPECT_EQ(backend_->most_in_flight(), depth) << "the queue is kept full";
  }
}

// A row of the embedding table is needed as soon as its token is known; megabytes of
// weights that are needed later are queued before it.
TEST_P(IoFault, ASmallLoadOvertakesTheChunksThatStillWait) {
  std::vector<Bytes> order;
  open(
      [&](const IoRequest& r, int64_t) {
        order.push_back(r.offset);
        return Answer{};
      },
      0, 1);
  auto large = tier_->load({0, kChunk, 6 * kChunk}, arena_->at(0, 6 * kChunk));
  auto small = tier_->load({0, 0, kPage}, arena_->at(kMiB, kPage));
  ASSERT_TRUE(large.ok() && small.ok());
  ASSERT_TRUE(tier_->wait(*small).ok());
  EXPECT_EQ(first_difference(arena_->at(kMiB, kPage), 1), -1);
  ASSERT_TRUE(tier_->wait(*large).ok());
  EXPECT_EQ(first_difference(arena_->at(0, 6 * kChunk), 1, kChunk), -1);
  ASSERT_EQ(order.size(), 7u);
  const auto place = std::find(order.begin(), order.end(), Bytes{0}) - order.begin();
  EXPECT_EQ(place, 1) << "only the first chunk was already out";
}

TEST_P(IoFault, ManySmallLoadsAndLargeOnesAllArrive) {
  open(
      [](const IoRequest&, int64_t n) { return n % 7 == 0 ? Answer{-EAGAIN} : Answer{}; },
      9, 2);
  const auto bytes_of = [](int i) { return i % 4 == 0 ? 100 * kKiB : kPage; };
  const auto offset_of = [](int i) { return (i % 16) * kPage; };
  std::vector<Ticket> tickets;
  for (int i = 0; i < 36; ++i) {
    auto t = tier_->load({0, offset_of(i), bytes_of(i)},
                         arena_->at(i * 100 * kKiB, bytes_of(i)));
    ASSERT_TRUE(t.ok());
    tickets.push_back(*t);
  }
  for (int i = 0; i < 36; ++i) {
    EXPECT_TRUE(tier_->wait(tickets[static_cast<size_t>(i)]).ok());
    EXPECT_EQ(first_difference(arena_->at(i * 100 * kKiB, bytes_of(i)), 1, offset_of(i)),
              -1)
        << "load " << i;
  }
}

// Everything at once, many tickets, both directions.
TEST_P(IoFault, RandomTroubleNeverCorruptsAByte) {
  for (uint64_t seed = 1; seed <= 12; ++seed) {
    std::mt19937_64 random(seed);
    const auto trouble = [&](const IoRequest& r, int64_t) {
      switch (random() % 6) {
        case 0: return Answer{-EINTR};
        case 1: return Answer{-EAGAIN};
        case 2:
          return Answer{1 +
                        static_cast<int64_t>(random() % static_cast<uint64_t>(r.bytes))};
        default: return Answer{};
      }
    };
    open(trouble, seed, 1 + static_cast<int>(seed % 5), FileAccess::kScratch);
    const Bytes part = 20 * kKiB;
    std::vector<Ticket> tickets;
    for (int i = 0; i < 13; ++i) {
      fill(arena_->at(i * part, part), seed, i * part);
      auto t = tier_->store(arena_->at(i * part, part), {0, i * part, part});
      ASSERT_TRUE(t.ok());
      tickets.push_back(*t);
    }
    for (Ticket t : tickets) ASSERT_TRUE(tier_->wait(t).ok());
    tickets.clear();
    for (int i = 0; i < 13; ++i) {
      auto t = tier_->load({0, i * part, part}, arena_->at(kMiB + i * part, part));
      ASSERT_TRUE(t.ok());
      tickets.push_back(*t);
    }
    for (size_t i = tickets.size(); i-- > 0;) ASSERT_TRUE(tier_->wait(tickets[i]).ok());
    EXPECT_EQ(first_difference(arena_->at(kMiB, 13 * part), seed), -1) << "seed " << seed;
  }
}

TEST_P(IoFault, AFailedStoreNamesTheWrite) {
  open([](const IoRequest&, int64_t n) { return n == 1 ? Answer{-ENOSPC} : Answer{}; }, 0,
       4, FileAccess::kScratch);
  auto t = tier_->store(arena_->at(0, 64 * kKiB), {0, 0, 64 * kKiB});
  ASSERT_TRUE(t.ok());
  const Status status = tier_->wait(*t);
  ASSERT_EQ(status.code(), Code::kIo);
  EXPECT_THAT(status.message(),
              HasSubstr("write of 32768 bytes at 32768: No space left"));
}

TEST_P(IoFault, IsDestroyedInTheMiddleOfTrouble) {
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    std::mt19937_64 random(seed);
    open(
        [&](const IoRequest&, int64_t) {
          const uint64_t kind = random() % 4;
          return kind == 0 ? Answer{-EIO} : kind == 1 ? Answer{-EAGAIN} : Answer{};
        },
        seed, 3);
    for (int i = 0; i < 4; ++i)
      (void)tier_->load({0, 0, kRounded}, arena_->at(i * kRounded, kRounded));
    tier_.reset();
  }
}

INSTANTIATE_TEST_SUITE_P(Over, IoFault,
                         testing::Values(FileMethod::kUring, FileMethod::kPreadDirect,
                                         FileMethod::kPreadBuffered),
                         [](const auto& info) {
                           switch (info.param) {
                             case FileMethod::kUring: return "IoUring";
                             case FileMethod::kPreadDirect: return "PreadDirect";
                             default: return "PreadBuffered";
                           }
                         });

}  // namespace
}  // namespace headrace
