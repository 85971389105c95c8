#include "headrace/tier/io_backend.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <set>

#include "headrace/tier/arena.h"
#include "tests/tier/tier_testing.h"

namespace headrace {
namespace {

using testing_tier::first_difference;
using testing_tier::TempFolder;
using testing_tier::write_pattern_file;

constexpr Bytes kBytes = 4 * kMiB;

// Reads the file in 96 KiB requests, `depth` at once, to `to`; true when all were reaped
// once.
bool read_all(IoBackend& backend, int fd, std::span<std::byte> to, int depth) {
  std::set<uint32_t> in_flight;
  std::array<IoCompletion, 3> batch;
  uint32_t tag = 0;
  Bytes at = 0;
  while (at < kBytes || !in_flight.empty()) {
    while (at < kBytes && static_cast<int>(in_flight.size()) < depth) {
      const Bytes n = std::min(96 * kKiB, kBytes - at);
      IoRequest request;
      request.tag = tag;
      request.fd = fd;
      request.data = to.data() + at;
      request.bytes = n;
      request.offset = at;
      backend.submit(request);
      in_flight.insert(tag++);
      at += n;
    }
    backend.flush();
    const int count = backend.reap(batch, true);
    if (count < 1) return false;
    for (int i = 0; i < count; ++i) {
      if (batch[static_cast<size_t>(i)].result <= 0) return false;
      if (in_flight.erase(batch[static_cast<size_t>(i)].tag) != 1) return false;
    }
  }
  return backend.reap(batch, false) == 0;
}

class IoBackendTest : public testing::Test {
 protected:
  void SetUp() override {
    write_pattern_file(folder_.file("a"), kBytes, 1);
    fd_ = open(folder_.file("a").c_str(), O_RDONLY | O_CLOEXEC);
    ASSERT_GE(fd_, 0);
  }
  void TearDown() override { close(fd_); }
  TempFolder folder_;
  int fd_ = -1;
};

TEST_F(IoBackendTest, IoUringReadsAcrossThePiecesOfItsRegisteredMemory) {
  auto arena = Arena::create(kBytes);
  ASSERT_TRUE(arena.ok());
  UringSetup setup;
  setup.depth = 5;
  setup.buffers = arena->at(0, 3 * kMiB + kPage);  // the rest is not registered at all
  setup.piece_bytes = 256 * kKiB;                  // no multiple of the request
  auto made = make_uring_backend(setup);
  if (!made.ok()) GTEST_SKIP() << made.status().message();
  if (!made->registered) GTEST_SKIP() << made->notice;
  ASSERT_TRUE(read_all(*made->backend, fd_, arena->at(0, kBytes), 5));
  EXPECT_EQ(first_difference(arena->at(0, kBytes), 1), -1);
  EXPECT_GT(made->backend->memory_bytes(), 0);
}

TEST_F(IoBackendTest, IoUringTakesAsManyRequestsAsAskedFor) {
  auto arena = Arena::create(kBytes);
  ASSERT_TRUE(arena.ok());
  for (int depth : {1, 7, 64}) {
    UringSetup setup;
    setup.depth = depth;
    auto made = make_uring_backend(setup);
    if (!made.ok()) GTEST_SKIP() << made.status().message();
    EXPECT_TRUE(read_all(*made->backend, fd_, arena->at(0, kBytes), depth));
  }
}

TEST_F(IoBackendTest, ThePoolReadsWithMoreOrFewerThreadsThanRequests) {
  auto arena = Arena::create(kBytes);
  ASSERT_TRUE(arena.ok());
  for (const auto& [threads, depth] :
       {std::pair(1, 8), std::pair(4, 1), std::pair(3, 5)}) {
    auto made = make_pread_backend(threads, depth);
    ASSERT_TRUE(made.ok());
    const auto to = arena->at(0, kBytes);
    testing_tier::fill(to, 99);
    EXPECT_TRUE(read_all(**made, fd_, to, depth));
    EXPECT_EQ(first_difference(to, 1), -1);
  }
}

TEST_F(IoBackendTest, ErrorsComeBackAsNegativeErrnos) {
  auto arena = Arena::create(kPage);
  ASSERT_TRUE(arena.ok());
  std::array<IoCompletion, 2> batch;
  IoRequest request;
  request.tag = 9;
  request.data = arena->base();
  request.bytes = kPage;
  request.fd = 1 << 20;  // not open
  auto pool = make_pread_backend(1, 1);
  ASSERT_TRUE(pool.ok());
  (*pool)->submit(request);
  ASSERT_EQ((*pool)->reap(batch, true), 1);
  EXPECT_EQ(batch[0].result, -EBADF);
  EXPECT_EQ(batch[0].tag, 9u);
  auto uring = make_uring_backend({});
  if (!uring.ok()) GTEST_SKIP() << uring.status().message();
  uring->backend->submit(request);
  uring->backend->flush();
  ASSERT_EQ(uring->backend->reap(batch, true), 1);
  EXPECT_EQ(batch[0].result, -EBADF);
}

}  // namespace
}  // namespace headrace
